"""Wheel and sdist: what they hold, and that they work where the project's folder is not."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from actorq import __version__
from tests.quantizer_service.complete_models import complete_model, written
from tests.quantizer_service.policy_graphs import mlp

ROOT = Path(__file__).parents[1]
PACKAGES = ("actorq", "actorq_apps", "learner_service", "quantizer_service", "actor_service")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist of a clean copy, and with the wheel that is built from the sdist."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"], cwd=source, check=True)
    return source / "dist"


@pytest.fixture(scope="module")
def environment(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, which finds all dependencies where they are now."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (wheel,) = dist.glob("*.whl")
    python = folder / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", str(wheel)], check=True
    )
    packages = next(folder.glob("lib/python*/site-packages"))
    # A path in a .pth file comes last, and .pth files there are not read: the project's folder is not found.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return folder


def actorq(environment: Path, folder: Path, *arguments: str) -> str:
    """Run the installed command elsewhere; returns what it printed. Exit code 3 is that of a budget that has ended."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(environment / "bin" / "actorq"), *arguments]
    ended = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode in (0, 3), ended.stderr
    return ended.stdout


def test_both_hold_license_and_all_packages(dist: Path) -> None:
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        in_wheel = opened.namelist()
    with tarfile.open(sdist) as archive:
        in_sdist = [name.partition("/")[2] for name in archive.getnames()]
    for package in PACKAGES:
        files = {str(file.relative_to(ROOT)) for file in (ROOT / package).rglob("*.py")}
        assert files <= set(in_wheel)
        assert files <= set(in_sdist)
    assert any(name.endswith("/licenses/LICENSE") for name in in_wheel)
    assert "LICENSE" in in_sdist
    assert not [name for name in in_wheel if name.startswith(("tests", "benchmarks", "sitegen"))]


def test_the_wheel_trains_evaluates_and_quantizes_elsewhere(environment: Path, tmp_path: Path) -> None:
    assert actorq(environment, tmp_path, "--version") == f"actorq {__version__}\n"
    where = "import actorq, learner_service as l; print(actorq.__file__, l.__file__)"
    python = [str(environment / "bin" / "python"), "-c", where]
    found = subprocess.run(python, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True, check=True).stdout
    assert found.count(str(environment)) == 2
    short = ("--max-environment-steps", "1500", "--evaluation.episodes", "2", "--no-energy.enabled")
    actorq(environment, tmp_path, "train", "--run-directory", "run", *short)
    assert "return mean" in actorq(environment, tmp_path, "evaluate", "run", "--episodes", "1")
    written(tmp_path / "policy.onnx", complete_model(mlp(64, 64)))
    printed = actorq(environment, tmp_path, "quantize", "policy.onnx", "--force", "--scheme", "int8", "-o", "int8.onnx")
    assert "int8.onnx: int8" in printed
    assert (tmp_path / "int8.onnx").stat().st_size > 0


def test_all_files_name_the_same_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
