"""A bounded histogram of a measured quantity. Prometheus reads the histogram, which does not depend on Prometheus."""

import threading
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

# Bucket bounds from 1 ms (emission of a small policy) to 1 min (load of a large one over a slow network).
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """Counts values in buckets, by the smallest bound that is not exceeded. Thread-safe."""

    def __init__(self, bounds: Iterable[float] = SECONDS) -> None:
        self._bounds = tuple(sorted(bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count a value."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def snapshot(self) -> tuple[list[tuple[float, int]], float]:
        """For each bound and infinity (bound, number of values up to it), and the sum of all values."""
        with self._lock:
            return list(zip((*self._bounds, float("inf")), accumulate(self._counts), strict=True)), self._sum
