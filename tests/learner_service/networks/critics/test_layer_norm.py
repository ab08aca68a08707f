"""Critics with layer normalization are two independent MLPs with torch's layers."""

import pytest
import torch
from torch import Tensor, nn

from learner_service.networks import LayerNormCritic
from tests.learner_service.networks.test_twin_critic import SPEC, inputs


@pytest.fixture
def critic() -> LayerNormCritic:
    torch.manual_seed(0)
    found = LayerNormCritic(SPEC, (8, 16))
    # Other scales and shifts than the initial ones.
    for parameter in (*found.scales, *found.shifts):
        nn.init.normal_(parameter)
    return found


def separate(critic: LayerNormCritic) -> list[nn.Sequential]:
    """The two as ordinary modules with copies of the parameters."""
    modules = []
    for index in range(2):
        layers: list[nn.Module] = []
        for number, (weight, bias) in enumerate(zip(critic.stacked[::2], critic.stacked[1::2], strict=True)):
            layer = nn.Linear(weight.shape[2], weight.shape[1])
            layer.weight.data, layer.bias.data = weight[index].detach().clone(), bias[index].detach().clone()
            layers.append(layer)
            if number < len(critic.scales):
                norm = nn.LayerNorm(weight.shape[1])
                norm.weight.data = critic.scales[number][index].detach().clone()
                norm.bias.data = critic.shifts[number][index].detach().clone()
                layers += [norm, nn.ReLU()]
        modules.append(nn.Sequential(*layers))
    return modules


def gradients(module: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in module.parameters()]
    assert all(each is not None for each in found)
    return [each for each in found if each is not None]


def test_values_and_gradients_are_those_of_two_mlps(critic: LayerNormCritic) -> None:
    observations, actions = inputs(30)
    actions.requires_grad_()
    coefficients = torch.tensor([[1.0], [-3.0]])
    values = critic(observations, actions)
    torch.autograd.backward((coefficients * values.square()).sum())
    mlps, other = separate(critic), actions.detach().clone().requires_grad_()
    expected = torch.stack([mlp(torch.cat((observations, other), 1)).squeeze(1) for mlp in mlps])
    torch.autograd.backward((coefficients * expected.square()).sum())
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actions.grad, other.grad, rtol=1e-3, atol=1e-4)
    for index, mlp in enumerate(mlps):
        layers = [layer for layer in mlp if isinstance(layer, nn.Linear)]
        norms = [layer for layer in mlp if isinstance(layer, nn.LayerNorm)]
        own = [*zip(critic.stacked[::2], layers, strict=True), *zip(critic.scales, norms, strict=True)]
        for parameter, layer in own:
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad[index], layer.weight.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("critics", [1, 2])
def test_a_judge_gives_gradients_to_actions_only(critic: LayerNormCritic, critics: int) -> None:
    observations, actions = inputs(30)
    actions.requires_grad_()
    values = critic.judge(observations, actions, critics)
    torch.testing.assert_close(values, critic(observations, actions)[:critics])
    torch.autograd.backward(values.sum())
    assert actions.grad is not None
    assert all(parameter.grad is None for parameter in critic.parameters())


def test_values_of_extreme_inputs_stay_bounded(critic: LayerNormCritic) -> None:
    observations, actions = inputs(30)
    with torch.no_grad():
        near, far = critic(observations, actions).abs().max(), critic(1e6 * observations, actions).abs().max()
    assert far < 10 * near
