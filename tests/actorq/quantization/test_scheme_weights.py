"""How weights become integers: the formulas of emission.weights."""

import numpy as np
import pytest

from actorq.domain.policy import INT8_PER_CHANNEL, INT8_PER_TENSOR
from actorq.quantization.emission.weights import contiguous, quantize_int4, quantize_int8


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_weights_are_rounded_half_to_even_and_scaled_per_channel() -> None:
    weight = np.array([[127.0, 0.5, 1.5, -127.0], [12.7, -0.15, 0.25, 0.0]], np.float32)

    quantized = quantize_int8(weight)

    assert np.array_equal(quantized.scale, np.array([1.0, 0.1], np.float32))
    assert quantized.values.tolist() == [[127, 0, 2, -127], [127, -2, 2, 0]]
    assert quantized.values.dtype == np.int8
    assert quantized.form == INT8_PER_CHANNEL


@pytest.mark.parametrize("shape", [(3, 5), (200, 300), (8, 4, 3, 3), (1, 1), (64, 1)])
def test_no_weight_is_off_by_more_than_half_a_scale(shape: tuple[int, ...]) -> None:
    weight = normal(*shape)

    for error in (0.0, 1.0):
        quantized = quantize_int8(weight, error)

        scale = quantized.scale.reshape(-1, *[1] * (len(shape) - 1))
        assert quantized.values.shape == shape
        assert np.all(np.abs(quantized.values * scale - weight) <= scale * 0.5001)


def test_uses_one_scale_only_up_to_the_allowed_error() -> None:
    weight = normal(64, 100)
    one = quantize_int8(weight, 1.0)
    lost = np.linalg.norm(one.values * one.scale - weight, axis=1) / np.linalg.norm(weight, axis=1)
    error = float(np.sqrt(np.mean(lost**2)))

    assert (one.form, one.scale.shape) == (INT8_PER_TENSOR, ())
    assert one.scale == np.abs(weight).max() / np.float32(127)
    assert quantize_int8(weight, error * 1.001).form == INT8_PER_TENSOR
    assert quantize_int8(weight, error * 0.999).form == INT8_PER_CHANNEL


def test_a_channel_of_small_weights_counts_as_much_as_the_others() -> None:
    weight = normal(8, 1000)
    weight[3] *= 1e-3

    # This channel's loss is negligible in the whole matrix, but large in the channel's own output.
    assert quantize_int8(weight, 0.05).form == INT8_PER_CHANNEL


@pytest.mark.parametrize("value", [1e-30, 1e-38, 1e-45])
def test_considers_a_channel_whose_squares_underflow(value: float) -> None:
    weight = normal(4, 10)
    weight[2] = value

    assert quantize_int8(weight, 0.4).form == INT8_PER_CHANNEL


def test_a_channel_of_zeros_needs_no_scale_of_its_own() -> None:
    weight = np.random.default_rng(0).uniform(-1, 1, (64, 100)).astype(np.float32)
    weight[7] = 0

    assert quantize_int8(weight, 0.01).form == INT8_PER_TENSOR


@pytest.mark.parametrize("value", [0.0, 1e-45, -1e-38])
def test_a_channel_too_small_for_a_scale_becomes_zero(value: float) -> None:
    quantized = quantize_int8(np.full((1, 3), value, np.float32))

    assert quantized.scale.tolist() == [1.0]
    assert not quantized.values.any()


@pytest.mark.parametrize("magnitude", [1e-30, 1.0, 1e30, 3e38])
def test_the_largest_weight_is_kept_at_any_magnitude(magnitude: float) -> None:
    weight = np.array([[magnitude, -magnitude]], np.float32)

    for error in (0.0, 0.01):
        quantized = quantize_int8(weight, error)

        assert quantized.values.tolist() == [[127, -127]]
        assert np.allclose(quantized.values * quantized.scale, weight, rtol=1e-6)


def test_a_scale_is_not_below_its_lower_bound() -> None:
    weight, least = normal(2, 50), np.array([0.0, 0.5], np.float32)

    quantized = quantize_int8(weight, least=least)

    assert quantized.scale[0] == np.abs(weight[0]).max() / np.float32(127)
    assert quantized.scale[1] == 0.5
    assert np.array_equal(quantized.values[1], np.rint(weight[1] / 0.5))


@pytest.mark.parametrize("shape", [(1, 1), (50, 3), (3, 50), (64, 64), (700, 130)])
@pytest.mark.parametrize("error", [0.0, 0.01, 1.0])
def test_the_memory_layout_of_the_weights_does_not_matter(shape: tuple[int, int], error: float) -> None:
    weight = normal(*shape)

    rows, columns = quantize_int8(weight, error), quantize_int8(np.asfortranarray(weight), error)

    assert np.array_equal(rows.values, columns.values)
    assert np.array_equal(rows.scale, columns.scale)
    assert columns.values.flags.c_contiguous
    assert np.array_equal(contiguous(rows.values.T), rows.values.T)
    assert contiguous(rows.values.T).flags.c_contiguous
    blocks, other = quantize_int4(weight, 16), quantize_int4(np.asfortranarray(weight), 16)
    assert np.array_equal(blocks.tensor, other.tensor)
    assert np.array_equal(blocks.scale, other.scale)


@pytest.mark.parametrize(("units", "inputs", "block"), [(3, 16, 16), (7, 100, 64), (5, 257, 128), (300, 300, 32)])
def test_int4_weights_are_off_by_half_a_scale_or_one_at_the_far_end(units: int, inputs: int, block: int) -> None:
    weight = normal(units, inputs)
    blocks = -(-inputs // block)

    quantized = quantize_int4(weight, block)
    packed, scale = quantized.tensor, quantized.scale

    assert (packed.shape, scale.shape) == ((units, blocks, block // 2), (units, blocks))
    values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(units, blocks, block).astype(np.float32) - 8
    restored = (values * scale[:, :, None]).reshape(units, -1)
    steps = np.repeat(np.abs(scale), block, axis=1)[:, :inputs]
    far = values.reshape(units, -1)[:, :inputs] == 7
    assert np.all(np.abs(restored[:, :inputs] - weight) <= steps * np.where(far, 1.0001, 0.5001))
    # Blocks are padded with 0, and the largest weight of a block is exact.
    assert not restored[:, inputs:].any()
    padded = np.zeros(restored.shape, np.float32)
    padded[:, :inputs] = weight
    largest = np.abs(padded).reshape(units, blocks, block).argmax(axis=2)
    assert np.all(np.take_along_axis(values, largest[:, :, None], axis=2) == -8)


def test_int4_blocks_of_zeros_or_tiny_weights_have_a_scale() -> None:
    weight = np.zeros((2, 32), np.float32)
    weight[1, 20] = 1e-40

    quantized = quantize_int4(weight, 16)

    assert np.array_equal(quantized.scale, np.ones((2, 2), np.float32))
    assert np.all(quantized.tensor == 0x88)
