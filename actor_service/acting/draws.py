"""Random numbers that depend on a key and their count only."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Rows that are drawn at once. Drawing them all costs as much as drawing one.
_ROWS = 128
# Each chunk of rows has as many counters of its own. No chunk needs nearly as many.
_COUNTERS_BITS = 64


class CountedDraws:
    """Rows of random numbers from a counter-based generator: Philox, Salmon et al., SC 2011.

    Row t depends on the key and on t only. It does not depend on the rows that were drawn before.
    """

    def __init__(
        self, key: int, rows: tuple[int, ...], dtype: type[np.floating[Any]], fill: Callable[..., object]
    ) -> None:
        """Prepare rows of the shape `rows` and of this dtype.

        key: below 2^64.
        fill: method of np.random.Generator that fills an array, such as np.random.Generator.random.
        """
        self._key = key
        self._fill = fill
        self._rows = np.zeros((_ROWS, *rows), dtype)
        self._chunk = -1

    def row(self, count: int) -> NDArray[Any]:
        """Row number `count`, from 0 on. A call for another chunk of rows overwrites the array."""
        chunk, row = divmod(count, _ROWS)
        if chunk != self._chunk:
            philox = np.random.Philox(counter=chunk << _COUNTERS_BITS, key=self._key)
            self._fill(np.random.Generator(philox), dtype=self._rows.dtype, out=self._rows)
            self._chunk = chunk
        drawn: NDArray[Any] = self._rows[row]
        return drawn
