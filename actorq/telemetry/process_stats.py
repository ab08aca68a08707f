"""Measures the resources that a process uses."""

import os
import platform
import resource
import sys
import time
from functools import lru_cache
from pathlib import Path

import psutil

from actorq.domain.processes import ProcessStats

FORK_SERVER = "actorq-forks"
"""Name in ps of the process that forks the services of a local run."""


def measure_process(name: str, role: str, node: str = "") -> ProcessStats:
    """Measure the calling process. Needs well under a millisecond.

    node: the machine's name, by default the host name. In a Kubernetes pod the host name is the *pod's* name. Pass the
        node's name there, or this process gets no share of a meter's energy.
    """
    pid, times = os.getpid(), os.times()
    try:
        resident = int(psutil.Process().memory_info().rss)
    except OSError:
        # No file descriptor is free. A report must not end the process, and the peak is the closest known value.
        resident = _peak_from_rusage()
    return _measured(pid, times.user + times.system, resident, name, role, node)


def measure_launcher(node: str = "") -> ProcessStats | None:
    """Measure the launcher of a local run and its fork server. Only the launcher's children can call this.

    Returns None once the launcher has ended. The fork server's CPU time is spent on importing shared modules.
    """
    try:
        launcher = psutil.Process(os.getppid())
        servers = [child for child in launcher.children() if child.name() == FORK_SERVER]
        # The fork servers work for the launcher.
        times = [each.cpu_times() for each in (launcher, *servers)]
        cpu_seconds = sum(time.user + time.system for time in times)
        return _measured(launcher.pid, cpu_seconds, launcher.memory_info().rss, "launcher", "launcher", node)
    except psutil.Error:
        return None


def _measured(pid: int, cpu_seconds: float, resident: int, name: str, role: str, node: str) -> ProcessStats:
    return ProcessStats(
        name=name,
        role=role,
        node=node or platform.node(),
        pid=pid,
        started_at=_started_at(pid),
        cpu_seconds=cpu_seconds,
        resident_bytes=resident,
        # The kernel updates its count of resident pages with delay, so the peak can be below the current value.
        peak_resident_bytes=max(_peak_resident_bytes(Path(f"/proc/{pid}/status")), resident),
    )


@lru_cache(maxsize=8)
def _started_at(pid: int) -> float:
    """Start in Unix seconds. Callers keep it, because it depends on the wall clock, which may change.

    psutil adds the process's age to the boot time in whole seconds. Its result may therefore be off by a second.
    """
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return psutil.Process(pid).create_time()
    # The name in parentheses may contain any characters. Field 22 is the start in clock ticks after boot.
    ticks = int(stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def _peak_resident_bytes(status: Path) -> int:
    """Peak of the resident set in bytes.

    Linux keeps `ru_maxrss` across fork and exec, so a small child of a big process would report the parent's peak.
    VmHWM belongs to the running program.
    """
    try:
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _peak_from_rusage()


def _peak_from_rusage(system: str = sys.platform) -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # getrusage reports kibibytes on Linux and the BSDs, bytes on macOS.
    return int(peak) if system == "darwin" else int(peak) * 1024
