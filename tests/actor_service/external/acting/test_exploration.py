"""Exploration in batches of changing rows: each environment keeps its own rate."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actor_service.external.acting.exploration import row_exploration
from actor_service.policies.policy import OnnxPolicy, load_policy
from actorq.domain.columns import GREEDY_ACTIONS, LOG_PROBABILITIES
from actorq.domain.leaves import views
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import Exploration
from learner_service.networks import QNetwork
from tests.actor_service.actor_policies import (
    constant_policy,
    gaussian_policy,
    linear_policy,
    logits_policy,
    noisy_policy,
)
from tests.actor_service.external.simulators import SPEC
from tests.builders.networks import as_emitted
from tests.builders.structured import NUMBERS, discrete, random_observations

ROWS = 32
BOX = replace(SPEC, actions=ArraySpec((2,), "float32", (-1.0, -2.0), (1.0, 2.0)), sizes=())
ZEROS = np.zeros((ROWS, 4), np.float32)
PLACES = np.arange(ROWS)


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def loaded(policy: Any, spec: EnvironmentSpec, needs: Any = ()) -> OnnxPolicy:
    return load_policy(policy, spec, ROWS, needs)


def actions_policy(values: list[float]) -> Any:
    """A policy with the same continuous actions for all observations."""
    weights = np.zeros((4, len(values)), np.float32)
    return linear_policy(weights, np.array(values, np.float32), output="actions")


def test_each_environment_explores_with_its_own_rate_in_any_row() -> None:
    explore = row_exploration(SPEC, Exploration((0.0, 0.5, 1.0), (0.0,) * 3), rng(), ())
    policy = loaded(constant_policy([0.0, 1.0]), SPEC)
    random = np.zeros(3)
    for turn in range(400):
        # Other rows at each step.
        places = (PLACES + turn)[: ROWS - turn % 5]
        actions, further = explore(policy, ZEROS, places)
        assert actions.shape == places.shape
        assert not further
        for place, action in zip(places % 3, actions, strict=True):
            random[place] += action == 0
    shares = random / (400 * ROWS / 3)
    np.testing.assert_allclose(shares, [0.0, 0.25, 0.5], atol=0.05)
    assert random[0] == 0


def test_random_actions_respect_the_mask() -> None:
    spec = discrete(NUMBERS, choices=(2, 3), masked=True)
    explore = row_exploration(spec, Exploration((1.0,), (0.0,)), rng(), ())
    torch.manual_seed(0)
    policy = loaded(as_emitted(QNetwork(spec, (8,), dueling=False), spec), spec)
    observations = random_observations(rng(), spec, ROWS)
    mask = views(spec.leaves, observations)["action_mask"]
    for _ in range(50):
        actions, _ = explore(policy, observations, PLACES)
        chosen = actions + np.array([0, 2])
        assert np.take_along_axis(mask, chosen, axis=1).all()


def test_random_steps_are_one_budget_of_all_simulators() -> None:
    explore = row_exploration(SPEC, Exploration((0.0,) * 4, (0.0,) * 4, random_steps=16), rng(), ())
    policy = loaded(constant_policy([0.0, 1.0]), SPEC)
    first = [explore(policy, ZEROS, PLACES)[0].copy() for _ in range(2)]
    assert all(0 < actions.sum() < ROWS for actions in first)
    assert (explore(policy, ZEROS, PLACES)[0] == 1).all()


def noise_of(explore: Any, policy: OnnxPolicy, steps: int) -> NDArray[Any]:
    return np.stack([explore(policy, ZEROS, PLACES)[0].copy() for _ in range(steps)])


def test_noise_has_the_deviation_of_its_environment_in_units_of_half_the_range() -> None:
    explore = row_exploration(BOX, Exploration((0.0,) * 2, (0.1, 0.2)), rng(), ())
    found = noise_of(explore, loaded(actions_policy([0.0, 0.5]), BOX), 400)
    deviations = found.std(axis=0)
    np.testing.assert_allclose(deviations[0::2].mean(0), [0.1, 0.2], rtol=0.05)
    np.testing.assert_allclose(deviations[1::2].mean(0), [0.2, 0.4], rtol=0.05)
    np.testing.assert_allclose(found.mean((0, 1)), [0.0, 0.5], atol=0.01)


def test_actions_stay_within_their_bounds_and_greedy_actions_are_sent() -> None:
    explore = row_exploration(BOX, Exploration((0.0,), (3.0,)), rng(), (GREEDY_ACTIONS,))
    assert explore.columns == (GREEDY_ACTIONS,)
    policy = loaded(noisy_policy(4, 2, greedy=True), BOX, explore.needs)
    actions, further = explore(policy, ZEROS + 0.1, PLACES[:20])
    low, high = BOX.actions.bounds()
    assert ((actions >= low) & (actions <= high)).all()
    np.testing.assert_allclose(further[GREEDY_ACTIONS], np.full((20, 2), 0.4), rtol=1e-5)
    assert actions.std() > 0.1


def test_correlated_noise_belongs_to_the_environment_and_not_to_the_row() -> None:
    explore = row_exploration(BOX, Exploration((0.0,), (0.1,), correlation=0.9), rng(), ())
    policy = loaded(actions_policy([0.0, 0.0]), BOX)
    series: list[NDArray[Any]] = []
    for turn in range(500):
        places = np.roll(PLACES, turn)
        actions, _ = explore(policy, ZEROS, places)
        in_order = np.empty_like(actions)
        in_order[places] = actions
        series.append(in_order[:, 0])
    values = np.stack(series)
    correlation = (values[1:] * values[:-1]).mean() / (values**2).mean()
    assert correlation == pytest.approx(0.9, abs=0.03)
    assert values.std() == pytest.approx(0.1, rel=0.1)


def test_drawn_actions_come_with_their_log_probabilities() -> None:
    explore = row_exploration(SPEC, Exploration((), (), sampling="clipped"), rng(), (LOG_PROBABILITIES,))
    assert tuple(explore.columns) == (LOG_PROBABILITIES,)
    policy = loaded(logits_policy([0.0, 1.0]), SPEC, explore.needs)
    actions, further = explore(policy, ZEROS, PLACES[:20])
    logarithms = np.log([1 / (1 + np.e), np.e / (1 + np.e)])
    np.testing.assert_allclose(further[LOG_PROBABILITIES], logarithms[actions], rtol=1e-5)
    assert 0 < actions.sum() < 20


def test_segments_hold_the_drawn_values_and_environments_get_the_clipped_ones() -> None:
    explore = row_exploration(BOX, Exploration((), (), sampling="clipped"), rng(), (LOG_PROBABILITIES,))
    policy = loaded(gaussian_policy([0.0, 0.0], [1.0, 1.0]), BOX, explore.needs)
    actions, further = explore(policy, ZEROS, PLACES[:20])
    assert np.abs(further["actions"]).max() > 1
    np.testing.assert_allclose(actions, np.clip(further["actions"], -1, 1) * [1, 2], rtol=1e-5)
