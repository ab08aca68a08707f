"""Statistics of tensors over a calibration batch, compared with NumPy in float64."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actorq.quantization.calibration import SINGLE_THREADED_PRODUCTS, Statistic, evenly_spaced, rows_of, summarize

SHAPES = [(1, 1), (3, 5), (7, 4, 5), (2 * SINGLE_THREADED_PRODUCTS // 64**2 + 1, 64)]


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_statistics_match_numpy(shape: tuple[int, ...]) -> None:
    array = normal(*shape)
    rows = array.reshape(-1, shape[-1]).astype(np.float64)

    assert summarize(array, Statistic.RANGE).tolist() == [array.min(), array.max()]
    np.testing.assert_allclose(summarize(array, Statistic.MEAN), rows.mean(axis=0), rtol=1e-12, atol=1e-15)
    expected = np.einsum("bi,bj->ij", rows, rows) / len(rows)
    np.testing.assert_allclose(summarize(array, Statistic.MOMENTS), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float64])
def test_statistics_do_not_depend_on_the_dtype(dtype: type[Any]) -> None:
    array = np.random.default_rng(1).integers(0, 256, (50, 3)).astype(dtype)

    for statistic in Statistic:
        found = summarize(array, statistic)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, summarize(array.astype(np.float32), statistic))


@pytest.mark.parametrize("wrong", [[np.nan], [np.inf], [-np.inf], [np.inf, -np.inf, np.nan]])
def test_values_that_are_not_finite_count_as_zero_and_have_no_range(wrong: list[float]) -> None:
    array, without = normal(8, 4) + 3, normal(8, 4) + 3
    array.flat[: len(wrong)], without.flat[: len(wrong)] = wrong, 0

    for statistic in (Statistic.MEAN, Statistic.MOMENTS):
        np.testing.assert_array_equal(summarize(array, statistic), summarize(without, statistic))
    assert summarize(array, Statistic.RANGE).tolist() == [
        array.flat[len(wrong) :].min(),
        array.flat[len(wrong) :].max(),
    ]


def test_a_tensor_without_finite_values_has_the_range_of_zero() -> None:
    assert summarize(np.full((2, 2), np.inf, np.float32), Statistic.RANGE).tolist() == [0, 0]


def test_squares_and_sums_of_large_values_do_not_overflow() -> None:
    large = float(np.float32(3e38))
    array = np.full((4, 2), large, np.float32)

    assert summarize(array, Statistic.RANGE).tolist() == [large, large]
    assert summarize(array, Statistic.MEAN).tolist() == [large, large]
    np.testing.assert_allclose(summarize(array, Statistic.MOMENTS), np.full((2, 2), large**2))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 9])
def test_chooses_evenly_spaced_rows_at_the_same_positions_of_each_tensor(count: int) -> None:
    batch = {"a": np.arange(10.0), "b": np.arange(20).reshape(10, 2)}

    chosen = evenly_spaced(batch, count)

    assert rows_of(chosen) == count
    assert chosen["a"][0] == 0
    assert count == 1 or chosen["a"][-1] == 9
    steps = np.diff(chosen["a"])
    assert count == 1 or steps.max() - steps.min() <= 1
    np.testing.assert_array_equal(chosen["b"][:, 0], 2 * chosen["a"])


@pytest.mark.parametrize("count", [10, 11])
def test_keeps_a_batch_that_has_few_rows(count: int) -> None:
    batch = {"a": np.arange(10.0)}

    assert evenly_spaced(batch, count) is batch
