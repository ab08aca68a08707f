"""Wheel and sdist: what they hold, and that they work where the project's folder is not."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from actorq import __version__
from tests.quantizer_service.complete_models import complete_model, written
from tests.quantizer_service.policy_graphs import mlp

ROOT = Path(__file__).parents[1]
PACKAGES = ("actorq", "actorq_apps", "learner_service", "quantizer_service", "actor_service")


def project_files() -> set[str]:
    """Paths of all files of the project: those that git tracks, or would."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist of a clean copy, and with the wheel that is built from the sdist."""
    source = tmp_path_factory.mktemp("source")
    for name in project_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"], cwd=source, check=True)
    return source / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> dict[str, bytes]:
    """The files of the wheel."""
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


@pytest.fixture(scope="module")
def metadata(wheel: dict[str, bytes]) -> Message:
    """What a package index shows."""
    (found,) = (content for name, content in wheel.items() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(found)


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


def test_the_wheel_has_the_packages_and_their_data_alone(wheel: dict[str, bytes]) -> None:
    of_packages = {name for name in project_files() if name.partition("/")[0] in PACKAGES}
    assert {name for name in wheel if ".dist-info/" not in name} == of_packages
    assert {f"{package}/py.typed" for package in PACKAGES} < of_packages
    assert {name.rpartition(".")[2] for name in of_packages} == {"html", "onnx", "py", "pyi", "typed"}
    information = {
        name.partition(".dist-info/")[2]: content.decode() for name, content in wheel.items() if ".dist-info/" in name
    }
    assert "licenses/LICENSE" in information
    assert set(information["top_level.txt"].split()) == set(PACKAGES)
    assert information["entry_points.txt"].split() == ["[console_scripts]", "actorq", "=", "actorq_apps.cli.main:main"]


def test_the_sdist_is_the_whole_project(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {entry.name.partition("/")[2] for entry in archive.getmembers() if entry.isfile()}
    written = {"PKG-INFO", "setup.cfg"}
    assert {name for name in held if not name.startswith("actorq.egg-info/")} - written == {
        name for name in project_files() if not name.startswith(".github/")
    }


def test_an_index_shows_a_description_whose_links_work(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = str(metadata.get_payload())
    assert text.startswith("# ActorQ\n")
    (installed,) = re.findall(r"and the packages (.*?)\.\n", text, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", installed)) == set(PACKAGES)
    assert re.findall(r"\]\((?!https?://|#)[^)]*\)|(?:src|srcset|href)=\"(?!https?://|#)[^\"]*\"", text) == []


def test_the_metadata_names_the_tested_pythons(metadata: Message) -> None:
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(metadata.get_all("Classifier", [])))
    script = (ROOT / ".ci" / "pythons").read_text(encoding="utf-8")
    further = re.search(r"^FURTHER=\((.*)\)$", script, re.MULTILINE)
    assert further
    assert versions == [metadata["Requires-Python"].removeprefix(">="), *further[1].split()]


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
