"""A scheme of an installed package, made of one file and one entry point."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.documentation.code_blocks import blocks
from tests.integration.training_run import TrainingRun, actorq

ROOT = Path(__file__).parents[2]
_SCHEME = '''
"""Weights on the grid of int8, in float32: a scheme of somebody's own."""

from actorq.quantization.emission.linear import units_first
from actorq.quantization.emission.layer_choice import select, unfit_for_linear
from actorq.quantization.emission.skeleton import Skeleton
from actorq.quantization.emission.weights import quantize_int8
from actorq.quantization.schemes.base import Emission
from actorq.quantization.training import TrainingForm


class OnGrid:
    name = "on-grid"

    def plan(self, graph, options):
        return Plan(graph, options)


class Plan:
    observed = ()

    def __init__(self, graph, options):
        self.selection = select(graph, options, unfit_for_linear, ends=True)
        self.skeleton = Skeleton(graph, graph.model.graph.node)

    def training(self):
        return {layer.name: TrainingForm() for layer in self.selection.layers}

    def emit(self, parameters, statistics, metadata):
        values, forms = dict(parameters), {}
        for layer in self.selection.layers:
            rounded = quantize_int8(units_first(layer, parameters))
            values[layer.weight] = (rounded.values * rounded.scale[:, None]).swapaxes(0, layer.channels)
            forms[layer.name] = rounded.form
        return Emission(self.skeleton.fill(values, metadata), self.selection.report(forms))


class Misnamed(OnGrid):
    name = "other"


class Unfinished:
    def __init__(self):
        raise ZeroDivisionError("bits / 0")
'''
_ENTRY_POINTS = """[actorq.schemes]
on-grid = own_scheme:OnGrid
misnamed = own_scheme:Misnamed
unfinished = own_scheme:Unfinished
missing = no_such_module:Scheme
int8 = own_scheme:Misnamed
"""


def install(packages: Path, module: str, code: str, entry_points: str) -> None:
    """Write a module and its entry points into a folder, as an installed package."""
    information = packages / f"{module}-1.0.dist-info"
    information.mkdir(parents=True)
    (packages / f"{module}.py").write_text(code, "utf-8")
    name = module.replace("_", "-")
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (information / "entry_points.txt").write_text(entry_points, "utf-8")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with the scheme, for all started processes."""
    packages = tmp_path / "packages"
    install(packages, "own_scheme", _SCHEME, _ENTRY_POINTS)
    monkeypatch.setenv("PYTHONPATH", f"{packages}:{ROOT}")
    return packages


def test_a_run_emits_an_outside_scheme_acts_with_it_and_trains_with_its_rounding(
    installed: Path, tmp_path: Path
) -> None:
    run = TrainingRun.start(
        tmp_path / "run",
        *("--scheme", "on-grid", "--max-environment-steps", "6000", "--target-return", "501", "--seed", "1"),
        *("--learner.quantization-aware-after", "0.0", "--no-energy.enabled"),
    )
    code, printed = run.finish()
    assert code == 3, printed
    summary = run.summary()
    assert summary["transitions_by_scheme"]["on-grid"] > 3000
    assert summary["evaluation"]["scheme"] == "on-grid"
    assert summary["quantization_aware_since"] is not None
    assert "torso.0" in (run.directory / "logs" / "learner.log").read_text()
    again = actorq("evaluate", str(run.directory), "--episodes", "2", "--scheme", "on-grid")
    assert again.returncode == 0, again.stderr
    assert " on-grid " in again.stdout


def test_a_run_acts_with_the_scheme_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "docs/how-to/scheme.md"
    (module,), (project,) = blocks("python", page), blocks("toml", page)
    (entry_points,) = tomllib.loads(project.code)["project"]["entry-points"].items()
    lines = [f"[{entry_points[0]}]", *(f"{name} = {value}" for name, value in entry_points[1].items())]
    install(tmp_path / "packages", "int8_tensors", module.code, "\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'packages'}:{ROOT}")
    run = TrainingRun.start(
        tmp_path / "run",
        *("--scheme", "int8-tensors", "--max-environment-steps", "6000", "--target-return", "501", "--seed", "1"),
        "--no-energy.enabled",
    )
    code, printed = run.finish()
    assert code == 3, printed
    assert run.summary()["transitions_by_scheme"]["int8-tensors"] > 3000
    formats = {}
    for scheme in ("int8", "int8-tensors"):
        exported = actorq("export", str(run.directory), "--scheme", scheme, "-o", str(tmp_path / f"{scheme}.onnx"))
        assert exported.returncode == 0, exported.stderr
        layers = json.loads((tmp_path / f"{scheme}.json").read_text("utf-8"))["fidelity"]["layers"]
        formats[scheme] = {layer["name"]: layer["weights"] for layer in layers}
    assert formats["int8"]["torso.2"] == "int8 per channel"
    assert formats["int8-tensors"]["torso.2"] == "int8 per tensor"


def test_the_refusal_of_an_unknown_scheme_lists_the_outside_schemes(installed: Path) -> None:
    result = actorq("train", "--scheme", "on-gird")
    assert result.returncode == 2
    assert re.search("int4, .*on-grid, .*auto, .*got 'on-gird'", result.stderr)
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("missing", "no_such_module:Scheme .*ModuleNotFoundError"),
        ("unfinished", "own_scheme:Unfinished .*ZeroDivisionError: bits / 0"),
        ("misnamed", "own_scheme:Misnamed .*name 'misnamed' .*plan"),
    ],
)
def test_a_faulty_outside_scheme_ends_with_one_line(installed: Path, name: str, fact: str) -> None:
    result = actorq("train", "--scheme", name, "--run-directory", str(installed / "run"))
    assert result.returncode == 2
    assert re.match(f"error: .*{name}: {fact}", result.stderr), result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (installed / "run").exists()


def test_an_outside_scheme_does_not_replace_a_built_in_one(installed: Path) -> None:
    script = "from actorq.quantization.schemes import scheme_named\nprint(scheme_named('int8').plan.__module__)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "actorq.quantization.schemes.int8"
