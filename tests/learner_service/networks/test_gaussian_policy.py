"""The squashed Gaussian compared with torch.distributions, even where float32 cannot distinguish tanh from 1."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.networks import GaussianPolicy

SPEC = EnvironmentSpec("Any-v0", ArraySpec((4,), "float32"), ArraySpec((3,), "float32", (-1.0,), (3.0,)), ())


def policy_of(mean: list[float], log_deviation: list[float]) -> GaussianPolicy:
    """A policy whose Gaussian is the same for all observations."""
    policy = GaussianPolicy(SPEC, (8,))
    with torch.no_grad():
        policy.head.weight.zero_()
        policy.head.bias.copy_(torch.tensor(mean + log_deviation))
    return policy


def standard_normal(rows: int) -> Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mean", [[0.0, 0.5, -1.0], [5.0, -8.0, 0.0]])
def test_densities_are_those_of_torch(mean: list[float]) -> None:
    log_deviation = [0.0, -1.0, 0.7]
    noise = standard_normal(200)
    actions, log_probabilities = policy_of(mean, log_deviation).sample(torch.zeros(200, 4), noise)
    location, scale = torch.tensor(mean).double(), torch.tensor(log_deviation).double().exp()
    squashed = TransformedDistribution(Independent(Normal(location, scale), 1), [TanhTransform(cache_size=1)])
    drawn = location + scale * noise.double()
    # In float64 and by the cached inverse, which is exact to where the difference from 1 is 1e-16.
    expected: Tensor = squashed.log_prob(squashed.transforms[0](drawn))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(actions, torch.tanh(drawn).float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(log_probabilities, expected.float(), rtol=1e-4, atol=1e-4)


def test_densities_and_gradients_are_finite_and_right_where_tanh_saturates() -> None:
    policy = policy_of([40.0, -40.0, 0.0], [0.0, 0.0, 0.0])
    actions, log_probabilities = policy.sample(torch.zeros(1, 4), torch.zeros(1, 3))
    assert actions.tolist() == [[1.0, -1.0, 0.0]]
    # log(1 - tanh(u)^2) = log 4 - 2|u| for large |u|, and 0 at 0.
    expected = -1.5 * np.log(2 * np.pi) - 2 * (np.log(4.0) - 80.0)
    assert log_probabilities.item() == pytest.approx(expected, rel=1e-6)
    torch.autograd.backward(log_probabilities.sum())
    gradient = policy.head.bias.grad
    assert gradient is not None
    # d/du of -(log 4 - 2|u|), and d/d log deviation of -log deviation.
    torch.testing.assert_close(gradient, torch.tensor([2.0, -2.0, 0.0, -1.0, -1.0, -1.0]))


@pytest.mark.parametrize(("raw", "deviation"), [(-100.0, np.exp(-20.0)), (100.0, np.exp(2.0)), (0.5, np.exp(0.5))])
def test_deviations_are_kept_between_e_to_minus_20_and_e_to_2(raw: float, deviation: float) -> None:
    _, log_probabilities = policy_of([0.0] * 3, [raw] * 3).sample(torch.zeros(1, 4), torch.zeros(1, 3))
    expected = -3 * (np.log(deviation) + 0.5 * np.log(2 * np.pi))
    assert log_probabilities.item() == pytest.approx(expected, rel=1e-5)


def test_actions_are_the_samples_within_the_bounds_and_without_noise_the_mean() -> None:
    torch.manual_seed(0)
    policy = GaussianPolicy(SPEC, (16,))
    observations, noise = torch.randn(50, 4), standard_normal(50)
    squashed, _ = policy.sample(observations, noise)
    torch.testing.assert_close(policy(observations, noise), 1.0 + 2.0 * squashed)
    assert torch.equal(policy(observations), policy(observations, torch.zeros(50, 3)))
    assert not torch.allclose(policy(observations), policy(observations, noise), atol=0.1)
