"""What fake-quantized layers compute, and the gradients that go through their rounding."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from actorq.quantization.schemes.int8 import dynamic_grid
from actorq.quantization.training import TrainingForm, Uint8, with_bits
from learner_service.quantization.straight_through import Grid, Layer, StraightThrough, Weights, int8_blocks


def identity_with_gradient_of(x: Tensor, rounded: Tensor, where: Tensor | None = None) -> Tensor:
    """The textbook's straight-through estimator: the value of `rounded`, the gradient of x, only where it is given."""
    passed = x if where is None else torch.where(where, x, x.detach())
    return passed + (rounded - x).detach()


def test_a_grid_is_made_of_the_range_of_the_values() -> None:
    seen = []

    def noted(low: float, high: float) -> tuple[float, int]:
        seen.append((low, high))
        return 0.5, 3

    assert Grid.over(torch.tensor([[1.0, -7.0], [2.5, 0.0]]), Uint8(noted)) == Grid(0.5, -3.0)
    assert seen == [(-7.0, 2.5)]


def test_levels_are_rounded_half_to_even_and_clipped() -> None:
    grid = Grid(0.5, -2.0)
    x = torch.tensor([-9.0, -1.1, -0.75, -0.25, 0.0, 0.25, 0.75, 126.25, 126.5, 126.75, 1e9])
    levels = grid.levels(x)
    assert levels.tolist() == [-2, -2, -2, 0, 0, 0, 2, 252, 253, 253, 253]
    assert grid.covers(x.div(0.5).round()).tolist() == [False, *[True] * 8, False, False]


def test_weights_have_a_scale_for_all_or_for_each_channel() -> None:
    weight = torch.tensor([[127.0, 0.5, -1.5], [-12.7, 0.0, 6.0], [0.0, 0.0, 0.0], [0.0, 1e-40, 0.0]])
    one = Weights.of(weight, per_channel=False)
    assert one.scale.tolist() == [[1.0]]
    assert one.levels.tolist() == [[127, 0, -2], [-13, 0, 6], [0, 0, 0], [0, 0, 0]]
    each = Weights.of(weight, per_channel=True)
    assert each.scale.flatten().tolist() == [1.0, np.float32(12.7) / np.float32(127), 1.0, 1.0]
    assert each.levels.tolist() == [[127, 0, -2], [-127, 0, 60], [0, 0, 0], [0, 0, 0]]


def test_fewer_bits_round_the_same_range_to_fewer_levels() -> None:
    x = torch.tensor([-1.0, -0.4, 0.0, 0.7, 2.0])
    grid = Grid.over(x, Uint8(dynamic_grid), bits=2)
    # From -1 to 2 in 3 steps, and 0 is one of the levels.
    assert grid.scale == pytest.approx(1.0)
    assert (grid.lowest, grid.highest) == (-1.0, 2.0)
    assert grid.levels(x).tolist() == [-1, 0, 0, 1, 2]
    weight = torch.tensor([[3.0, -1.4, 0.4], [0.6, 0.0, -0.35]])
    assert Weights.of(weight, per_channel=True, bits=3).levels.tolist() == [[3, -1, 0], [3, 0, -2]]
    assert Weights.of(weight, per_channel=True, bits=2).levels.tolist() == [[1, 0, 0], [1, 0, -1]]


def test_a_layer_of_fewer_bits_computes_with_rounded_weights_and_inputs() -> None:
    torch.manual_seed(3)
    layer, x = nn.Linear(6, 5), torch.randn(7, 6)
    rounded = StraightThrough(layer, with_bits(DYNAMIC, 3))
    grid, weights = Grid.over(x, Uint8(dynamic_grid), bits=3), Weights.of(layer.weight.detach(), True, bits=3)
    expected = functional.linear(grid.levels(x) * grid.scale, weights.values, layer.bias)
    torch.testing.assert_close(rounded.forward(x), expected, rtol=1e-5, atol=1e-5)
    assert len(set(weights.levels.flatten().tolist())) <= 7


def test_scales_of_weights_are_bounded_below() -> None:
    weight, least = torch.tensor([[127.0, 3.0], [1.27, 0.5]]), torch.tensor([[0.5], [0.02]])
    assert Weights.of(weight, per_channel=True, least=least).scale.flatten().tolist() == [1.0, np.float32(0.02)]
    assert Weights.of(weight, per_channel=False, least=2 * least + 1).scale.tolist() == [[2.0]]


def test_4_bit_blocks_have_their_largest_weight_at_minus_8() -> None:
    weight = torch.tensor([[8.0, -7.6, 0.5, 1.5, -4.0, 3.9, 0.0, 0.0, 0.0]])
    rounded = Weights.in_blocks(weight, block=4)
    # In the first block the scale is -1, and 7.6 is beyond its 7 levels on the other side; in the second it is 0.5.
    assert (rounded.levels * rounded.scale).tolist() == [[8.0, -7.0, 0.0, 2.0, -4.0, 3.5, 0.0, 0.0, 0.0]]


def test_rows_are_rounded_in_blocks_of_their_own() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, -63.5, 0.0, 12.7], [0.0, 0.0, 0.0, 0.0, 254.0, 1.0]])
    expected = torch.tensor([[127.0, 0.0, 2.0, -64.0, 0.0, 12.7], [0.0, 0.0, 0.0, 0.0, 254.0, 0.0]])
    torch.testing.assert_close(int8_blocks(x, block=4), expected, rtol=1e-6, atol=0.0)


