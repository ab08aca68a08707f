"""Exploration of environments, with fixed generators and policies whose outputs are known."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actor_service.acting.behaviors import behavior_policy
from actor_service.acting.exploration import ContinuousNoise, EpsilonGreedy
from actor_service.policies.policy import OnnxPolicy
from actorq.domain.columns import GREEDY_ACTIONS
from actorq.domain.policy import Policy
from actorq.domain.signature import Role
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import Exploration
from tests.actor_service.actor_policies import constant_policy, noisy_policy

OBSERVATIONS = ArraySpec((4,), "float32")
DISCRETE = EnvironmentSpec("Any-v0", OBSERVATIONS, ArraySpec((), "int64"), sizes=(4,))
# Halves of the ranges: 2 and 0.5.
CONTINUOUS = EnvironmentSpec("Any-v0", OBSERVATIONS, ArraySpec((2,), "float32", (-2.0, 0.0), (2.0, 1.0)), ())
VALUES = [0.0, 3.0, 1.0, 2.0]


def taken(
    spec: EnvironmentSpec, policy: Policy, exploration: Exploration, steps: int = 4000, seed: int = 1
) -> NDArray[Any]:
    """The actions of so many steps, [T, N, ...], always at an observation of zeros."""
    count = len(exploration.epsilons)
    loaded = OnnxPolicy(policy, OBSERVATIONS, count)
    explore = behavior_policy(spec, exploration, count, np.random.default_rng(seed))
    observations = np.zeros((count, 4), np.float32)
    actions = [explore(loaded, observations).copy() for _ in range(steps)]
    assert actions[0].dtype == spec.actions.dtype
    assert actions[0].shape == (count, *spec.actions.shape)
    return np.array(actions)


def rates(epsilons: tuple[float, ...], steps: int = 8000, random_steps: int = 0) -> list[list[float]]:
    """The share of each action in each environment."""
    exploration = Exploration(epsilons, (0.0,) * len(epsilons), random_steps)
    columns = taken(DISCRETE, constant_policy(VALUES), exploration, steps).T
    return [list(np.bincount(column, minlength=4) / steps) for column in columns]


def test_without_epsilon_the_best_action_is_taken() -> None:
    assert rates((0.0, 0.0), steps=500) == [[0, 1, 0, 0]] * 2


def test_with_epsilon_1_all_actions_are_equally_likely() -> None:
    np.testing.assert_allclose(rates((1.0,)), [[0.25] * 4], atol=0.015)


def test_every_environment_has_a_rate_of_its_own() -> None:
    lazy, keen = rates((0.1, 0.8))
    np.testing.assert_allclose(lazy, [0.025, 0.925, 0.025, 0.025], atol=0.01)
    np.testing.assert_allclose(keen, [0.2, 0.4, 0.2, 0.2], atol=0.015)


@pytest.mark.parametrize(
    ("spec", "policy"), [(DISCRETE, constant_policy(VALUES)), (CONTINUOUS, constant_policy([0.0, 0.5]))]
)
def test_actions_follow_the_generator(spec: EnvironmentSpec, policy: Policy) -> None:
    exploration = Exploration((0.5, 0.5), (0.2, 0.4), random_steps=5)
    one, same, other = (taken(spec, policy, exploration, 400, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_gaussian_noise_is_in_halves_of_each_range() -> None:
    exploration = Exploration((0.0,) * 2, (0.1, 0.2))
    actions = taken(CONTINUOUS, constant_policy([0.5, 0.5]), exploration)
    np.testing.assert_allclose(actions.mean(axis=0), [[0.5, 0.5]] * 2, atol=0.02)
    np.testing.assert_allclose(actions.std(axis=0), [[0.2, 0.05], [0.4, 0.1]], rtol=0.05)
    # Each component and each environment has its own.
    assert np.abs(np.corrcoef(actions.reshape(len(actions), 4).T) - np.eye(4)).max() < 0.06


def test_actions_stay_within_their_bounds() -> None:
    actions = taken(CONTINUOUS, constant_policy([1.9, 0.01]), Exploration((0.0,), (0.5,)))
    low, high = CONTINUOUS.actions.bounds()
    assert (actions >= low).all()
    assert (actions <= high).all()
    assert (actions == high).any()
    assert (actions == low).any()


def test_without_noise_the_policy_acts() -> None:
    actions = taken(CONTINUOUS, constant_policy([0.25, 0.75]), Exploration((0.0,), (0.0,)), steps=200)
    np.testing.assert_array_equal(actions, np.broadcast_to(np.array([0.25, 0.75], np.float32), actions.shape))


def test_a_stochastic_policy_is_given_standard_noise_and_no_other() -> None:
    wide = EnvironmentSpec("Any-v0", OBSERVATIONS, ArraySpec((2,), "float32", (-100.0,), (100.0,)), ())
    actions = taken(wide, noisy_policy(4, 2), Exploration((0.0,), (0.2,)))
    np.testing.assert_allclose(actions.mean(axis=0), np.zeros((1, 2)), atol=0.06)
    np.testing.assert_allclose(actions.std(axis=0), np.ones((1, 2)), rtol=0.05)


def test_at_first_actions_are_uniformly_random() -> None:
    np.testing.assert_allclose(rates((0.0,), steps=8000, random_steps=8000), [[0.25] * 4], atol=0.015)
    actions = taken(CONTINUOUS, constant_policy([0.0, 0.5]), Exploration((0.0,), (0.0,), random_steps=3000), 3001)
    np.testing.assert_allclose(actions[:3000].min(axis=0), [[-2.0, 0.0]], atol=0.02)
    np.testing.assert_allclose(actions[:3000].max(axis=0), [[2.0, 1.0]], atol=0.02)
    np.testing.assert_allclose(actions[:3000].mean(axis=0), [[0.0, 0.5]], atol=0.08)
    np.testing.assert_array_equal(actions[3000], [[0.0, 0.5]])


def test_the_kind_of_actions_selects_the_exploration() -> None:
    exploration = Exploration((0.1,), (0.1,))
    assert isinstance(behavior_policy(DISCRETE, exploration, 1, np.random.default_rng(0)), EpsilonGreedy)
    assert isinstance(behavior_policy(CONTINUOUS, exploration, 1, np.random.default_rng(0)), ContinuousNoise)


def told(policy: Policy, exploration: Exploration, steps: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The actions, and the actions without noise, [T, N, 2] each, at an observation of zeros."""
    loaded = OnnxPolicy(policy, OBSERVATIONS, len(exploration.noise), needs=(Role.GREEDY_ACTIONS,))
    explore = behavior_policy(
        CONTINUOUS, exploration, len(exploration.noise), np.random.default_rng(1), (GREEDY_ACTIONS,)
    )
    columns = []
    for _ in range(steps):
        actions = explore(loaded, np.zeros((len(exploration.noise), 4), np.float32)).copy()
        columns.append((actions, explore.columns[GREEDY_ACTIONS].copy()))
    taken, greedy = zip(*columns, strict=True)
    return np.array(taken), np.array(greedy)


