"""A missing package gives one line with the remedy and exit code 2, before any process starts."""

import os
import re
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from actorq.extras import BASE, COMMAND_LINE, MODULES, explain
from actorq_apps.cli.main import _EXTRAS

ROOT = Path(__file__).parents[2]
# Distributions whose module has another name.
RENAMED = {
    "protobuf": "google.protobuf",
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "pyyaml": "yaml",
    "mlflow-skinny": "mlflow",
}


@contextmanager
def environment_without(missing: Collection[str]) -> Iterator[Path]:
    """The interpreter of a virtual environment that links to all installed packages except these."""
    with TemporaryDirectory() as folder:
        venv.create(folder, symlinks=True)
        installed = Path(sysconfig.get_path("purelib"))
        (own,) = Path(folder).glob("lib/python*/site-packages")
        distributions = {of_module(module) for module in missing}
        link_all(installed, own, {name.replace(".", "/") for name in missing})
        for path in own.glob("*.dist-info"):
            if path.name.partition("-")[0].lower().replace("_", "-") in distributions:
                path.unlink()
        yield Path(folder, "bin", "python")


def link_all(source: Path, target: Path, missing: Collection[str]) -> None:
    """Fill a folder with links to another folder's content. missing: paths to leave out."""
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        name = path.name.removesuffix(".py")
        inner = {rest for first, _, rest in (each.partition("/") for each in missing) if first == name}
        if not inner:
            (target / path.name).symlink_to(path)
        elif "" not in inner:
            link_all(path, target / path.name, inner)


def of_module(module: str) -> str:
    """The name of the distribution that contains a module."""
    return next((name for name, renamed in RENAMED.items() if renamed == module), module.replace("_", "-"))


def without(folder: Path, missing: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a module in this folder, in an environment without these packages."""
    with environment_without(missing.split(",")) as python:
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [python, "-m", *command], cwd=folder, env=variables, capture_output=True, text=True, timeout=60
        )


def refused(run: subprocess.CompletedProcess[str], what: str, packages: str, remedy: str) -> None:
    """Check the only line of a command that ended at once: what needs these packages, and how to install them."""
    assert run.returncode == 2, run.stderr
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert re.match(f"error: .*{what} .*{packages}", line)
    assert line.endswith(f"pip install {remedy}")


def test_the_modules_of_each_extra_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]

    def modules(requirements: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for requirement in requirements:
            if inner := re.match(r"actorq\[(.*)\]", requirement):
                found |= {name for extra in inner[1].split(",") for name in modules(extras[extra])}
            else:
                name = re.split(r"[<>=\[]", requirement.lower())[0]
                found.add(RENAMED.get(name, name.replace("-", "_")))
        return found

    assert {*MODULES[BASE], *MODULES[COMMAND_LINE]} == modules(project["dependencies"])
    for extra in MODULES.keys() - {BASE, COMMAND_LINE}:
        assert set(MODULES[extra]) == modules(extras[extra]), extra


@pytest.mark.parametrize(
    ("command", "missing", "packages", "remedy"),
    [
        ("train", "torch", "torch", "'actorq[learner]'"),
        ("train", "onnxruntime", "onnxruntime", "'actorq[quantizer,actor]'"),
        ("train", "gymnasium", "gymnasium", "'actorq[actor]'"),
        ("train", "onnx,safetensors,torch", "onnx, safetensors, torch", "'actorq[learner,quantizer]'"),
        ("train", "grpc", "grpcio", "actorq"),
        ("train", "google.protobuf,yaml", "protobuf, PyYAML", "actorq"),
        ("compare", "scipy", "scipy", "'actorq[compare]'"),
        ("sweep", "optuna", "optuna", "'actorq[sweep]'"),
        ("profile", "torch", "torch", "'actorq[learner]'"),
        ("evaluate", "onnxruntime", "onnxruntime", "'actorq[quantizer,actor]'"),
        ("export", "onnx", "onnx", "'actorq[quantizer]'"),
        ("quantize", "onnxruntime", "onnxruntime", "'actorq[quantizer]'"),
        ("cluster", "kubernetes", "kubernetes", "'actorq[cluster]'"),
        ("certificates", "cryptography", "cryptography", "'actorq[cluster]'"),
        ("actor", "grpc", "grpcio", "actorq"),
        ("status", "rich", "rich", "actorq"),
        ("policies", "numpy", "numpy", "actorq"),
        ("meter", "psutil", "psutil", "actorq"),
    ],
)
def test_a_command_without_its_packages_reports_one_line(
    command: str, missing: str, packages: str, remedy: str, tmp_path: Path
) -> None:
    refused(without(tmp_path, missing, "actorq_apps.cli.main", command), f"actorq {command}", packages, remedy)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("service", "missing", "role", "package", "remedy"),
    [
        ("learner_service", "torch", "learner", "torch", "'actorq[learner]'"),
        ("quantizer_service", "onnx", "quantizer", "onnx", "'actorq[quantizer]'"),
        ("actor_service", "onnxruntime", "actor", "onnxruntime", "'actorq[actor]'"),
        ("actor_service", "grpc", "actor", "grpcio", "actorq"),
        ("actorq_apps.operator", "jsonpatch", "operator", "jsonpatch", "'actorq[operator]'"),
    ],
)
def test_a_service_without_its_packages_reports_one_line(
    service: str, missing: str, role: str, package: str, remedy: str, tmp_path: Path
) -> None:
    refused(without(tmp_path, missing, service), role, package, remedy)


@pytest.mark.parametrize(
    ("flag", "value", "package", "remedy"),
    [
        ("--checkpoint.object-storage", "s3://bucket/run", "obstore", "'actorq[s3]'"),
        ("--telemetry.mlflow", "file:x", "mlflow", "'actorq[mlflow]'"),
        ("--telemetry.wandb", "x", "wandb", "'actorq[wandb]'"),
    ],
)
def test_a_setting_without_its_package_reports_one_line(
    flag: str, value: str, package: str, remedy: str, tmp_path: Path
) -> None:
    run = without(tmp_path, package, "actorq_apps.cli.main", "train", "--environment", "CartPole-v1", flag, value)
    refused(run, flag, package, remedy)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["train", "compare", "quantize"])
def test_the_help_of_a_command_needs_fewer_packages(command: str, tmp_path: Path) -> None:
    run = without(tmp_path, "torch,kubernetes,optuna", "actorq_apps.cli.main", command, "--help")
    assert run.returncode == 0, run.stderr


def test_a_service_needs_nothing_of_the_command_line(tmp_path: Path) -> None:
    run = without(tmp_path, ",".join(MODULES[COMMAND_LINE]), "actor_service", "--help")
    assert run.returncode == 0, run.stderr


def test_every_command_that_needs_an_extra_names_a_known_one() -> None:
    assert {extra for extras in _EXTRAS.values() for extra in extras} <= MODULES.keys()


def test_reports_a_broken_package_with_its_reason() -> None:
    error = ImportError("libgomp.so.1: cannot open shared object file", name="torch")
    assert re.search(
        "the learner.*torch.*libgomp.so.1: cannot open shared object file", str(explain("the learner", error))
    )


def test_an_unknown_module_belongs_to_no_extra() -> None:
    assert explain("this command", ModuleNotFoundError("No module named 'typo'", name="typo")) is None
