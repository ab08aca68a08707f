"""A scheme of an installed package, made of one file and one entry point."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with the scheme, for all started processes."""
    packages = tmp_path / "packages"
    information = packages / "own_scheme-1.0.dist-info"
    information.mkdir(parents=True)
    (packages / "own_scheme.py").write_text(_SCHEME, "utf-8")
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-scheme\nVersion: 1.0\n", "utf-8")
    (information / "entry_points.txt").write_text(_ENTRY_POINTS, "utf-8")
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


def test_the_refusal_of_an_unknown_scheme_lists_the_outside_schemes(installed: Path) -> None:
    result = actorq("train", "--scheme", "on-gird")
    assert result.returncode == 2
    assert re.search("int4, .*on-grid, .*auto, got 'on-gird'", result.stderr)
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
