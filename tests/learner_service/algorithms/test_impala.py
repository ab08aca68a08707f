"""IMPALA's update against its losses as they are written, by autograd."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actorq.domain.spaces import EnvironmentSpec
from learner_service.algorithms.policy_gradient import PolicyGradient
from learner_service.rollouts.advantages import vtrace
from tests.learner_service.algorithms.algorithm_parts import BOUNDED, DISCRETE, of_the_cpu
from tests.learner_service.algorithms.on_policy_parts import (
    N,
    T,
    as_acted,
    assert_equal_states,
    make,
    random_trajectories,
)

pytestmark = of_the_cpu
SPECS = {"discrete": DISCRETE, "continuous": BOUNDED}


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest) -> EnvironmentSpec:
    return SPECS[request.param]


def judged(algorithm: PolicyGradient, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Logarithms of probabilities, and entropies, by torch's own distributions."""
    outputs: Any = algorithm.policy(observations)
    if isinstance(outputs, Tensor):
        categorical: Any = torch.distributions.Categorical(logits=outputs)
        return categorical.log_prob(actions), categorical.entropy()
    gaussian: Any = torch.distributions.Normal(outputs[1], outputs[2].exp())
    return gaussian.log_prob(actions).sum(1), gaussian.entropy().sum(1)


@pytest.mark.parametrize("correct", [True, False])
def test_an_update_is_a_step_of_adam_on_the_papers_losses(spec: EnvironmentSpec, correct: bool) -> None:
    options: dict[str, Any] = {"entropy_cost": 0.1, "max_rho": 1.5, "trace_lambda": 0.9, "batch_size": 10_000}
    ours, other = (make("impala", spec, correct=correct, **options) for _ in range(2))
    steps = random_trajectories(np.random.default_rng(0), spec)
    policy, value = other.policy, other.networks["critic"].network
    parameters = [*policy.parameters(), *value.parameters()]
    adam = torch.optim.Adam(parameters, lr=3e-3, eps=1e-5)
    valid, observations = torch.from_numpy(steps.valid.ravel()), torch.from_numpy(steps.observations)
    for _ in range(3):
        learned = ours.learn([steps], 0.0)
        logarithms, entropies = judged(
            other, observations[:-1].flatten(0, 1), torch.from_numpy(steps.actions).flatten(0, 1)
        )
        values = value(observations.flatten(0, 1))
        present = values.detach().view(T + 1, N).numpy()
        weights = np.exp(logarithms.detach().view(T, N).numpy() - steps.log_probabilities)
        weights = weights if correct else np.ones_like(weights)
        targets = vtrace(steps, present, weights, 0.99, 0.9, 1.5, 1.0)
        advantages, corrected = (torch.from_numpy(each.ravel()) for each in targets)
        loss = -(advantages * logarithms)[valid].mean()
        loss = loss + 0.5 * 0.5 * (values[: T * N] - corrected)[valid].square().mean() - 0.1 * entropies[valid].mean()
        assert learned.updates == 1
        assert learned.loss == pytest.approx(float(loss.detach()), rel=1e-4)
        adam.zero_grad(set_to_none=False)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters, 40.0)
        adam.step()
    for network, module in zip(ours.networks.values(), (policy, value), strict=True):
        expected = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
        torch.testing.assert_close(network.parameters[0].vector, expected, rtol=1e-3, atol=1e-4)


def test_importance_weights_are_1_for_actions_of_the_learners_policy(spec: EnvironmentSpec) -> None:
    algorithm = make("impala", spec, batch_size=10_000)
    steps = as_acted(algorithm, random_trajectories(np.random.default_rng(0), spec))
    figures = algorithm.learn([steps], 0.0).figures
    assert figures["mean_weight"] == pytest.approx(1.0, abs=1e-5)


def test_without_correction_the_acting_policy_has_no_effect(spec: EnvironmentSpec) -> None:
    steps = random_trajectories(np.random.default_rng(0), spec)
    other = steps.with_columns(log_probabilities=steps.log_probabilities - 1)
    uncorrected = [make("impala", spec, correct=False) for _ in range(2)]
    assert uncorrected[0].learn([steps], 0.0) == uncorrected[1].learn([other], 0.0)
    assert_equal_states(*uncorrected)
    assert make("impala", spec).learn([steps], 0.0) != make("impala", spec).learn([other], 0.0)


@pytest.mark.parametrize(("batch_size", "updates"), [(T, N), (3 * T, 3), (1, N), (10_000, 1)])
def test_minibatches_are_whole_trajectories(batch_size: int, updates: int) -> None:
    steps = random_trajectories(np.random.default_rng(0), DISCRETE)
    algorithm = make("impala", batch_size=batch_size)
    assert algorithm.learn([steps], 0.0).updates == algorithm.updates == updates
