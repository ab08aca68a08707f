"""A module whose parameters are in one vector is the same module."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learner_service.algorithms.trained import Minimizer
from learner_service.kernels.parameters import Adam, FlatParameters, clipping_divisor


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(11, 5, generator=torch.Generator().manual_seed(1))


def gradients(module: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def test_flat_parameters_do_not_change_the_modules_outputs(module: nn.Module, inputs: Tensor) -> None:
    before = module(inputs).detach()
    flat = FlatParameters(module)
    assert torch.equal(module(inputs), before)
    assert flat.vector.numel() == 5 * 7 + 7 + 7 * 3 + 3


def test_gradients_arrive_in_the_vector_and_accumulate_until_forgotten(module: nn.Module, inputs: Tensor) -> None:
    plain = copy.deepcopy(module)
    flat = FlatParameters(module)
    for times in (1, 2):
        torch.autograd.backward(module(inputs).square().sum())
        torch.autograd.backward(plain(inputs).square().sum())
        torch.testing.assert_close(flat.gradient, gradients(plain), rtol=1e-6, atol=1e-6)
        assert flat.gradient.any(), times
    flat.gradient.zero_()
    assert not flat.gradient.any()
    assert not gradients(module).any()


def test_a_change_of_the_vector_changes_the_module(module: nn.Module, inputs: Tensor) -> None:
    flat = FlatParameters(module)
    with torch.no_grad():
        flat.vector.zero_()
    assert not module(inputs).any()


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 1e6])
def test_clipping_equals_torchs_clipping(module: nn.Module, inputs: Tensor, max_norm: float) -> None:
    plain = copy.deepcopy(module)
    flat = FlatParameters(module)
    torch.autograd.backward(module(inputs).square().sum())
    torch.autograd.backward(plain(inputs).square().sum())
    divisor = clipping_divisor([flat], max_norm)
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
    assert (divisor is None) == (norm <= max_norm)
    clipped = flat.gradient if divisor is None else flat.gradient / divisor
    torch.testing.assert_close(clipped, gradients(plain), rtol=1e-5, atol=1e-9)
    ours, theirs = Adam(flat, 0.01), torch.optim.Adam(plain.parameters(), lr=0.01)
    ours.step(divisor)
    theirs.step()
    expected = torch.cat([parameter.detach().flatten() for parameter in plain.parameters()])
    torch.testing.assert_close(flat.vector, expected, rtol=1e-6, atol=1e-7)


def test_several_networks_are_clipped_by_their_global_norm() -> None:
    networks = [nn.Linear(3, 4), nn.Linear(3, 2)]
    flat = [FlatParameters(network) for network in networks]
    for each, size in zip(flat, (3.0, 4.0), strict=True):
        each.gradient.fill_(size / len(each.gradient) ** 0.5)
    divisor = clipping_divisor(flat, 0.5)
    assert divisor is not None
    assert float(divisor) == pytest.approx(10.0)
    assert clipping_divisor(flat, 5.1) is None


def test_a_copy_is_equal_and_stays_its_own(module: nn.Module, inputs: Tensor) -> None:
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    mine, theirs = FlatParameters(module), FlatParameters(other)
    theirs.vector.copy_(mine.vector)
    np.testing.assert_array_equal(other(inputs).detach(), module(inputs).detach())
    with torch.no_grad():
        mine.vector.zero_()
    assert other(inputs).any()


def test_a_parameter_of_another_type_becomes_float32_alone(module: nn.Module, inputs: Tensor) -> None:
    scale = nn.Module()
    scale.register_parameter("factors", nn.Parameter(torch.from_numpy(np.ones(5))))
    expected = module(inputs)
    flat = FlatParameters(scale, module)
    assert {parameter.dtype for parameter in (flat.vector, *scale.parameters(), *module.parameters())} == {
        torch.float32
    }
    assert torch.equal(module(inputs * scale.get_parameter("factors")), expected)


def test_several_modules_share_one_vector(module: nn.Module, inputs: Tensor) -> None:
    second = nn.Linear(3, 2)
    expected = second(module(inputs))
    flat = FlatParameters(module, second)
    assert flat.vector.numel() == sum(p.numel() for part in (module, second) for p in part.parameters())
    assert torch.equal(second(module(inputs)), expected)


def test_adam_makes_exactly_the_steps_of_torchs_fused_adam(module: nn.Module) -> None:
    ours, theirs = FlatParameters(module), FlatParameters(copy.deepcopy(module))
    adam, torchs = Adam(ours, 0.01), torch.optim.Adam([theirs.vector], lr=0.01, fused=True)
    for _ in range(5):
        ours.gradient.normal_()
        theirs.gradient.copy_(ours.gradient)
        adam.step()
        torchs.step()
        assert torch.equal(ours.vector, theirs.vector)
    assert adam.state().keys() == torchs.state[theirs.vector].keys()
    for name, value in adam.state().items():
        assert torch.equal(value, torchs.state[theirs.vector][name])


def test_moments_of_another_network_are_refused(module: nn.Module) -> None:
    adam = Adam(FlatParameters(module), 0.01)
    adam.step()
    with pytest.raises(RuntimeError, match=r"66 .*exp_avg_sq.* 5"):
        adam.load_state({**adam.state(), "exp_avg_sq": torch.zeros(5)})


def test_a_minimizer_steps_as_adam_does_and_can_go_back(module: nn.Module, inputs: Tensor) -> None:
    plain = copy.deepcopy(module)
    adam = torch.optim.Adam(plain.parameters(), lr=0.01, fused=False)
    minimizer = Minimizer(FlatParameters(module), 0.01)
    fresh = minimizer.state()
    states = []
    for _ in range(3):
        minimizer.minimize(module(inputs).square().sum())
        adam.zero_grad()
        torch.autograd.backward(plain(inputs).square().sum())
        adam.step()
        expected = torch.cat([parameter.detach().flatten() for parameter in plain.parameters()])
        torch.testing.assert_close(minimizer.state()["parameters"], expected, rtol=1e-5, atol=1e-6)
        states.append(minimizer.state())
    minimizer.load_state(fresh)
    assert minimizer.state().keys() == {"parameters"}
    for state in states:
        minimizer.minimize(module(inputs).square().sum())
        for name, value in minimizer.state().items():
            assert torch.equal(value, state[name]), name
    with pytest.raises(RuntimeError, match=r"66 .* 5"):
        minimizer.load_state({"parameters": torch.zeros(5)})
