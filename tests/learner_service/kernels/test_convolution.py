"""Convolutions of bytes: results and gradients are those of the bytes divided by 255."""

import copy

import pytest
import torch
from torch import Tensor

from actorq.quantization.schemes.int8 import dynamic_grid
from actorq.quantization.training import TrainingForm, Uint8
from learner_service.kernels.convolution import Conv2d, fractions
from learner_service.kernels.parameters import FlatParameters
from learner_service.quantization.straight_through import StraightThrough

IMAGES, CHANNELS, SIDE = 16, 9, 36
# Errors relative to the norm, of float32 and of three roundings to bfloat16.
FP32, BF16 = 1e-6, 3 * 2.0**-9


def layer() -> Conv2d:
    torch.manual_seed(0)
    return Conv2d((CHANNELS, SIDE, SIDE), units=32, kernel=8, stride=4)


def some_bytes() -> Tensor:
    shape = IMAGES, CHANNELS, SIDE, SIDE
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def error(actual: Tensor, expected: Tensor) -> float:
    """The norm of the difference, relative to the expected values."""
    return float((actual - expected).detach().norm() / expected.detach().norm())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("in_bf16", "close"), [(False, FP32), (True, BF16)], ids=["fp32", "bf16"])
def test_bytes_are_divided_by_255(layout: torch.memory_format, in_bf16: bool, close: float) -> None:
    expected = layer()
    actual = copy.deepcopy(expected)
    if in_bf16:
        actual.use_bfloat16(FlatParameters(actual).vector)
    images = some_bytes().contiguous(memory_format=layout)
    results = [expected(fractions(images)), actual(images)]
    assert error(*reversed(results)) < close
    slopes = torch.arange(32).cos().view(-1, 1, 1)
    for each in results:
        (each.sin() * slopes).sum().backward()
    for one, other in zip(actual.parameters(), expected.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert error(one.grad, other.grad) < 2 * close


def test_no_rounding_precedes_a_product_in_bfloat16() -> None:
    # Weights that bfloat16 represents exactly.
    exact = layer()
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(parameter.bfloat16().float())
    rounded = copy.deepcopy(exact)
    rounded.use_bfloat16(FlatParameters(rounded).vector)
    images = some_bytes()
    expected = exact(fractions(images))
    assert error(rounded(images), expected) < error(rounded(fractions(images)), expected)


def test_a_single_image_may_be_bytes_too() -> None:
    one = layer()
    one.use_bfloat16(FlatParameters(one).vector)
    image = some_bytes()[:1]
    assert one.fewest_images > 1
    assert error(one(image), one(fractions(image))) < FP32


def test_simulated_rounding_reads_bytes_as_fractions() -> None:
    module = layer()
    rounding = StraightThrough(module, TrainingForm(inputs=Uint8(dynamic_grid)))
    images = some_bytes()
    assert torch.equal(rounding.forward(images), rounding.forward(fractions(images)))
