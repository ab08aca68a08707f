"""Python in a process whose processor has no int8 dot product, on any machine.

The first way that this machine offers is taken: its own processor, hidden instructions, emulation by qemu.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from actorq.arithmetic import arithmetic
from actorq.domain.policy import SIGNED
from actorq.errors import UserError
from benchmarks.hidden import hiding

ROOT = Path(__file__).parents[2]
QEMU = ("qemu-x86_64", "-cpu", "Haswell")
# Emulated, importing ONNX Runtime alone takes some seconds.
DEADLINE_S = 240.0


def without_dot_product(script: str, *arguments: str) -> str:
    """The standard output of a Python script there. Skips the test where there is no way."""
    ended = ended_without_dot_product("-c", script, *arguments)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def ended_without_dot_product(
    *arguments: str, emulated: bool = True, timeout_s: float = DEADLINE_S
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments there, to its end. Skips the test where there is no way.

    emulated: whether emulation will do. It is too slow for whole runs.
    """
    before, variables = _way()
    if before and not emulated:
        pytest.skip("instructions cannot be hidden here, and emulation is too slow for a whole run")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = (*before, sys.executable, *arguments)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s)


@cache
def _way() -> tuple[tuple[str, ...], dict[str, str]]:
    """What comes before the command, and environment variables."""
    if SIGNED not in arithmetic().weight_encodings:
        return (), {}
    # All tests of this process use it.
    folder = Path(tempfile.mkdtemp(prefix="actorq-hidden-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        return (), dict(hiding(folder))
    except UserError as error:
        if shutil.which(QEMU[0]):
            return QEMU, {}
        pytest.skip(f"{error}; nor is there {QEMU[0]} of the package qemu-user")
