"""The swap benchmark's paths end in sessions of the same policy, and its figures are medians of what was timed."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.policies import vector_network
from benchmarks.policy.swap import KEPT, REFERENCE, summarize, targets
from benchmarks.policy.swap_paths import STAGES, ActorQPath, ReferencePath, Stopwatch, renew
from benchmarks.policy.swap_plot import plot


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_stage_does_not_count_what_stages_inside_of_it_take() -> None:
    clock = Clock()

    def inner() -> str:
        clock.now += 2.0
        return "result"

    owner = SimpleNamespace(inner=inner)
    watch = Stopwatch(clock)
    with watch.calls(owner, "inner", "inside"), watch.stage("outside"):
        clock.now += 1.0
        assert owner.inner() == "result"
        assert owner.inner() == "result"
        clock.now += 0.5
    assert watch.seconds == {"inside": 4.0, "outside": 1.5}
    assert owner.inner is inner


def test_every_stage_of_our_path_is_timed_and_the_gate_is_one_of_them() -> None:
    seconds = ActorQPath(vector_network("mlp", 16), "int8").swap()
    assert set(seconds) == {*STAGES} - {"export"}
    assert all(seconds[stage] > 0 for stage in {*STAGES} - {"export", "calibrate"})


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript", "patched"])
def test_the_reference_paths_quantize_the_weights_as_they_are_now(exporter: str) -> None:
    network = vector_network("mlp", 16)
    path = ReferencePath(network, exporter)
    seconds = path.swap()
    assert set(seconds) == {"export", "quantize", "create session", "run once"}
    assert path.operators.count("MatMulInteger") == 4
    before = path.outputs
    renew(network.module, torch.Generator().manual_seed(0))
    path.swap()
    with torch.inference_mode():
        expected = network.module(torch.from_numpy(network.calibration[:1])).numpy()
    assert abs(path.outputs - expected).max() < 0.05
    assert (path.outputs != before).any()


def test_ratios_compare_swaps_of_the_same_repeat(tmp_path: Path) -> None:
    swaps = {
        REFERENCE: [{"export": 100.0, "quantize": 20.0}, {"export": 80.0, "quantize": 10.0}],
        KEPT: [{"quantize": 14.0}, {"quantize": 14.0}],
        "actorq int8": [{"quantize": 1.0, "gate": 5.0}, {"quantize": 4.0, "gate": 5.0}],
    }
    figures = summarize(swaps)
    ours = figures["actorq int8"]
    assert ours["total_ms"] == 7.5
    assert ours["stages_ms"] == {"gate": 5.0, "quantize": 2.5}
    assert ours["ratio"] == {"median": 105.0 / 7.5, "low": 10.0, "high": 20.0}
    assert ours["ratio_to_kept"] == {"median": 14.0 / 7.5, "low": 14.0 / 9.0, "high": 14.0 / 6.0}
    plot({64: figures, 128: figures}, ("actorq int8", REFERENCE), tmp_path / "swap.png")
    assert (tmp_path / "swap.png").stat().st_size > 5_000


def test_a_swap_is_held_against_the_naive_export_and_against_the_kept_one() -> None:
    swaps = {REFERENCE: [{"export": 500.0}], KEPT: [{"quantize": 4.0}], "actorq int8": [{"quantize": 2.0}]}
    assert [(target.measured, target.met) for target in targets({256: summarize(swaps)})] == [
        (250.0, True),
        (2.0, True),
    ]
    # The gate is what makes the difference here.
    swaps["actorq int8"] = [{"quantize": 2.0, "gate": 1.0}]
    naive, kept = targets({256: summarize(swaps)})
    assert (naive.met, kept.met) == (True, False)
    assert "kept export" in kept.name
