"""One power cut under a real run: nothing that was promised is lost, and the run goes on."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mkfs.ext4") is not None and Path("/dev/loop-control").exists()


@pytest.mark.skipif(not can_mount(), reason="needs root, mkfs.ext4 and loop devices")
def test_a_power_cut_loses_nothing_that_was_promised(tmp_path: Path) -> None:
    file = tmp_path / "powercut.json"
    flags = ["--cuts", "1", "--actors", "1", "--seconds", "3", "--check", "--json", str(file)]
    command = [sys.executable, "-m", "benchmarks.faults.powercut", *flags]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=220, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (cut,) = json.loads(file.read_text())["figures"]["cuts"]
    assert cut["made"] >= cut["acknowledged"] >= cut["promised"] > 0
    assert cut["stored"] >= cut["promised"]
    assert not list(tmp_path.glob("powercut-*"))
