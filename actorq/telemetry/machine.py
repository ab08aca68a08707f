"""Describes the machine: processor, usable cores, memory, GPUs, and package versions."""

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath

import psutil

_CPU_INFO = Path("/proc/cpuinfo")
_CGROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_PACKAGES = ("torch", "onnxruntime", "onnx", "grpcio", "gymnasium", "numpy")


@dataclass(frozen=True)
class Machine:
    """A machine, the models of its NVIDIA GPUs, and its software. Memory in GB; "-" for a missing package."""

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
    """The driver's name of each NVIDIA GPU; empty if its files cannot be read. Does not wake a GPU."""
    return [model for file in sorted(drivers.glob("*/information")) for model in _values(file, "Model")]


def usable_cores(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """The number of cores that this process may use, at least 1: limited by CPU affinity and its cgroups.

    cgroups: their mount point, version 1 or 2. membership: the file that lists this process's cgroups.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([affinity, *_cpu_limits(cgroups, membership)])))


def _cpu_limits(cgroups: Path, membership: Path) -> Iterator[float]:
    """The CPU limits, in cores, of this process's cgroups and their parents."""
    lines = []
    with suppress(OSError):
        lines = membership.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        # A container may see its host's path. The files of its own cgroup are then in the mount's top folder.
        names = [name for name in PurePosixPath(path).parts if name not in ("/", "..")]
        mounts = ("", "unified") if number == "0" else (controllers, "cpu")
        for folder in (cgroups / mount for mount in dict.fromkeys(mounts)):
            for depth in range(len(names) + 1):
                yield from _cpu_limit(folder.joinpath(*names[:depth]))


def _cpu_limit(cgroup: Path) -> Iterator[float]:
    """The CPU limit of one cgroup; nothing without a limit."""
    # A ValueError means that the limit is "max" or that the file is empty.
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (cgroup / "cpu.max").read_text(encoding="utf-8").split()
        yield int(quota) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = ((cgroup / f"cpu.cfs_{name}_us").read_text(encoding="utf-8") for name in ("quota", "period"))
        if int(quota) > 0:
            yield int(quota) / int(period)


def package_version(package: str) -> str:
    """The version of an installed package; "-" without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def _values(path: Path, name: str) -> list[str]:
    """The values of a file's lines `NAME: VALUE` with this name; none if the file cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for each, _, value in pairs if each.strip() == name]
