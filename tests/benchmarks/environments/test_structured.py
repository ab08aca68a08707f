"""The coded environments: what a policy of all parts, and one that is blind to a part, can have."""

from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest

from actor_service.environments import make_environments
from actorq.domain.environments import EnvironmentArguments
from benchmarks.environments.coded import KINDS, STEPS, Coded, blind
from benchmarks.environments.structured import TARGET, targets


def _right(environment: Coded) -> Any:
    """The rewarded action, or one close to it."""
    space = environment.action_space
    for _ in range(10_000):
        tried = deepcopy(environment)
        action = space.sample()
        with suppress(ValueError):
            if tried.step(action)[1] > 0.999:
                return action
    raise AssertionError(environment.kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_of_all_parts_has_every_reward(kind: str) -> None:
    environment = Coded(kind)
    environment.action_space.seed(1)
    observation, _ = environment.reset(seed=1)
    total, over = 0.0, False
    while not over:
        assert environment.observation_space.contains(observation)
        observation, reward, over, _, _ = environment.step(_right(environment))
        total += reward
    assert total == pytest.approx(STEPS, rel=1e-3)
    assert blind(kind) < TARGET < STEPS


@pytest.mark.parametrize("kind", KINDS)
def test_actors_take_its_spaces(kind: str) -> None:
    arguments = EnvironmentArguments({"kind": kind})
    environments = make_environments("benchmarks.environments.coded:Parts-v0", 2, arguments=arguments)
    spec = environments.spec
    assert spec.parts or spec.action_parts or spec.leaves or spec.choices


def test_a_run_must_reach_the_target() -> None:
    row = {"kind": "dict", "algorithm": "dqn", "seed": 1, "blind": 10.0}
    assert [target.met for target in targets({"runs": [{**row, "mean_return": each} for each in (17.9, 18.0)]})] == [
        False,
        True,
    ]
