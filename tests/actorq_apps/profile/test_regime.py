"""The regime of `--preset auto`: the balance of learner and actors, within its bounds."""

from dataclasses import replace

import pytest

from actorq_apps.profile.model import ActorCosts, Costs, LearnerCosts, Limit, Workload, predict
from actorq_apps.profile.regime import choose

BATCH = 256
WORK = Workload(updates_per_step=1.0, updates_per_version=32, updates_per_evaluation=1_000)
# 200 updates/s, and 2,000 steps/s of an actor.
COSTS = Costs(ActorCosts(500e-6, 0.0), LearnerCosts(5e-3, 5e-3, 0.0, 0.0), 0.0)


def with_step_of(step_s: float) -> Costs:
    return replace(COSTS, actor=ActorCosts(step_s, 0.0))


def test_learner_and_actor_take_equal_time_on_two_cores() -> None:
    regime = choose(COSTS, WORK, BATCH, cores=2)
    # Numbers of the grid differ by a factor of 1.09.
    assert regime.steps_per_update == pytest.approx(2_000 / 200, rel=0.09)
    assert (regime.updates_per_s, regime.steps_per_s) == pytest.approx((200, 2_000), rel=0.01)
    assert regime.samples_per_insert == pytest.approx(BATCH / regime.steps_per_update, rel=0.01)


@pytest.mark.parametrize(
    ("step_s", "steps_per_update", "limit"), [(0.1, 1.0, Limit.ACTORS), (1e-6, 16.0, Limit.LEARNER)]
)
def test_the_ratio_has_bounds_and_then_one_side_waits(step_s: float, steps_per_update: float, limit: Limit) -> None:
    regime = choose(with_step_of(step_s), WORK, BATCH, cores=2, actors=1)
    assert regime.steps_per_update == pytest.approx(steps_per_update)
    assert regime.prediction.limit is limit


def test_a_machine_with_more_cores_has_more_actors_and_fewer_updates_per_step() -> None:
    small, large = (choose(with_step_of(1e-3), WORK, BATCH, cores) for cores in (2, 5))
    assert (small.prediction.actors, large.prediction.actors) == (1, 3)
    assert large.steps_per_update > 2 * small.steps_per_update


def test_given_numbers_are_kept_and_predicted() -> None:
    regime = choose(COSTS, WORK, BATCH, 4, samples_per_insert=256.0, actors=3)
    assert (regime.samples_per_insert, regime.steps_per_update) == (256.0, 1.0)
    assert regime.prediction == predict(COSTS, WORK, 3, 4)
    assert regime.prediction.limit is Limit.LEARNER


@pytest.mark.parametrize("cores", [1.0, 2.0, 8.0])
def test_slower_steps_mean_more_updates_per_step(cores: float) -> None:
    ratios = [choose(with_step_of(250e-6 * factor), WORK, BATCH, cores).steps_per_update for factor in (1, 4, 16)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > ratios[-1]
