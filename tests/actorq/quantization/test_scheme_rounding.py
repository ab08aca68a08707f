"""Rounding with error feedback matches GPTQ, and equals plain rounding without useful statistics."""

import numpy as np
import pytest
from numpy.typing import NDArray

from actorq.quantization.emission.rounding import DAMPING, ErrorFeedback
from actorq.quantization.emission.weights import quantize_int8


def inputs_of_a_layer(rows: int, inputs: int, seed: int = 0) -> NDArray[np.float64]:
    """Correlated outputs of a Relu."""
    rng = np.random.default_rng(seed)
    mixture = rng.standard_normal((6, inputs))
    return np.maximum(rng.standard_normal((rows, 6)) @ mixture, 0)


def moments_of(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return rows.T @ rows / len(rows)


def gptq(
    weight: NDArray[np.float64], scales: NDArray[np.float64], moments: NDArray[np.float64], lowest: int, highest: int
) -> NDArray[np.float64]:
    """The paper's algorithm: algorithm 1 of arXiv 2210.17323 without its batching; scales: [N, K]."""
    inputs = len(moments)
    damped = moments + DAMPING * np.diagonal(moments).mean() * np.eye(inputs)
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T
    remaining, integers = weight.copy(), np.empty_like(weight)
    for j in range(inputs):
        integers[:, j] = np.clip(np.rint(remaining[:, j] / scales[:, j]), lowest, highest)
        error = (remaining[:, j] - integers[:, j] * scales[:, j]) / factor[j, j]
        remaining[:, j:] -= np.outer(error, factor[j, j:])
    return integers


@pytest.mark.parametrize("block", [40, 16, 24])
@pytest.mark.parametrize(("lowest", "highest"), [(-127, 127), (-8, 7)])
@pytest.mark.parametrize("rows", [200, 20])
def test_error_feedback_gives_the_integers_of_gptq(rows: int, lowest: int, highest: int, block: int) -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((30, 40)).astype(np.float32)
    blocks = -(-40 // block)
    scale = (rng.uniform(2.0, 3.0, (30, blocks)) / highest).astype(np.float32)
    moments = moments_of(inputs_of_a_layer(rows, 40))

    values = ErrorFeedback(moments).round(weight, scale, block, lowest, highest)

    scales = np.repeat(scale.astype(np.float64), block, axis=1)[:, :40]
    assert np.array_equal(values, gptq(weight.astype(np.float64), scales, moments, lowest, highest))
    assert np.abs(values).max() == max(-lowest, highest)


def test_error_feedback_lowers_the_error_of_outputs_and_not_of_weights() -> None:
    weight = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)
    calibration, others = inputs_of_a_layer(256, 64), inputs_of_a_layer(512, 64)[256:]

    nearest = quantize_int8(weight)
    passed_on = quantize_int8(weight, feedback=ErrorFeedback(moments_of(calibration)))

    def error(values: NDArray[np.int8], rows: NDArray[np.float64]) -> float:
        return float(np.square(rows @ (values * nearest.scale[:, None] - weight).T).mean())

    assert np.array_equal(nearest.scale, passed_on.scale)
    for rows in (calibration, others):
        assert error(passed_on.values, rows) < 0.2 * error(nearest.values, rows)
    assert error(passed_on.values, np.eye(64)) > error(nearest.values, np.eye(64))


NOTHING_TO_LEARN = {
    "inputs of zeros": np.zeros((16, 16)),
    "independent inputs": np.diag(np.arange(1.0, 17.0)),
    "moments that overflow": np.full((16, 16), np.inf),
    "moments that are none": np.full((16, 16), np.nan),
    "moments with a negative eigenvalue": 2 * np.eye(16) - 1,
    "no positive moments": -np.eye(16) - 1,
}


@pytest.mark.parametrize("moments", NOTHING_TO_LEARN.values(), ids=NOTHING_TO_LEARN)
def test_rounds_to_nearest_without_useful_statistics(moments: NDArray[np.float64]) -> None:
    weight = np.random.default_rng(3).standard_normal((5, 16)).astype(np.float32)

    assert np.array_equal(quantize_int8(weight, feedback=ErrorFeedback(moments)).values, quantize_int8(weight).values)


def test_keeps_weights_that_are_multiples_of_the_scale() -> None:
    weight = np.random.default_rng(4).integers(-127, 128, (9, 32)).astype(np.float32)
    weight[:, 0] = 127

    quantized = quantize_int8(weight, feedback=ErrorFeedback(moments_of(inputs_of_a_layer(50, 32))))

    assert np.array_equal(quantized.values, weight)
