"""Ratios, intervals and bands."""

import math

import numpy as np
import pytest

from actorq.errors import InvalidInputError
from actorq_apps.comparison.figures import figures_of
from actorq_apps.comparison.intervals import band, ratio
from actorq_apps.comparison.schedule import ScheduledRun, Variant
from tests.actorq_apps.comparison.comparison_parts import comparison, run, summary


def test_a_ratio_is_the_geometric_mean_over_seeds_with_an_interval() -> None:
    found = ratio({1: 2.0, 2: 8.0, 3: 4.0}, {1: 1.0, 2: 1.0, 3: 1.0})
    assert found is not None
    assert found.value == pytest.approx(4.0)
    assert found.low is not None
    assert found.high is not None
    assert 2.0 <= found.low < 4.0 < found.high <= 8.0
    assert found == ratio({1: 2.0, 2: 8.0, 3: 4.0}, {1: 1.0, 2: 1.0, 3: 1.0})


def test_compares_each_seed_with_itself() -> None:
    # A machine that was three times slower in the second round changes no ratio.
    found = ratio({1: 30.0, 2: 10.0}, {1: 15.0, 2: 5.0})
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_one_seed_has_no_interval() -> None:
    found = ratio({1: 3.0}, {1: 2.0})
    assert found is not None
    assert found.value == pytest.approx(1.5)
    assert found.low is found.high is None


def test_leaves_out_and_counts_seeds_without_a_value() -> None:
    found = ratio({1: 3.0, 2: None, 3: 2.0}, {1: 1.0, 2: 1.0, 3: None})
    assert found is not None
    assert found.value == pytest.approx(3.0)
    assert (found.seeds, found.runs) == (1, 3)
    assert ratio({1: None}, {1: 2.0}) is None


def test_a_band_is_over_seeds_and_keeps_the_last_value_of_a_run_that_is_over() -> None:
    found = band([[(0.0, 0.0), (10.0, 10.0)], [(2.0, 20.0), (20.0, 20.0)]])
    assert found is not None
    assert (found.x[0], found.x[-1]) == (2.0, 20.0)
    assert (found.low[0], found.mean[0], found.high[0]) == pytest.approx((2.0, 11.0, 20.0))
    assert (found.low[-1], found.mean[-1]) == pytest.approx((10.0, 15.0))
    assert band([[], []]) is None


def test_times_leave_out_the_start_of_the_processes() -> None:
    figures = run("int8", 1, speed=200.0)
    assert (figures.startup_s, figures.seconds, figures.steps_per_s) == (5.0, 20.0, 200.0)
    assert figures.to_target is not None
    assert (figures.to_target.seconds, figures.to_target.steps) == (20.0, 4_000)
    assert figures.starved_share == pytest.approx(0.25)
    assert run("int8", 1, returns=(100.0, 474.0)).to_target is None


@pytest.mark.parametrize(("share", "who"), [(0.0, "learner"), (0.05, "learner"), (0.3, "both"), (0.5, "actors")])
def test_the_share_of_starved_time_determines_the_limit(share: float, who: str) -> None:
    assert run("int8", 1, starved_s=20.0 * share).limit == who


def test_a_summary_of_an_earlier_version_is_refused() -> None:
    old = {name: value for name, value in summary().items() if name != "first_transition_s"}
    with pytest.raises(InvalidInputError, match=r"int8-seed1.*'first_transition_s'"):
        figures_of(ScheduledRun(Variant("int8"), 1), old, None)


def test_ratios_above_one_are_better_and_stay_within_a_cell() -> None:
    runs = [
        run(scheme, seed, cell=cell, speed=speed)
        for seed in (1, 2)
        for cell, scheme, speed in (("3", "fp32", 50.0), ("3", "int8", 100.0), ("5", "fp32", 10.0), ("5", "int8", 40.0))
    ]
    sides = {side.variant.name: side for side in comparison(*runs).sides}
    found = {name: comparison(*runs).ratios(side) for name, side in sides.items()}
    assert found["fp32, dqn.n-step 3"] == ()
    for name, expected in (("int8, dqn.n-step 3", 2.0), ("int8, dqn.n-step 5", 4.0)):
        (ratios,) = found[name]
        assert ratios.baseline == "fp32"
        for each in (ratios.throughput, ratios.energy, ratios.carbon):
            assert each is not None
            assert each.value == pytest.approx(expected)
        assert ratios.time_to_target is not None
        assert ratios.time_to_target.value == pytest.approx(1.0)


def test_torch_is_a_baseline_only() -> None:
    sides = comparison(run("torch", 1, speed=10.0), run("fp32", 1, speed=30.0), run("int8", 1, speed=60.0))
    found = {side.variant.scheme: [each.baseline for each in sides.ratios(side)] for side in sides.sides}
    assert found == {"torch": [], "fp32": ["torch"], "int8": ["fp32", "torch"]}


def test_a_run_without_energy_has_no_ratio_of_it() -> None:
    energy = {"kwh": 0.0, "co2_kg": 0.0, "method": "not measured", "per_service": {}}
    sides = comparison(run("fp32", 1, energy=energy), run("int8", 1, energy=energy))
    (ratios,) = sides.ratios(sides.sides[1])
    assert (ratios.energy, ratios.carbon, ratios.actor_energy) == (None, None, None)


def test_bands_have_no_holes() -> None:
    rng = np.random.default_rng(0)
    curves = [[(float(x), float(rng.normal())) for x in np.sort(rng.random(9))] for _ in range(4)]
    found = band(curves)
    assert found is not None
    assert all(math.isfinite(value) for value in (*found.mean, *found.low, *found.high))
    assert (found.low <= found.mean).all()
    assert (found.mean <= found.high).all()
