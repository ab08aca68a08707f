"""Actions that are drawn from a policy's distribution: their frequencies, probabilities and bounds."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actor_service.acting.behaviors import behavior_policy
from actor_service.acting.sampling import CategoricalSampler, GaussianSampler
from actor_service.policies.policy import load_policy
from actorq.domain.columns import GREEDY_ACTIONS, LOG_PROBABILITIES
from actorq.domain.policy import Policy
from actorq.domain.signature import Role
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import Exploration, Sampling
from tests.actor_service.actor_policies import gaussian_policy, linear_policy, logits_policy, sampler_needs

OBSERVATIONS = ArraySpec((4,), "float32")
LOGITS = [0.5, -1.0, 2.0, 0.0]
# Halves of the ranges: 2 and 0.5. Middles: 0 and 0.5.
CONTINUOUS = EnvironmentSpec("Any-v0", OBSERVATIONS, ArraySpec((2,), "float32", (-2.0, 0.0), (2.0, 1.0)), ())
MIDDLE, HALF = np.array([0.0, 0.5]), np.array([2.0, 0.5])


def discrete(choices: int) -> EnvironmentSpec:
    return EnvironmentSpec("Any-v0", OBSERVATIONS, ArraySpec((), "int64"), sizes=(choices,))


class Drawn(NamedTuple):
    """Columns of T steps: the environments' actions, the drawn values, and their log probabilities."""

    actions: NDArray[Any]
    values: NDArray[Any]
    log_probabilities: NDArray[Any]


def drawn(
    spec: EnvironmentSpec,
    policy: Policy,
    steps: int = 2000,
    environments: int = 3,
    sampling: Sampling = "clipped",
    seed: int = 1,
    observations: NDArray[np.float32] | None = None,
) -> Drawn:
    """So many steps, at an observation of zeros by default."""
    loaded = load_policy(policy, spec, environments, sampler_needs(spec))
    explore = behavior_policy(spec, Exploration((), (), sampling=sampling), environments, np.random.default_rng(seed))
    columns, seen = explore.columns, np.zeros((environments, 4), np.float32) if observations is None else observations
    assert GREEDY_ACTIONS not in columns
    rows = []
    for _ in range(steps):
        actions = explore(loaded, seen)
        values = columns.get("actions", actions)
        rows.append((actions.copy(), values.copy(), columns[LOG_PROBABILITIES].copy()))
    found = Drawn(*(np.array(column) for column in zip(*rows, strict=True)))
    assert found.actions.dtype == found.values.dtype == spec.actions.dtype
    assert found.actions.shape == found.values.shape == (steps, environments, *spec.actions.shape)
    assert found.log_probabilities.dtype == np.float32
    assert found.log_probabilities.shape == (steps, environments)
    return found


def test_the_action_space_and_the_run_say_how_actions_are_drawn() -> None:
    rng = np.random.default_rng(0)
    for sampling in ("clipped", "squashed"):
        exploration = Exploration((0.5,), (0.5,), random_steps=9, sampling=sampling)
        assert isinstance(behavior_policy(discrete(2), exploration, 1, rng), CategoricalSampler)
        assert isinstance(behavior_policy(CONTINUOUS, exploration, 1, rng), GaussianSampler)


def test_discrete_actions_have_the_frequencies_of_the_softmax() -> None:
    expected = torch.softmax(torch.tensor(LOGITS), 0).numpy()
    actions = drawn(discrete(4), logits_policy(LOGITS), steps=20_000).actions
    for column in actions.T:
        np.testing.assert_allclose(np.bincount(column, minlength=4) / 20_000, expected, atol=0.012)
    # Each environment and each step draws for itself.
    assert np.abs(np.corrcoef(actions.T) - np.eye(3)).max() < 0.03
    assert abs(np.corrcoef(actions[1:, 0], actions[:-1, 0])[0, 1]) < 0.03


