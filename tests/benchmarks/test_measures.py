"""What benchmarks measure by: errors of policies, calls that take turns, ratios of pairs, bytes and memory."""

from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actor_service.policies.policy import load_policy
from actorq.errors import InvalidInputError
from benchmarks.policies import as_policy, checkpoint_of, emit, vector_network
from benchmarks.policy.fidelity import compare
from benchmarks.policy.inference_timing import Timing, tight
from benchmarks.policy.sparse_policy_bytes import forms, mask_once, sizes, values_only
from benchmarks.policy.swap import PATCHED, REFERENCE, summarize
from benchmarks.policy.swap_paths import Stopwatch
from benchmarks.quantize.__main__ import relative_errors
from benchmarks.scale.autoscaler import Autoscaler
from benchmarks.scale.load import growth
from benchmarks.speedup.start import first_action
from benchmarks.speedup.torch_policy import TOLERANCE, TorchPolicy, difference


class Clock:
    """A clock that calls move by their own seconds, and the order in which they came."""

    def __init__(self) -> None:
        self.now, self.order = 0.0, ""

    def call(self, name: str, seconds: float) -> None:
        self.order += name
        self.now += seconds


def test_errors_of_actions_are_relative_to_their_spans_and_agreement_is_of_best_actions() -> None:
    expected = np.array([[0.0, 10.0], [1.0, 30.0]])
    got = expected + np.array([[0.1, 0.0], [0.0, 2.0]])
    errors = compare(got, expected, False, (1.0, 20.0))
    assert (errors.mean_error, errors.max_error) == pytest.approx((0.05, 0.1))
    assert compare(got, expected, False, ()).max_error == pytest.approx(2.0 / 30.0)
    values = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [0.0, 3.0]])
    # In the second row the other action is taken, which is worth 1 less, of a range of 3.
    errors = compare(values[[0, 0, 2, 3]], values, True, ())
    assert (errors.agreement, errors.lost_value) == pytest.approx((0.75, 1 / 3))
    expected = np.array([[0.0, 400.0], [1.0, 404.0]])
    assert relative_errors(expected, expected + 1, discrete=False).tolist() == [[1.0, 0.25], [1.0, 0.25]]
    assert relative_errors(expected, expected + 1, discrete=True).max() == 1 / 404


def test_slices_of_calls_are_equally_long_and_take_turns() -> None:
    clock = Clock()
    calls = {"s": lambda: clock.call("s", 0.004), "f": lambda: clock.call("f", 0.001)}
    timings = tight(calls, repeats=2, slice_s=0.008, clock=lambda: clock.now)
    assert {name: timing.median for name, timing in timings.items()} == pytest.approx({"s": 4000, "f": 1000})
    assert clock.order.endswith("ss" + 16 * "f" + "ss")
    assert Timing.of([3.0, 1.0, 2.0]) == Timing(2.0, 1.0, 3.0)


def test_a_stage_of_a_swap_does_not_count_what_stages_inside_of_it_take() -> None:
    clock = Clock()
    owner = SimpleNamespace(inner=lambda: clock.call("i", 2.0))
    watch = Stopwatch(lambda: clock.now)
    with watch.calls(owner, "inner", "inside"), watch.stage("outside"):
        clock.now += 1.5
        owner.inner()
        owner.inner()
    assert watch.seconds == {"inside": 4.0, "outside": 1.5}


def test_ratios_compare_swaps_of_the_same_repeat() -> None:
    swaps = {
        REFERENCE: [{"export": 100.0, "quantize": 20.0}, {"export": 80.0, "quantize": 10.0}],
        PATCHED: [{"quantize": 14.0}, {"quantize": 14.0}],
        "actorq int8": [{"quantize": 1.0, "gate": 5.0}, {"quantize": 4.0, "gate": 5.0}],
    }
    ours = summarize(swaps)["actorq int8"]
    assert (ours["total_ms"], ours["stages_ms"]) == (7.5, {"gate": 5.0, "quantize": 2.5})
    assert ours["ratio"] == {"median": 105.0 / 7.5, "low": 10.0, "high": 20.0}
    assert ours["ratio_to_kept"] == {"median": 14.0 / 7.5, "low": 14.0 / 9.0, "high": 14.0 / 6.0}


def test_every_form_of_sparse_bytes_gives_back_what_was_written_and_a_mask_counts_once() -> None:
    rng, ways = np.random.default_rng(0), forms()
    first = (rng.integers(1, 256, 4096) * (rng.random(4096) < 0.1)).astype(np.uint8)
    data = bytes(first)
    assert all(form.read(form.write(data), len(data)) == data for form in ways.values() if form.read is not None)
    # Starts of rows, then a column and a value for each byte that is not 0.
    assert sizes(data, ways)["CSR"] == 4 * len(data) // 256 + 2 * np.count_nonzero(first)
    more = first.copy()
    more[np.flatnonzero(first == 0)[:5]] = 9
    assert mask_once([data, data]) == values_only(data)
    assert mask_once([data, bytes(more)]) == len(ways["packed"].write(bytes(more)))


def test_memory_grows_by_the_last_quarter_over_the_second() -> None:
    resident = [10, 50, 100, 100, 100, 100, 110, 110]
    assert growth([(float(at), each) for at, each in enumerate(resident)]) == pytest.approx(0.1)


def test_an_autoscaler_doubles_at_most_and_goes_down_after_a_while() -> None:
    autoscaler = Autoscaler(minimum=1, maximum=100, stabilization_s=60.0)
    up = [autoscaler.decide(now, 50, replicas) for now, replicas in ((0.0, 1), (15.0, 20), (30.0, 46))]
    assert up == [5, 40, 46]
    assert [autoscaler.decide(now, 10, 50) for now in (45.0, 75.0, 90.0, 105.0)] == [50, 50, 46, 10]


def test_the_first_int8_action_of_all_actors_counts(tmp_path: Path) -> None:
    line = "2026-01-02T03:04:{} {} INFO actor_service.roles.explorer: first action, with policy version {}\n"
    for name, at, policy in (
        ("actor-0", "09.500", "1 int8"),
        ("actor-1", "07.250", "2 int8"),
        ("actor-2", "06.000", "1 fp32"),
    ):
        (tmp_path / f"{name}.log").write_text(line.format(at, name, policy), encoding="utf-8")
    assert first_action(tmp_path, datetime(2026, 1, 2, 3, 4, 5).timestamp()) == pytest.approx(2.25)


def test_the_baseline_in_pytorch_computes_what_onnx_runtime_does_and_in_fp32_only() -> None:
    network = vector_network("mlp", 32)

    def policy(seed: int, scheme: str = "fp32") -> Any:
        graph, checkpoint = checkpoint_of(vector_network("mlp", 32, seed))
        return as_policy(graph, checkpoint, scheme, emit(graph, checkpoint, scheme))

    ours, rows = TorchPolicy(policy(1), network.spec, 8), network.calibration[:8]
    same, other = (difference(ours, load_policy(policy(seed), network.spec, 8), rows) for seed in (1, 2))
    assert same <= TOLERANCE < other
    with pytest.raises(InvalidInputError, match="must be in fp32, got int8"):
        TorchPolicy(policy(1, "int8"), network.spec, 8)
