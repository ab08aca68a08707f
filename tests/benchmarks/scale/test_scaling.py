"""The simulation of scaling, small: it settles, does not swing, and leaves nobody starving."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale.autoscaler import Autoscaler, Pods
from benchmarks.scale.scaling import simulate
from benchmarks.scale.scaling_plot import plot


@pytest.mark.parametrize("needed", [1, 12])
def test_the_replicas_follow_what_the_learner_needs(needed: int, tmp_path: Path) -> None:
    trace, phases = simulate(needed, half_s=400.0)
    for phase in phases:
        assert phase.settled_at >= phase.needed
        assert phase.settled_at <= 1.25 * phase.needed + 1
        assert phase.settled_polls <= 24
        assert phase.overshoot <= 0.1
        assert phase.changes <= 2
        assert phase.starved <= 0.05
    plot({needed: trace}, tmp_path / "images" / "scaling.png")
    assert (tmp_path / "images" / "scaling.png").stat().st_size > 10_000


def test_an_autoscaler_doubles_at_most_and_ignores_a_tenth() -> None:
    autoscaler = Autoscaler(minimum=1, maximum=100)
    assert autoscaler.decide(0.0, metric=50, replicas=1) == 5
    assert autoscaler.decide(15.0, metric=50, replicas=20) == 40
    assert autoscaler.decide(30.0, metric=50, replicas=46) == 46
    assert autoscaler.decide(45.0, metric=500, replicas=60) == 100


def test_an_autoscaler_goes_down_only_when_nothing_more_was_wished_for_in_a_while() -> None:
    autoscaler = Autoscaler(minimum=1, maximum=100, stabilization_s=60.0)
    assert autoscaler.decide(0.0, metric=50, replicas=50) == 50
    assert [autoscaler.decide(now, metric=10, replicas=50) for now in (15.0, 45.0, 60.0, 75.0)] == [50, 50, 50, 10]


def test_pods_start_one_after_another_and_the_youngest_go_first() -> None:
    pods = Pods(10, start_s=(2.0, 3.0), per_s=1.0, rng=np.random.default_rng(1))
    pods.scale(3, now=0.0)
    assert [int(start) for start in pods.starts_at[:3]] == [3, 4, 5]
    pods.scale(1, now=10.0)
    assert list(np.isfinite(pods.starts_at)) == [True] + [False] * 9
