"""Wide hidden layers in bfloat16 are close to float32, and see every change of their weights."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.algorithms.trained import Minimizer
from learner_service.kernels.convolution import Conv2d
from learner_service.kernels.linear import keep_fp32
from learner_service.kernels.parameters import FlatParameters
from learner_service.networks import Linear, TwinCritic, mlp
from learner_service.networks.twin import batched_mlps

SPEC = EnvironmentSpec("Any-v0", ArraySpec((5,), "float32"), ArraySpec((2,), "float32", (-1.0,), (1.0,)), ())
WIDTH, ROWS = 160, 400
CHANNELS, IMAGES = 9, 16
# A factor or product is rounded by 2^-9 of itself at most, and each result has three roundings behind it.
CLOSE = 3 * 2.0**-9
# A rounding switches the ReLU of half a percent of the units. The error of a gradient is the root of that share.
SWITCHED = 0.1


def error(actual: Tensor, expected: Tensor) -> float:
    """The norm of the difference, relative to the expected values."""
    return float((actual - expected).detach().norm() / expected.detach().norm())


def data(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def layer() -> Linear:
    torch.manual_seed(0)
    return Linear(WIDTH, WIDTH)


def assert_close_and_different(
    expected: nn.Module, actual: nn.Module, inputs: Callable[[], Tensor], slopes: Tensor
) -> Tensor:
    """Compare values and gradients of two layers, all float32. slopes: of the loss. Returns the values of `actual`."""
    results = []
    for each in (expected, actual):
        x = inputs().requires_grad_()
        y = each(x)
        torch.autograd.backward((y * slopes).sum())
        results.append([y, x.grad, *(parameter.grad for parameter in each.parameters())])
        with torch.no_grad():
            assert torch.equal(each(x), y)
    for one, other in zip(results[1], results[0], strict=True):
        assert one.dtype == torch.float32
        assert error(one, other) < CLOSE
    assert not torch.equal(results[1][0], results[0][0])
    values: Tensor = results[1][0]
    return values


@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_close_to_float32_and_of_that_type(bias: bool) -> None:
    torch.manual_seed(0)
    expected = Linear(WIDTH, WIDTH, bias)
    actual = copy.deepcopy(expected)
    actual.use_bfloat16(FlatParameters(actual).vector)
    slopes = torch.arange(WIDTH).cos()
    assert_close_and_different(expected, actual, lambda: data(ROWS, WIDTH), slopes)


@pytest.mark.parametrize("narrow", [Linear(WIDTH, 64), Linear(64, WIDTH), keep_fp32(Linear(WIDTH, WIDTH))])
def test_narrow_first_and_last_layers_stay_as_they_are(narrow: Linear) -> None:
    x = data(3000, narrow.in_features)
    before = narrow(x)
    narrow.use_bfloat16(FlatParameters(narrow).vector)
    assert not narrow.wide_weights()
    assert torch.equal(narrow(x), before)


def test_few_rows_are_multiplied_in_float32() -> None:
    wide = layer()
    x = data(100, WIDTH)
    before = wide(x)
    wide.use_bfloat16(FlatParameters(wide).vector)
    assert torch.equal(wide(x), before)


def test_a_first_layer_of_a_network_keeps_float32() -> None:
    first, _, second, _ = mlp((WIDTH, WIDTH, WIDTH))
    assert isinstance(first, Linear)
    assert isinstance(second, Linear)
    assert not first.wide_weights()
    assert second.wide_weights()


def test_a_copy_of_a_network_computes_in_float32() -> None:
    wide = layer()
    wide.use_bfloat16(FlatParameters(wide).vector)
    copied = copy.deepcopy(wide)
    x = data(ROWS, WIDTH)
    assert torch.equal(copied(x), layer()(x))


class TestRenewal:
    """A layer multiplies by its present weights after any kind of change."""

    @pytest.fixture
    def parts(self) -> tuple[Linear, FlatParameters, Minimizer]:
        wide = layer()
        parameters = FlatParameters(wide)
        wide.use_bfloat16(parameters.vector)
        wide(data(ROWS, WIDTH))
        return wide, parameters, Minimizer(parameters, 0.1)

    def assert_present(self, wide: Linear, before: Tensor) -> None:
        x = data(ROWS, WIDTH)
        expected = nn.functional.linear(x, wide.weight, wide.bias)
        assert error(wide(x), expected) < CLOSE
        assert error(wide(x), before) > 10 * CLOSE

    def test_the_bfloat16_copy_follows_a_step(self, parts: tuple[Linear, FlatParameters, Minimizer]) -> None:
        wide, _, minimizer = parts
        before = wide(data(ROWS, WIDTH))
        minimizer.minimize(before.square().sum())
        self.assert_present(wide, before)

    def test_the_bfloat16_copy_follows_a_loaded_state(self, parts: tuple[Linear, FlatParameters, Minimizer]) -> None:
        wide, _, minimizer = parts
        before = wide(data(ROWS, WIDTH))
        minimizer.load_state({"parameters": -minimizer.state()["parameters"]})
        self.assert_present(wide, before)

    def test_the_bfloat16_copy_follows_a_target_update(self, parts: tuple[Linear, FlatParameters, Minimizer]) -> None:
        wide, parameters, _ = parts
        other = FlatParameters(Linear(WIDTH, WIDTH))
        before = wide(data(ROWS, WIDTH))
        parameters.vector.lerp_(other.vector, 0.5)
        self.assert_present(wide, before)
        before = wide(data(ROWS, WIDTH))
        parameters.vector.copy_(other.vector)
        self.assert_present(wide, before)

    def test_the_bfloat16_copy_follows_a_change_of_the_weight(
        self, parts: tuple[Linear, FlatParameters, Minimizer]
    ) -> None:
        wide, _, _ = parts
        before = wide(data(ROWS, WIDTH))
        with torch.no_grad():
            wide.weight.mul_(-1.0)
        self.assert_present(wide, before)


@pytest.fixture
def critics() -> tuple[TwinCritic, TwinCritic]:
    """The same twin critics in float32 and with their wide layers in bfloat16; the last hidden one is narrow."""
    torch.manual_seed(0)
    fp32 = TwinCritic(SPEC, (WIDTH, WIDTH, WIDTH, 40))
    bf16 = copy.deepcopy(fp32)
    bf16.use_bfloat16(FlatParameters(bf16).vector)
    return fp32, bf16


def twin_results(critic: TwinCritic, judge: bool) -> list[Tensor]:
    """Values, the gradient by the actions, and those by the parameters if they have any."""
    observations, actions = data(ROWS, 5), data(ROWS, 2).requires_grad_()
    critic.zero_grad()
    values = critic.judge(observations, actions, 1) if judge else critic(observations, actions)
    torch.autograd.backward(values.sum())
    gradients = [actions.grad, *(parameter.grad for parameter in critic.stacked)]
    with torch.no_grad():
        assert torch.equal(critic(observations, actions)[: len(values)], values)
    return [values, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("judge", [False, True])
def test_twin_critics_are_close_to_float32(critics: tuple[TwinCritic, TwinCritic], judge: bool) -> None:
    assert [each is not None for each in critics[0].bf16_weights] == []
    assert [each is not None for each in critics[1].bf16_weights] == [False, True, True, False, False]
    expected, actual = (twin_results(critic, judge) for critic in critics)
    assert not torch.equal(actual[0], expected[0])
    assert error(actual[0], expected[0]) < 2 * CLOSE
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == torch.float32
        assert error(one, other) < SWITCHED


def test_batched_products_are_close_to_float32_too(critics: tuple[TwinCritic, TwinCritic]) -> None:
    x = data(ROWS, 7)
    expected = batched_mlps(x, *critics[0].stacked)
    actual = batched_mlps(x, *critics[0].stacked, in_bfloat16=(False, True, True, False, False))
    assert 0 < error(actual, expected) < 2 * CLOSE


def convolution() -> Conv2d:
    torch.manual_seed(0)
    return Conv2d((CHANNELS, 36, 36), units=32, kernel=8, stride=4)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_are_close_to_float32_and_see_every_change(layout: torch.memory_format) -> None:
    expected = convolution()
    actual = copy.deepcopy(expected)
    vector = FlatParameters(actual).vector
    actual.use_bfloat16(vector)
    slopes = torch.arange(32).cos().view(-1, 1, 1)
    images = data(IMAGES, CHANNELS, 36, 36).contiguous(memory_format=layout)
    before = assert_close_and_different(expected, actual, images.clone, slopes)
    vector.mul_(2)
    assert error(actual(images), 2 * before) < CLOSE


def test_few_images_and_copies_of_a_convolution_are_in_float32() -> None:
    layer = convolution()
    x = data(IMAGES, CHANNELS, 36, 36)
    before = layer(x)
    layer.use_bfloat16(FlatParameters(layer).vector)
    few = layer.fewest_images - 1
    assert torch.equal(layer(x[:few]), before[:few])
    assert not torch.equal(layer(x), before)
    assert torch.equal(copy.deepcopy(layer)(x), before)
