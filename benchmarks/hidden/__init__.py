"""Runs a command as on a processor without AVX-512, VNNI and bfloat16, at the native speed of its AVX2 kernels.

    python -m benchmarks.hidden python -m benchmarks.policy.inference --check

It needs gcc, Linux on x86-64, and a processor that can let the instruction cpuid fail (Intel's since 2012; in
/proc/cpuinfo the flag cpuid_fault). On other machines `qemu-x86_64 -cpu Haswell` has the same arithmetic, but not the
speed. Caches and clock are those of the real processor. Results list the hidden instructions with the processor.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from actorq.errors import UserError

HIDDEN = "AVX-512, VNNI and bfloat16 hidden"
_SOURCE = Path(__file__).with_name("hidden.c")
_NAME = "libhidden.so"


def is_hidden() -> bool:
    """Whether this process has the instructions hidden."""
    return Path(os.environ.get("LD_PRELOAD", "")).name == _NAME


def hiding(folder: Path) -> Mapping[str, str]:
    """Environment variables of a process with hidden instructions. The library is built in the folder.

    Raises UserError if that is not possible.
    """
    library = folder / _NAME
    try:
        command = ("gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl")
        subprocess.run(command, check=True, capture_output=True, text=True)
        variables = {"LD_PRELOAD": str(library)}
        subprocess.run(("true",), check=True, capture_output=True, text=True, env={**os.environ, **variables})
    except FileNotFoundError:
        raise UserError("hiding instructions needs gcc: install it") from None
    except subprocess.CalledProcessError as error:
        raise UserError(f"instructions cannot be hidden here: {error.stderr.strip()[:300]}") from None
    return variables


def run(command: Sequence[str]) -> int:
    """Run a command with hidden instructions, and return its exit code."""
    with tempfile.TemporaryDirectory(prefix="actorq-hidden-") as folder:
        return subprocess.run(command, env={**os.environ, **hiding(Path(folder))}).returncode
