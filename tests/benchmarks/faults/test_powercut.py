"""One power cut under a real run: nothing that was promised is lost, and the run goes on."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.builders.forked_commands import run

ROOT = Path(__file__).parents[3]


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mkfs.ext4") is not None and Path("/dev/loop-control").exists()


@pytest.mark.skipif(not can_mount(), reason="needs root, mkfs.ext4 and loop devices")
def test_a_power_cut_loses_nothing_that_was_promised(tmp_path: Path) -> None:
    file = tmp_path / "powercut.json"
    flags = ["--cuts", "1", "--actors", "1", "--seconds", "2", "--check", "--json", str(file)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = run("benchmarks.faults.powercut", *flags, cwd=ROOT, environment=environment, timeout=220)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (cut,) = json.loads(file.read_text())["figures"]["cuts"]
    assert cut["made"] >= cut["acknowledged"] >= cut["promised"] > 0
    assert cut["stored"] >= cut["promised"]
    assert not list(tmp_path.glob("powercut-*"))