@pytest.mark.parametrize(
    ("policy", "without_noise"),
    [
        (constant_policy([0.25, 0.75]), [0.25, 0.75]),
        (constant_policy([-2.1, 1.05]), [-2.0, 1.0]),
        (noisy_policy(4, 2, greedy=True), [0.0, 0.0]),
    ],
    ids=["deterministic", "out of bounds", "takes_noise"],
)
def test_actions_without_noise_are_in_the_columns_on_demand(policy: Policy, without_noise: list[float]) -> None:
    actions, greedy = told(policy, Exploration((0.0,) * 2, (0.2,) * 2), 100)
    np.testing.assert_array_equal(greedy, np.broadcast_to(np.array(without_noise, np.float32), (100, 2, 2)))
    assert not np.array_equal(actions, greedy)
    # Without a request, the column is missing and the actions are the same.
    unasked = Exploration((0.0,) * 2, (0.2,) * 2)
    np.testing.assert_array_equal(taken(CONTINUOUS, policy, unasked, steps=100), actions)
    assert not behavior_policy(CONTINUOUS, unasked, 2, np.random.default_rng(0)).columns


def test_random_actions_equal_the_column_of_actions_without_noise() -> None:
    exploration = Exploration((0.0,), (0.2,), random_steps=50)
    actions, greedy = told(constant_policy([0.25, 0.75]), exploration, 51)
    np.testing.assert_array_equal(greedy[:50], actions[:50])
    np.testing.assert_array_equal(greedy[50], [[0.25, 0.75]])


def test_discrete_actions_have_no_column_of_greedy_actions() -> None:
    exploration = Exploration((0.1,), (0.1,))
    assert not behavior_policy(DISCRETE, exploration, 1, np.random.default_rng(0), (GREEDY_ACTIONS,)).columns


def test_correlated_noise_has_the_same_distribution_and_the_asked_correlation() -> None:
    """Also across the rows that are drawn at once, and in each component and environment on its own."""
    exploration = Exploration((0.0,) * 2, (0.1, 0.2), correlation=0.6)
    actions = taken(CONTINUOUS, constant_policy([0.0, 0.5]), exploration, 40_000)
    noise = (actions - actions.mean(axis=0)) / ([[0.2, 0.05], [0.4, 0.1]])
    np.testing.assert_allclose(noise.std(axis=0), 1.0, rtol=0.05)
    for lag in (1, 2, 5):
        correlations = (noise[lag:] * noise[:-lag]).mean(axis=0)
        np.testing.assert_allclose(correlations, 0.6**lag, atol=0.04)
    across = noise.reshape(-1, 4)
    assert np.abs(across.T @ across / len(across) - np.eye(4)).max() < 0.06
    edges = np.arange(128, len(noise), 128)
    np.testing.assert_allclose((noise[edges] * noise[edges - 1]).mean(), 0.6, atol=0.1)


def test_correlated_noise_is_the_input_of_a_stochastic_policy() -> None:
    exploration = Exploration((0.0,), (0.0,), correlation=0.9)
    actions = taken(CONTINUOUS, noisy_policy(4, 2), exploration, 4000)
    changes = np.abs(np.diff(actions, axis=0)).mean()
    independent = taken(CONTINUOUS, noisy_policy(4, 2), Exploration((0.0,), (0.0,)), 4000)
    assert changes < 0.6 * np.abs(np.diff(independent, axis=0)).mean()
