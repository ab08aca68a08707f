"""A layer that writes its gradient itself leaves the same one as autograd."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.kernels.parameters import FlatParameters
from learner_service.networks import Linear, TwinCritic

SPEC = EnvironmentSpec("Any-v0", ArraySpec((5,), "float32"), ArraySpec((2,), "float32", (-1.0,), (1.0,)), ())
ROWS = 160


class Wide(nn.Module):
    """Two narrow layers around a wide one. `times`: uses of the wide layer; `plainly`: uses as torch's own layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.wide, self.last = Linear(4, 256), Linear(256, 256), Linear(256, 3)
        self.times, self.plainly = 1, 0

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(self.times):
            x = self.wide(x).tanh()
        for _ in range(self.plainly):
            x = functional.linear(x, self.wide.weight, self.wide.bias).tanh()
        y: Tensor = self.last(x)
        return y


def data(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(("times", "plainly"), [(1, 0), (2, 0), (0, 1), (1, 1), (0, 0)])
def test_the_gradient_equals_autograds_for_any_number_of_uses(times: int, plainly: int, bf16: bool) -> None:
    module = Wide()
    module.times, module.plainly = times, plainly
    flat, x = FlatParameters(module), data(ROWS, 4)
    if bf16:
        module.wide.use_bfloat16(flat.vector)
    flat.gradient.zero_()
    torch.autograd.backward(module(x).square().sum())
    expected = flat.gradient.clone()
    flat.gradient.fill_(7.0)
    for _ in range(2):
        with flat.new_gradient():
            torch.autograd.backward(module(x).square().sum())
        torch.testing.assert_close(flat.gradient, expected, rtol=1e-5, atol=1e-4)
        for parameter in module.parameters():
            assert parameter.grad is not None
            assert parameter.grad.untyped_storage().data_ptr() == flat.gradient.untyped_storage().data_ptr()
    weight = module.wide.weight.grad
    assert weight is not None
    assert bool(weight.any()) is (times + plainly > 0)


def test_outside_of_a_new_gradient_autograd_accumulates() -> None:
    module, x = Wide(), data(ROWS, 4)
    flat = FlatParameters(module)
    torch.autograd.backward(module(x).sum())
    once = flat.gradient.clone()
    torch.autograd.backward(module(x).sum())
    torch.testing.assert_close(flat.gradient, 2 * once)
    (asked,) = torch.autograd.grad(module(x).sum(), [module.wide.weight])
    torch.testing.assert_close(asked, module.wide.weight.grad / 2)  # type: ignore[operator]


@pytest.mark.parametrize("used", [1, 2])
def test_twin_critics_write_all_of_theirs(used: int) -> None:
    torch.manual_seed(0)
    critic = TwinCritic(SPEC, (256, 256))
    plain = copy.deepcopy(critic)
    flat = FlatParameters(critic)
    flat.gradient.fill_(7.0)
    observations, actions = data(ROWS, 5), data(ROWS, 2)
    for each in (critic, plain):
        values = sum(each(observations, actions * factor).square().sum() for factor in range(1, used + 1))
        assert isinstance(values, Tensor)
        if each is critic:
            with flat.new_gradient():
                torch.autograd.backward(values)
        else:
            torch.autograd.backward(values)
    expected = torch.cat([parameter.grad.flatten() for parameter in plain.parameters() if parameter.grad is not None])
    torch.testing.assert_close(flat.gradient, expected, rtol=1e-5, atol=1e-4)


def test_an_unused_layer_has_no_old_gradient() -> None:
    module, x = Wide(), data(ROWS, 4)
    flat = FlatParameters(module)
    module.wide.weight.requires_grad_(False)
    flat.gradient.fill_(7.0)
    with flat.new_gradient():
        torch.autograd.backward(module(x).sum())
    assert module.wide.weight.grad is not None
    assert not module.wide.weight.grad.any()
    assert flat.gradient.any()
