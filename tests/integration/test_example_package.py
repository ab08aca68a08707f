"""Installs the package of examples/ with pip, then trains with its names."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.training_run import actorq

EXAMPLE = Path(__file__).parents[2] / "examples" / "hover"


def test_the_installed_package_trains_to_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, packages = tmp_path / "source", tmp_path / "packages"
    shutil.copytree(EXAMPLE, source)
    # Without build isolation, so that the test needs no network.
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(packages), str(source)], check=True)
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=":")
    run = tmp_path / "run"
    completed = actorq("train", "--config", str(EXAMPLE / "config.yaml"), "--run-directory", str(run), cwd=tmp_path)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["solved"], summary["algorithm"]) == (True, "soft-q-learning")
