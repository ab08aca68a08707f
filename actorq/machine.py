"""Describes the machine of a measurement: processor, memory, versions of packages."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

_PACKAGES = ("torch", "onnxruntime", "onnx", "grpcio", "gymnasium", "numpy")


@dataclass(frozen=True)
class Machine:
    """A machine and its software versions. Memory in GB; "-" for a package that is not installed."""

    cpu: str
    cores: int
    memory_gb: float
    python: str
    packages: dict[str, str]


def this_machine() -> Machine:
    """The machine that this process runs on."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return Machine(
        model,
        psutil.cpu_count() or 1,
        round(psutil.virtual_memory().total / 1e9, 1),
        platform.python_version(),
        {name: _version(name) for name in _PACKAGES},
    )


def processor_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The flags of the first processor; empty on systems without this information."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, flags = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(flags.split())
    return frozenset()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"
