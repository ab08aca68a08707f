"""The coded environments with goals, and the verdict about runs with hindsight."""

import numpy as np
import pytest

from actor_service.environments import make_environments
from benchmarks.environments.goals import TASKS, targets
from benchmarks.environments.goals_coded import Bits, Reach


@pytest.mark.parametrize("environment", [Bits(4), Reach()], ids=lambda each: type(each).__name__)
def test_a_step_has_the_computed_reward_and_end(environment: Bits | Reach) -> None:
    environment.action_space.seed(1)
    rewards = set()
    observation, info = environment.reset(seed=1)
    for _ in range(3000):
        assert environment.observation_space.contains(observation)
        observation, reward, terminated, _, info = environment.step(environment.action_space.sample())
        goals = observation["achieved_goal"], observation["desired_goal"]
        assert reward == environment.compute_reward(*goals, {})
        assert terminated == environment.compute_terminated(*goals, {}) == info["is_success"]
        rewards.add(reward)
        if terminated:
            observation, info = environment.reset()
            assert not environment.compute_terminated(observation["achieved_goal"], observation["desired_goal"], info)
    assert rewards == {-1.0, 0.0}


@pytest.mark.parametrize("task", [task for task in TASKS if not task.requirements], ids=lambda task: task.name)
def test_actors_find_goals_and_a_time_limit(task: object) -> None:
    environments = make_environments(task.environment, 2)  # type: ignore[attr-defined]
    assert environments.spec.goal is not None
    assert environments.spec.max_episode_steps > 0
    rewards = environments.goal_rewards
    assert rewards is not None
    zeros = np.zeros((3, environments.spec.goal.size), np.float32)
    values, terminated = rewards(zeros, zeros)
    assert values.tolist() == [0, 0, 0]
    assert terminated is not None
    assert terminated.all()


def test_the_verdict_is_about_runs_with_hindsight_and_names_the_rate_without() -> None:
    row = {"task": "point", "algorithm": "sac", "seed": 1}
    found = targets({"runs": [{**row, "copies": 4, "success_rate": 0.96}, {**row, "copies": 0, "success_rate": 0.25}]})
    assert [(target.met, "without hindsight: 0.25" in target.name) for target in found] == [(True, True)]
