"""The bound of all numbers: few and many numbers have the same one."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actorq.domain.limits import LARGEST_NUMBER, all_within_numbers, within_numbers


@pytest.mark.parametrize("count", [1, 4, 31, 32, 1_000])
@pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf, 2 * LARGEST_NUMBER])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_number_beyond_the_bound_is_found_among_any_others(count: int, bad: float | None, dtype: type) -> None:
    numbers: NDArray[Any] = np.full((1, count), LARGEST_NUMBER, dtype)
    if bad is not None:
        numbers[0, -1] = bad
    assert all_within_numbers(numbers) is (bad is None)
    assert all_within_numbers(numbers) == within_numbers(numbers).all()
