"""The inference benchmark times its calls in turn and judges auto by a timing of its own."""

from pathlib import Path

import numpy as np
import pytest

from actor_service.policies.policy import OnnxPolicy
from actorq.arithmetic import Arithmetic
from actorq.domain.policy import SIGNED, UNSIGNED
from actorq.weightencoding import in_weight_encoding, weight_encoding_of
from benchmarks.policies import vector_network
from benchmarks.policy.figures import Cell
from benchmarks.policy.inference import SEVEN_BITS, compared, emitted, targets
from benchmarks.policy.inference_plot import plot
from benchmarks.policy.inference_timing import Timing, cold, tight
from benchmarks.processor import DOT_PRODUCT, NO_DOT_PRODUCT


class Work:
    """Calls that move a clock by their own seconds, and the order in which they came."""

    def __init__(self, **seconds: float) -> None:
        self.now = 0.0
        self.order: list[str] = []
        self.calls = {name: self._call(name, length) for name, length in seconds.items()}

    def clock(self) -> float:
        return self.now

    def _call(self, name: str, length: float):  # type: ignore[no-untyped-def]
        def call() -> None:
            self.order.append(name)
            self.now += length

        return call


def test_slices_are_equally_long_and_take_turns() -> None:
    work = Work(slow=0.004, fast=0.001)
    timings = tight(work.calls, repeats=2, slice_s=0.008, clock=work.clock)
    assert timings["slow"].median == pytest.approx(4000)
    assert timings["fast"].median == pytest.approx(1000)
    measured = work.order[1 + 4 :]
    assert measured == ["slow"] * 2 + ["fast"] * 8 + ["fast"] * 8 + ["slow"] * 2


def test_cold_calls_are_timed_one_by_one() -> None:
    work = Work(slow=0.004, fast=0.001)
    timings = cold(work.calls, repeats=3, evict_bytes=64, clock=work.clock)
    assert {name: timing.median for name, timing in timings.items()} == pytest.approx({"slow": 4000, "fast": 1000})
    assert work.order == ["slow", "fast", "fast", "slow", "slow", "fast"]


def test_a_timing_keeps_the_spread() -> None:
    assert Timing.of([3.0, 1.0, 2.0]) == Timing(2.0, 1.0, 3.0)


def cell(network: str, batch: int, regret: float = 0.0, **microseconds: float) -> Cell:
    timings = {name.replace("_", "-"): Timing(value, value, value) for name, value in microseconds.items()}
    return Cell(network, batch, timings, auto="int8", regret=regret)


def test_targets_are_stated_for_the_cells_that_have_them() -> None:
    cells = [
        cell("mlp 2048", 1, fp32=800, int8=100, int4=60),
        cell("mlp 256", 32, fp32=45, int8=30),
        cell("mlp 64", 1, regret=0.2, fp32=5, int8=6),
        cell("cnn", 8, fp32=900, int8_static=400),
    ]
    found = targets(cells)
    assert [round(target.measured, 3) for target in found] == [8.0, 1.5, 2.25, 1.667, 8.0, 20.0]
    assert [target.met for target in found] == [True, False, True, True, True, False]
    assert [target.needs for target in found] == [DOT_PRODUCT] * 3 + ["", NO_DOT_PRODUCT, ""]
    assert "mlp 64, batch 1" in found[-1].name


def test_the_other_encoding_is_timed_where_it_is_exact_and_seven_bits_where_it_is_not() -> None:
    network = vector_network("mlp", 32)
    policies = emitted(network)
    both = compared(policies, Arithmetic())
    assert {name: weight_encoding_of(policy.model) for name, policy in both.items()} == {
        "int8, unsigned weights": UNSIGNED
    }
    found = compared(policies, Arithmetic((UNSIGNED,)))
    assert list(found) == [SEVEN_BITS]
    assert weight_encoding_of(found[SEVEN_BITS].model) == SIGNED
    assert compared({}, Arithmetic()) == {}


def test_weights_of_seven_bits_are_nearly_those_of_eight() -> None:
    network = vector_network("mlp", 32)
    policies = emitted(network)
    seven = compared(policies, Arithmetic((UNSIGNED,)))[SEVEN_BITS]
    assert seven.model != in_weight_encoding(policies["int8"], SIGNED).model
    rows = network.calibration[:8]
    expected, got = (OnnxPolicy(each, network.spec.observations, 8)(rows) for each in (policies["int8"], seven))
    assert np.abs(got - expected).max() <= 0.1 * np.ptp(expected)


def test_the_plot_has_a_panel_for_each_batch(tmp_path: Path) -> None:
    networks = ("mlp 64", "mlp 128", "d4pg 256", "cnn")
    cells = [cell(network, batch, torch=9, fp32=5, int8=4) for network in networks for batch in (1, 8, 32, 64)]
    plot(cells, tmp_path / "inference.png")
    assert (tmp_path / "inference.png").stat().st_size > 10_000
