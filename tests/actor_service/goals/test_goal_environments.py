"""Environments with goals: the position of the goals, and the rewards and successes of other goals."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from goal_environments import Line

from actor_service.environments import make_environments
from actor_service.goals.rewards import GoalRewards
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.goals import Goal
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Episode
from actorq.errors import UserError

NAMES = "goal_environments:"


def test_the_spec_says_where_the_goals_are() -> None:
    environments = make_environments(f"{NAMES}Line-v0", 2)
    assert environments.spec.goal == Goal(achieved=0, desired=1, size=1)
    assert EnvironmentSpec.from_json(environments.spec.to_json()) == environments.spec
    observations = environments.reset(1)
    step = environments.step(np.ones(2, np.int64))
    goal = environments.spec.goal
    np.testing.assert_array_equal(goal.achieved_of(step.observations), [[1], [1]])
    np.testing.assert_array_equal(goal.desired_of(step.observations), goal.desired_of(observations))


def test_environments_without_goals_have_no_goal_and_no_goal_rewards() -> None:
    for environment_id in ("CartPole-v1", "Blackjack-v1"):
        made = make_environments(environment_id, 1)
        assert (made.spec.goal, made.goal_rewards) == (None, None)
    wrapped = EnvironmentArguments(wrappers=(("gymnasium.wrappers:FlattenObservation", {}),))
    assert make_environments(f"{NAMES}Line-v0", 1, arguments=wrapped).spec.goal is None


def test_goals_of_different_shapes_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"achieved_goal .*desired_goal .*\[1\] .*\[2\]"):
        make_environments(f"{NAMES}Uneven-v0", 1)


@pytest.mark.parametrize("name", ["Line", "OneByOne", "Untold"])
def test_rewards_are_those_of_the_environment(name: str) -> None:
    rewards = make_environments(f"{NAMES}{name}-v0", 1).goal_rewards
    assert rewards is not None
    achieved, desired = np.array([[0], [1], [2]], np.float32), np.array([[0], [2], [2]], np.float32)
    for _ in range(2):
        values, terminated = rewards(achieved, desired)
        np.testing.assert_array_equal(values, np.array([0, -1, 0], np.float32))
        assert values.dtype == np.float32
        if name == "Untold":
            assert terminated is None
        else:
            np.testing.assert_array_equal(terminated, [True, False, True])


def test_goals_keep_the_shape_that_the_environment_gave_them() -> None:
    class Square(Line):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Dict({"desired_goal": gymnasium.spaces.Box(-9, 9, (2, 2))})

        def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
            return np.trace(achieved + desired, axis1=-2, axis2=-1)

        def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
            return (achieved == desired).all(axis=(-2, -1))

    square = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(GoalRewards("Square-v0", Square())(square, square)[0], [6, 22])


@pytest.mark.parametrize(
    ("name", "fact"), [("Failing", "compute_reward .*KeyError: 'speed'"), ("NotANumber", "compute_reward .*nan")]
)
def test_a_compute_reward_that_fails_is_named_with_its_environment(name: str, fact: str) -> None:
    rewards = make_environments(f"{NAMES}{name}-v0", 1).goal_rewards
    assert rewards is not None
    with pytest.raises(UserError, match=rf"{NAMES}{name}-v0: {fact}.*--hindsight\.copies 0"):
        rewards(np.zeros((2, 1), np.float32), np.zeros((2, 1), np.float32))


@pytest.mark.parametrize(("name", "successes"), [("Line", {True, False}), ("Untold", {None})])
def test_the_success_of_an_episode_is_in_its_last_info(name: str, successes: set[bool | None]) -> None:
    environments = make_environments(f"{NAMES}{name}-v0", 1)
    environments.reset(1)
    rng, episodes = np.random.default_rng(1), list[Episode]()
    for _ in range(200):
        episodes += environments.step(rng.integers(2, size=1)).episodes
    assert {each.success for each in episodes} == successes
    if None not in successes:
        # The reward is 0 at the goal, and -1 elsewhere.
        assert all(each.success == (each.episode_return > -each.length) for each in episodes)


def test_a_success_counts_where_the_batch_cuts_the_episode_at_its_limit() -> None:
    arguments = EnvironmentArguments({"length": 1000, "max_episode_steps": 2})
    environments = make_environments(f"{NAMES}Line-v0", 1, arguments=arguments)
    environments.reset(1)
    episodes = [each for action in (0, 1, 0, 0) for each in environments.step(np.array([action])).episodes]
    assert [(each.length, each.success) for each in episodes] == [(2, False)]
