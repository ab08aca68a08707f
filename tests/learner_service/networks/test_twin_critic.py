"""Twin critics are two independent MLPs."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.networks import TwinCritic
from learner_service.networks.twin import batched_mlps

SPEC = EnvironmentSpec("Any-v0", ArraySpec((5,), "float32"), ArraySpec((2,), "float32", (-1.0,), (1.0,)), ())


def separate(critic: TwinCritic) -> list[nn.Sequential]:
    """The two as ordinary modules with copies of the parameters."""
    modules = []
    for index in range(2):
        layers: list[nn.Module] = []
        for weight, bias in zip(critic.stacked[::2], critic.stacked[1::2], strict=True):
            layer = nn.Linear(weight.shape[2], weight.shape[1])
            layer.weight.data, layer.bias.data = weight[index].detach().clone(), bias[index].detach().clone()
            layers += [layer, nn.ReLU()]
        modules.append(nn.Sequential(*layers[:-1]))
    return modules


def inputs(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 5, generator=generator), torch.rand(rows, 2, generator=generator) * 2 - 1


@pytest.fixture(params=[(8, 16), (128, 100)], ids=["small", "large"])
def critic(request: pytest.FixtureRequest) -> TwinCritic:
    torch.manual_seed(0)
    return TwinCritic(SPEC, request.param)


def test_values_and_gradients_are_those_of_two_mlps(critic: TwinCritic) -> None:
    observations, actions = inputs(130)
    coefficients = torch.tensor([[1.0], [-3.0]])
    actions.requires_grad_()
    values = critic(observations, actions)
    torch.autograd.backward((coefficients * values.square()).sum())
    gradient = actions.grad
    assert gradient is not None

    mlps, other = separate(critic), actions.detach().clone().requires_grad_()
    expected = torch.stack([mlp(torch.cat((observations, other), 1)).squeeze(1) for mlp in mlps])
    torch.autograd.backward((coefficients * expected.square()).sum())
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, other.grad, rtol=1e-4, atol=1e-5)
    for index, mlp in enumerate(mlps):
        for stacked, parameter in zip(critic.stacked, mlp.parameters(), strict=True):
            assert stacked.grad is not None
            torch.testing.assert_close(stacked.grad[index], parameter.grad, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert torch.equal(critic(observations, actions), values)


def test_batched_products_are_the_same(critic: TwinCritic) -> None:
    """Batched products are computed on GPUs and in compiled code."""
    observations, actions = inputs(130)
    results = []
    for compute in (
        lambda: critic(observations, actions),
        lambda: batched_mlps(torch.cat((observations, actions), 1), *critic.stacked),
    ):
        critic.zero_grad()
        values = compute()
        torch.autograd.backward(values.square().sum())
        results.append([values.detach(), *(parameter.grad for parameter in critic.stacked)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("critics", [1, 2])
def test_a_judge_gives_gradients_to_actions_only(critic: TwinCritic, critics: int) -> None:
    observations, actions = inputs(130)
    actions.requires_grad_()
    values = critic.judge(observations, actions, critics)
    torch.autograd.backward(values.sum())
    judged = actions.grad
    assert judged is not None
    assert all(parameter.grad is None for parameter in critic.parameters())
    other = actions.detach().clone().requires_grad_()
    expected = critic(observations, other)[:critics]
    torch.autograd.backward(expected.sum())
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(judged, other.grad, rtol=1e-4, atol=1e-6)


def test_features_are_shared_and_trained_by_the_critics_alone() -> None:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Flatten(), nn.Linear(12, 6))
    spec = replace(SPEC, observations=ArraySpec((3, 4), "float32"))
    critic = TwinCritic(spec, (8,), layers=(features, 6))
    actions = inputs(4)[1].requires_grad_()
    observations = torch.randn(4, 3, 4)
    torch.autograd.backward(critic.judge(observations, actions).sum())
    weight = features.get_parameter("1.weight")
    assert weight.grad is None
    torch.autograd.backward(critic(observations, actions).sum())
    assert weight.grad is not None
    assert weight.grad.any()


def test_both_critics_start_differently_in_the_range_of_torchs_layers(critic: TwinCritic) -> None:
    for weight in critic.stacked[::2]:
        bound = weight.shape[2] ** -0.5
        assert not torch.equal(weight[0], weight[1])
        assert float(weight.detach().abs().max()) <= bound
        assert float(weight.detach().abs().mean()) == pytest.approx(bound / 2, rel=0.4)