LAYERS: dict[str, tuple[Callable[[], Layer], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 5), (7, 6)),
    "linear of a sequence": (lambda: nn.Linear(6, 5, bias=False), (3, 4, 6)),
    "convolution": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (3, 4, 7, 6)),
    "convolution in time": (lambda: nn.Conv1d(4, 6, 3, dilation=2), (3, 4, 9)),
}
DYNAMIC = TrainingForm(inputs=Uint8(dynamic_grid))
STATIC = TrainingForm(inputs=Uint8(dynamic_grid), outputs=Uint8(dynamic_grid), largest_bias=2.0**30)
GRIDS: dict[str, tuple[TrainingForm, Grid | None, Grid | None]] = {
    "its own range": (DYNAMIC, None, None),
    "a calibrated range": (STATIC, Grid(0.013, -60.0), None),
    "a calibrated range, rounded outputs": (STATIC, Grid(0.013, -60.0), Grid(0.01, -40.0)),
}


@pytest.mark.parametrize("grids", GRIDS)
@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("what", LAYERS)
def test_a_product_and_its_gradients_are_those_of_the_rounded_layer(what: str, per_channel: bool, grids: str) -> None:
    torch.manual_seed(3)
    make_layer, shape = LAYERS[what]
    layer = make_layer()
    form, inputs, rounded_outputs = GRIDS[grids]
    rounded = StraightThrough(layer, replace(form, per_channel=per_channel))
    rounded.inputs, rounded.outputs = inputs, rounded_outputs
    x = torch.randn(shape, requires_grad=True)
    gradient = torch.randn(layer(x).shape)

    y = rounded.forward(x)
    leaves = [leaf for leaf in (x, layer.weight, layer.bias) if leaf is not None]
    ours = torch.autograd.grad(y, leaves, gradient)

    used = inputs or Grid.over(x.detach(), Uint8(dynamic_grid))
    inside = used.covers(x.detach().div(used.scale).round())
    assert bool(inside.all()) == (inputs is None)
    weights = Weights.of(layer.weight.detach(), per_channel)
    x_rounded = identity_with_gradient_of(x, used.levels(x.detach()) * used.scale, inside)
    w_rounded = identity_with_gradient_of(layer.weight, weights.levels * weights.scale)
    bias = layer.bias
    if inputs is not None and bias is not None:
        unit = (weights.scale * used.scale).flatten()
        bias = identity_with_gradient_of(bias, (bias.detach() / unit).round() * unit)
    if isinstance(layer, nn.Linear):
        expected = functional.linear(x_rounded, w_rounded, bias)
    else:
        expected = layer._conv_forward(x_rounded, w_rounded, bias)
    if rounded_outputs is not None:
        inside = rounded_outputs.covers(expected.detach().div(rounded_outputs.scale).round())
        assert 0.1 < inside.float().mean() < 0.9
        values = rounded_outputs.levels(expected.detach()) * rounded_outputs.scale
        expected = identity_with_gradient_of(expected, values, inside)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(ours, torch.autograd.grad(expected, leaves, gradient), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_only_the_gradients_that_are_wanted_are_computed() -> None:
    layer = nn.Linear(3, 2).requires_grad_(False)
    x = torch.randn(4, 3, requires_grad=True)
    torch.autograd.backward(StraightThrough(layer, DYNAMIC).forward(x).sum())
    assert x.grad is not None
    assert layer.weight.grad is None


def test_a_weight_is_rounded_anew_after_each_backward_pass() -> None:
    layer = nn.Linear(3, 2)
    rounded, x = StraightThrough(layer, TrainingForm()), torch.ones(1, 3)
    for _ in range(2):
        with torch.no_grad():
            before = rounded.forward(x)
            layer.weight += 1.0
            # Rounded once between two backward passes, because weights change only after a backward pass.
            torch.testing.assert_close(rounded.forward(x), before)
        torch.autograd.backward(rounded.forward(x).sum())
        torch.testing.assert_close(rounded.forward(x), before + 3.0, rtol=0, atol=0.1)


def test_rounded_weights_of_float_inputs_pass_their_gradient_on() -> None:
    layer = nn.Linear(3, 2, bias=False)
    x, gradient = torch.randn(5, 3), torch.randn(5, 2)
    y = StraightThrough(layer, TrainingForm()).forward(x)
    torch.testing.assert_close(y, layer(x), rtol=0, atol=0.02)
    assert not torch.equal(y, layer(x))
    torch.autograd.backward(y, gradient)
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, gradient.t() @ x)


def test_gradients_of_4_bit_blocks_use_the_rounded_values() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(20, 6)
    x, gradient = torch.randn(5, 20, requires_grad=True), torch.randn(5, 6)
    torch.autograd.backward(StraightThrough(layer, TrainingForm(block=16)).forward(x), gradient)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, gradient @ Weights.in_blocks(layer.weight.detach(), 16).levels)
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, gradient.t() @ int8_blocks(x.detach(), 16))


def test_weights_in_blocks_lie_where_the_layer_is() -> None:
    rounded = Weights.in_blocks(torch.empty(4, 32, device="meta"), 16)
    assert {rounded.levels.device.type, rounded.scale.device.type} == {"meta"}