@pytest.mark.parametrize("choices", [1, 2, 18])
def test_each_environment_draws_from_its_own_row(choices: int) -> None:
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((4, choices)).astype(np.float32)
    observations = rng.standard_normal((64, 4)).astype(np.float32)
    policy = linear_policy(weights, np.zeros(choices, np.float32), output="logits")
    found = drawn(discrete(choices), policy, 4000, 64, observations=observations)
    told = torch.log_softmax(torch.from_numpy(observations @ weights), 1).numpy()
    np.testing.assert_allclose(
        found.log_probabilities, np.take_along_axis(told[None], found.actions[..., None], 2)[..., 0], atol=1e-5
    )
    frequencies = np.stack([(found.actions == action).mean(axis=0) for action in range(choices)], axis=1)
    np.testing.assert_allclose(frequencies, np.exp(told), atol=0.04)


@pytest.mark.parametrize(
    "logits",
    [[0.0, 0.0], [1e4, -1e4, 0.0], [-3e38, 3e38], [88.0, 90.0, 89.5], [-200.0, -200.0], [5.0], [0.0, -110.0]],
    ids=str,
)
def test_log_probabilities_of_discrete_actions_are_finite_and_never_above_0(logits: list[float]) -> None:
    found = drawn(discrete(len(logits)), logits_policy(logits), steps=1000)
    assert np.isfinite(found.log_probabilities).all()
    assert (found.log_probabilities <= 0).all()
    expected = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), 0).numpy()
    np.testing.assert_allclose(found.log_probabilities, expected[found.actions], atol=1e-6)
    # What is as good as impossible is not drawn.
    assert (expected[found.actions] > -100).all()


def test_gaussian_values_have_the_policys_mean_and_deviation() -> None:
    found = drawn(CONTINUOUS, gaussian_policy([0.3, -0.6], [-1.0, 0.2]), steps=20_000)
    np.testing.assert_allclose(found.values.mean(axis=0), [[0.3, -0.6]] * 3, atol=0.03)
    np.testing.assert_allclose(found.values.std(axis=0), np.exp([[-1.0, 0.2]] * 3), rtol=0.03)
    flat = found.values.reshape(20_000, 6)
    assert np.abs(np.corrcoef(flat.T) - np.eye(6)).max() < 0.03
    assert abs(np.corrcoef(flat[1:, 0], flat[:-1, 0])[0, 1]) < 0.03


@pytest.mark.parametrize("sampling", ["clipped", "squashed"])
@pytest.mark.parametrize("log_std", [[0.0, -0.5], [-20.0, 2.0], [-9.0, -9.0]], ids=str)
def test_log_probabilities_are_the_densities_of_the_drawn_values(sampling: Sampling, log_std: list[float]) -> None:
    observations = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    policy = gaussian_policy([0.3, -0.6], log_std)
    found = drawn(CONTINUOUS, policy, 500, 5, sampling, observations=observations)
    loaded = load_policy(policy, CONTINUOUS, 5, sampler_needs(CONTINUOUS))
    loaded(observations)
    log_std_64 = loaded.outputs[Role.LOG_STD].astype(float)
    noise = (found.values.astype(float) - loaded.outputs[Role.MEAN]) / np.exp(log_std_64)
    expected = (-0.5 * noise**2 - log_std_64 - 0.5 * np.log(2 * np.pi)).sum(axis=-1)
    # With a tiny deviation, the rounding of a stored value moves its density.
    np.testing.assert_allclose(found.log_probabilities, expected, rtol=2e-6, atol=2e-5)


def test_the_environments_get_clipped_actions() -> None:
    found = drawn(CONTINUOUS, gaussian_policy([0.5, 0.0], [0.0, 0.0]))
    np.testing.assert_allclose(found.actions, MIDDLE + HALF * np.clip(found.values, -1, 1), atol=1e-6)
    assert (found.actions == CONTINUOUS.actions.bounds()[1]).any(axis=(0, 1)).all()
    assert (np.abs(found.values) > 1).any()


