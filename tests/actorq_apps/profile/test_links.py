"""Costs from the counters of two windows: one with a paused learner, one with a training learner."""

from dataclasses import replace

import pytest

from actorq.config.run_config import RunConfig
from actorq_apps.profile.links import Counters, LinkFigures, short_run

# Two actors: 10 us per transition each, the learner 5 us.
PAUSED = Counters(1.0, 1.0, 100_000, 0, 0, actors_s=1.0, learner_s=0.5, quantizer_s=0.0)
# 20 versions. The learner trains 90% of the time in which it has data.
TRAINING = Counters(2.5, 0.5, 20_000, 400, 20, actors_s=0.4, learner_s=1.8, quantizer_s=0.1)
FIGURES = LinkFigures(2, PAUSED, TRAINING)


def test_growth_is_the_difference_of_each_counter() -> None:
    later = replace(PAUSED, at=3.0, steps=100_001, versions=2, actors_s=1.5)
    assert later.since(PAUSED) == Counters(2.0, 0.0, 1, 0, 2, 0.5, 0.0, 0.0)


def test_takes_the_cost_of_transitions_from_the_paused_window() -> None:
    assert FIGURES.actor_s == pytest.approx(10e-6)
    assert FIGURES.learner_s == pytest.approx(5e-6)


def test_takes_the_cost_of_updates_and_versions_from_the_training_window() -> None:
    assert FIGURES.update_s == pytest.approx((1.8 - 0.1) / 400)
    assert FIGURES.quantizer_version_s == pytest.approx(5e-3)
    # Each of the two actors gets each version.
    assert FIGURES.actor_version_s == pytest.approx((0.4 - 0.2) / 40)
    assert FIGURES.slowdown(1e-3) == 1.0


def test_with_few_versions_the_slowdown_counts_in_the_actors_steps() -> None:
    few = LinkFigures(2, PAUSED, replace(TRAINING, versions=2))
    assert few.actor_version_s is few.quantizer_version_s is None
    # 0.4 s, of which 4 ms are for versions, instead of 0.2 s.
    assert few.slowdown(1e-3) == pytest.approx(1.98)
    assert few.slowdown(1.0) == 1.0


@pytest.mark.parametrize(("learner_s", "share"), [(1.8, 0.9), (3.0, 1.0)])
def test_the_learners_share_excludes_waits_for_data(learner_s: float, share: float) -> None:
    figures = LinkFigures(2, PAUSED, replace(TRAINING, learner_s=learner_s))
    assert figures.learner_share == pytest.approx(share)


@pytest.mark.parametrize(("ratio", "expected"), [(0.25, 1000.0), (1e-6, 2.0), (2e4, 8e7)])
def test_the_paused_learner_has_room_for_the_transitions_of_the_measurement_and_hardly_more(
    ratio: float, expected: float
) -> None:
    config = RunConfig.model_validate({"rate_limiter": {"samples_per_insert": ratio, "error_buffer": 100_000.0}})
    short = short_run(config, actors=1, steps=4000.0, rollout_size=None, frame_stack=1)
    assert short.rate_limiter.error_buffer == expected
