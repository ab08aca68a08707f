"""Actions of several parts and masked actions: exploration, sampling and reported probabilities."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actor_service.acting.behaviors import behavior_policy
from actor_service.acting.parts import greedy_actions
from actor_service.policies.policy import OnnxPolicy, load_policy
from actorq.domain.columns import LOG_PROBABILITIES
from actorq.domain.leaves import views
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration
from actorq.errors import InvalidInputError
from learner_service.networks import PartwisePolicy, QNetwork, SoftmaxPolicy
from tests.actor_service.actor_policies import constant_policy, logits_policy, sampler_needs
from tests.builders.networks import as_emitted
from tests.builders.structured import NUMBERS, discrete, mixed, random_observations

N = 6


def loaded(spec: EnvironmentSpec, network: torch.nn.Module, rows: int = N, sampled: bool = False) -> OnnxPolicy:
    """The session with which an actor runs the network."""
    return load_policy(as_emitted(network, spec), spec, rows, sampler_needs(spec) if sampled else ())


def allowed(spec: EnvironmentSpec, observations: NDArray[np.uint8], actions: NDArray[Any]) -> bool:
    """Whether each choice is one of its part, and allowed."""
    mask = views(spec.leaves, observations)["action_mask"]
    chosen = actions.reshape(len(observations), -1)[:, : len(spec.sizes)].astype(np.int64)
    starts = np.cumsum((0, *spec.sizes[:-1]))
    return bool((chosen < spec.sizes).all() and np.take_along_axis(mask, chosen + starts, axis=1).all())


@pytest.mark.parametrize("frame_stack", [1, 2])
@pytest.mark.parametrize("choices", [(), (2, 3)], ids=["one part", "two parts"])
@pytest.mark.parametrize("how", ["greedy", "epsilon", "random", "sampled"])
def test_all_actions_are_allowed_by_the_mask(how: str, choices: tuple[int, ...], frame_stack: int) -> None:
    spec = discrete(NUMBERS, choices=choices, masked=True, frame_stack=frame_stack)
    torch.manual_seed(0)
    kind: Any = QNetwork if how != "sampled" else PartwisePolicy if choices else SoftmaxPolicy
    network = kind(spec, (8,), dueling=False) if kind is QNetwork else kind(spec, (8,))
    policy = loaded(spec, network, sampled=how == "sampled")
    exploration = Exploration(
        epsilons=({"greedy": 0.0, "epsilon": 0.5}.get(how, 1.0),) * N,
        noise=(0.0,) * N,
        random_steps=10**6 if how == "random" else 0,
        sampling="clipped" if how == "sampled" else "",
    )
    explore, rng = behavior_policy(spec, exploration, N, np.random.default_rng(1)), np.random.default_rng(2)
    seen = set()
    single = replace(spec, frame_stack=1)
    for _ in range(300):
        stacks = random_observations(rng, single, N) if frame_stack == 1 else random_observations(rng, single, N, 2)
        actions = explore(policy, stacks)
        assert actions.shape == (N, *spec.actions.shape)
        assert allowed(spec, stacks if frame_stack == 1 else stacks[:, -1], actions)
        seen |= {*map(tuple, actions.reshape(N, -1).tolist())}
    assert len(seen) == (6 if choices else 5)


def test_all_parts_are_random_or_all_are_greedy() -> None:
    spec = discrete(choices=(10, 10, 10))
    policy = OnnxPolicy(constant_policy([1.0, *[0.0] * 9] * 3, 3), spec.observations, N)
    explore = behavior_policy(spec, Exploration((0.5,) * N, (0.0,) * N), N, np.random.default_rng(0))
    observations = np.zeros((N, 3), np.float32)
    actions = np.concatenate([explore(policy, observations).copy() for _ in range(2000)])
    # Either all parts are the best choices, or all are random.
    others = np.count_nonzero(actions, axis=1)
    shares = np.bincount(others, minlength=4) / len(actions)
    expected = 0.5 * np.array([0.001, 0.027, 0.243, 0.729]) + [0.5, 0, 0, 0]
    np.testing.assert_allclose(shares, expected, atol=0.02)


@pytest.mark.parametrize("squash", [False, True], ids=["clipped", "squashed"])
def test_actor_and_learner_compute_the_same_log_probabilities(squash: bool) -> None:
    spec = mixed()
    torch.manual_seed(1)
    network = PartwisePolicy(spec, (8,), squash=squash, log_std=-0.5)
    policy = loaded(spec, network, sampled=True)
    exploration = Exploration((), (), sampling="squashed" if squash else "clipped")
    explore, rng = behavior_policy(spec, exploration, N, np.random.default_rng(1)), np.random.default_rng(2)
    low, high = spec.actions.bounds()
    for _ in range(50):
        observations = rng.standard_normal((N, 3)).astype(np.float32)
        actions = explore(policy, observations)
        assert ((actions >= low) & (actions <= high)).all()
        drawn = torch.from_numpy(explore.columns["actions"].copy())
        np.testing.assert_array_equal(drawn[:, :2], actions[:, :2])
        with torch.no_grad():
            distribution = network.distribution(torch.from_numpy(observations))
            expected = network.log_probabilities(network.drawn(drawn), *distribution)
        np.testing.assert_allclose(explore.columns[LOG_PROBABILITIES], expected, atol=1e-4)


def test_the_parts_are_sampled_independently_with_their_probabilities() -> None:
    spec = discrete(choices=(2, 3))
    logits = [0.0, 1.0, 2.0, 0.0, -1.0]
    policy = load_policy(logits_policy(logits, 3), spec, 50, sampler_needs(spec))
    explore = behavior_policy(spec, Exploration((), (), sampling="clipped"), 50, np.random.default_rng(0))
    actions = np.concatenate([explore(policy, np.zeros((50, 3), np.float32)).copy() for _ in range(400)])
    shares = np.zeros((2, 3))
    np.add.at(shares, tuple(actions.T), 1 / len(actions))
    first, second = (np.exp(part) / np.exp(part).sum() for part in (np.array(logits[:2]), np.array(logits[2:])))
    np.testing.assert_allclose(shares, np.outer(first, second), atol=0.01)


def test_the_most_likely_action_of_each_part_is_evaluated() -> None:
    spec = mixed()
    torch.manual_seed(0)
    network = PartwisePolicy(spec, (8,))
    policy = loaded(spec, network)
    observations = np.random.default_rng(0).standard_normal((N, 3)).astype(np.float32)
    actions = greedy_actions(spec, policy, policy(observations))
    with torch.no_grad():
        logits, components, *_ = network(torch.from_numpy(observations))
    np.testing.assert_array_equal(actions[:, 0], logits[:, :2].argmax(1))
    np.testing.assert_array_equal(actions[:, 1], logits[:, 2:].argmax(1))
    np.testing.assert_allclose(actions[:, 2:], components, rtol=1e-5)


def test_a_policy_without_the_inputs_of_an_observation_is_refused_with_their_names() -> None:
    spec = discrete(NUMBERS, masked=True)
    with pytest.raises(InvalidInputError, match=r"observations/vector .*mask"):
        load_policy(constant_policy([0.0] * 5, 3), spec, N)