def test_the_environments_get_squashed_actions() -> None:
    found = drawn(CONTINUOUS, gaussian_policy([0.5, 0.0], [0.0, 0.0]), sampling="squashed")
    np.testing.assert_allclose(found.actions, MIDDLE + HALF * np.tanh(found.values), atol=1e-6)


def test_clipped_and_squashed_actions_have_the_same_drawn_values() -> None:
    clipped, squashed = (
        drawn(CONTINUOUS, gaussian_policy([0.5, 0.0], [0.0, 0.0]), sampling=sampling)
        for sampling in ("clipped", "squashed")
    )
    np.testing.assert_array_equal(clipped.values, squashed.values)
    np.testing.assert_array_equal(clipped.log_probabilities, squashed.log_probabilities)


@pytest.mark.parametrize("sampling", ["clipped", "squashed"])
@pytest.mark.parametrize("bounds", [(-2.3, 1.1), (0.1, 0.3), (-1e-3, 7e5)], ids=str)
def test_rounding_takes_no_action_beyond_its_bounds(sampling: Sampling, bounds: tuple[float, float]) -> None:
    low, high = bounds
    spec = EnvironmentSpec("Any-v0", OBSERVATIONS, ArraySpec((2,), "float32", (low,), (high,)), ())
    actions = drawn(spec, gaussian_policy([0.0, 0.0], [2.0, 2.0]), sampling=sampling).actions
    assert (actions >= np.float32(low)).all()
    assert (actions <= np.float32(high)).all()
    np.testing.assert_allclose([actions.min(), actions.max()], bounds, atol=1e-4 * (high - low))


@pytest.mark.parametrize(
    ("spec", "policy"), [(discrete(4), logits_policy(LOGITS)), (CONTINUOUS, gaussian_policy([0.0, 0.0], [0.0, 0.0]))]
)
def test_draws_follow_the_seed_and_not_what_was_observed(spec: EnvironmentSpec, policy: Policy) -> None:
    one, same, other = (drawn(spec, policy, 300, seed=seed) for seed in (3, 3, 4))
    for column, again, different in zip(one, same, other, strict=True):
        np.testing.assert_array_equal(column, again)
        assert not np.array_equal(column, different)
    # The noise of step t does not depend on the distributions of the steps before.
    moved = gaussian_policy([0.5, -0.5], [0.3, -0.3])
    if not spec.sizes:
        values = drawn(spec, moved, 300, seed=3).values
        noise = (values - np.array([0.5, -0.5])) / np.exp([0.3, -0.3])
        np.testing.assert_allclose(noise, one.values, atol=1e-5)


def test_other_settings_of_exploration_have_no_effect() -> None:
    policy = gaussian_policy([0.0, 0.0], [0.0, 0.0])
    loaded = load_policy(policy, CONTINUOUS, 2, sampler_needs(CONTINUOUS))
    plain, noisy = (
        behavior_policy(CONTINUOUS, exploration, 2, np.random.default_rng(5))
        for exploration in (
            Exploration((), (), sampling="clipped"),
            Exploration((0.9,) * 2, (5.0,) * 2, random_steps=100, sampling="clipped"),
        )
    )
    observations = np.zeros((2, 4), np.float32)
    for _ in range(50):
        np.testing.assert_array_equal(plain(loaded, observations), noisy(loaded, observations))
    assert noisy.columns.keys() == plain.columns.keys()


def test_actions_are_drawn_from_very_many_at_once() -> None:
    choices = 20_000
    logits = np.full(choices, -100.0, np.float32)
    logits[[7, choices - 1]] = np.log([3.0, 1.0])

    found = drawn(discrete(choices), logits_policy(logits.tolist()), steps=100)

    assert set(found.actions.ravel()) == {7, choices - 1}
    assert 0.65 < (found.actions == 7).mean() < 0.85
    told = np.where(found.actions == 7, np.log(0.75), np.log(0.25))
    np.testing.assert_allclose(found.log_probabilities, told, rtol=1e-6)
