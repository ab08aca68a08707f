"""Describes the machine of a measurement: processor, memory, GPUs, versions of packages."""

import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

_CPU_INFO = Path("/proc/cpuinfo")
_PACKAGES = ("torch", "onnxruntime", "onnx", "grpcio", "gymnasium", "numpy")


@dataclass(frozen=True)
class Machine:
    """A machine and its software versions. Memory in GB; "-" for a package that is not installed.

    gpus: models of its NVIDIA GPUs.
    """

    cpu: str
    cores: int
    memory_gb: float
    python: str
    packages: dict[str, str]
    gpus: list[str] = field(default_factory=list)

    @property
    def hardware(self) -> str:
        """Processor, memory and GPUs in words."""
        return ", ".join([self.cpu, f"{self.cores} cores", f"{self.memory_gb:g} GB", *self.gpus])


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        next(iter(_values(_CPU_INFO, "model name")), platform.processor()),
        psutil.cpu_count() or 1,
        round(psutil.virtual_memory().total / 1e9, 1),
        platform.python_version(),
        {name: package_version(name) for name in _PACKAGES},
        gpu_models(),
    )


def gpu_models(drivers: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """The model of each NVIDIA GPU, as the driver names it; empty where its files cannot be read. No GPU is woken."""
    return [model for file in sorted(drivers.glob("*/information")) for model in _values(file, "Model")]


def processor_flags(path: Path = _CPU_INFO) -> frozenset[str]:
    """The flags of the first processor; empty on systems without this information."""
    return frozenset(next(iter(_values(path, "flags", "Features")), "").split())


def package_version(package: str) -> str:
    """The version of an installed package; "-" without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def _values(path: Path, *names: str) -> list[str]:
    """The values of a file's lines `NAME: VALUE` with one of these names; none where it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for name, _, value in pairs if name.strip() in names]
