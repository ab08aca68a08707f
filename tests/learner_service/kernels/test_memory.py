"""A process that keeps its memory gets no new pages for the same intermediate results."""

import os
import platform
import subprocess
import sys

import pytest

# Prints the page faults of ten rounds of eight blocks of 16 MB, as the gradients of a wide network are.
CODE = """
import resource, sys
import torch
from learner_service.kernels.memory import keep_memory

if sys.argv[1] == "kept":
    keep_memory()

def round():
    return [torch.ones(2**22) for _ in range(8)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(5):
    round()
before = faults()
for _ in range(10):
    round()
print(faults() - before)
"""


# glibc adapts its thresholds to the order of calls, so that the default is sometimes good. These are the first ones.
FIRST_THRESHOLDS = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_kept_memory_is_used_again() -> None:
    faults = {}
    for how in ("kept", "returned"):
        printed = subprocess.run(
            [sys.executable, "-c", CODE, how],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **FIRST_THRESHOLDS},
        )
        faults[how] = int(printed.stdout)
    # A round is 128 MB: 32,768 pages of 4 kB, or 64 of 2 MB.
    assert faults["kept"] < 64 <= faults["returned"] / 10
