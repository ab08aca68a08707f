"""Running statistics of a run: rates, staleness, returns, times. All have bounded size, and none is thread-safe."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np


class RateMeter:
    """Events per second over the last `window_s` seconds of a cumulative count. A lower count starts a new window."""

    def __init__(self, clock: Callable[[], float], window_s: float = 5.0) -> None:
        self._clock = clock
        self._window = window_s
        self._marks: deque[tuple[float, int]] = deque(maxlen=512)

    def rate(self, count: int) -> float:
        """Record the count so far and return the rate; 0 until there are two points in time."""
        now = self._clock()
        if self._marks and count < self._marks[-1][1]:
            self._marks.clear()
        if not self._marks or now - self._marks[-1][0] >= self._window / 256:
            self._marks.append((now, count))
        while len(self._marks) > 2 and now - self._marks[1][0] >= self._window:
            self._marks.popleft()
        start, first = self._marks[0]
        return (count - first) / (now - start) if now > start else 0.0


# The staleness whose bin also counts all higher values.
MOST_STALE = 1023


class StalenessHistogram:
    """Exact distribution of staleness, in versions after the acting version. The last bin counts all higher values."""

    def __init__(self, bins: int = MOST_STALE + 1) -> None:
        self._counts = np.zeros(bins, np.int64)

    def add(self, staleness: int, count: int) -> None:
        """Add `staleness` `count` times. A negative value, from before a restart of the learner, counts as 0."""
        self._counts[min(max(staleness, 0), len(self._counts) - 1)] += count

    def percentile(self, percent: float) -> float:
        """The smallest value that at least `percent` of the elements do not exceed; 0 without elements."""
        cumulative = np.cumsum(self._counts)
        return float(np.searchsorted(cumulative, cumulative[-1] * percent / 100)) if cumulative[-1] else 0.0

    def state(self) -> list[int]:
        """The counts, without trailing zeros."""
        return [int(count) for count in np.trim_zeros(self._counts, "b")]

    def load_state(self, counts: Sequence[int]) -> None:
        """Restore what `state` returned."""
        self._counts[:] = 0
        self._counts[: len(counts)] = counts


class Episodes:
    """Number of finished episodes and the returns of the last `window` of them."""

    def __init__(self, window: int = 100) -> None:
        self.count = 0
        self._returns: deque[float] = deque(maxlen=window)

    def add(self, episode_return: float) -> None:
        """Count a finished episode."""
        self.count += 1
        self._returns.append(episode_return)

    @property
    def mean_return(self) -> float | None:
        """Mean of the last returns; None before the first."""
        return float(np.mean(self._returns)) if self._returns else None

    def state(self) -> dict[str, Any]:
        """The count and the last returns."""
        return {"count": self.count, "returns": list(self._returns)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.count = int(state["count"])
        self._returns.extend(state["returns"])


class Samples:
    """The last `window` samples of a measured quantity, for its median."""

    def __init__(self, window: int = 1000) -> None:
        self._samples: deque[float] = deque(maxlen=window)

    def add(self, values: Iterable[float]) -> None:
        """Add samples."""
        self._samples.extend(values)

    @property
    def median(self) -> float | None:
        """Median of the samples; None before the first."""
        return float(np.median(self._samples)) if self._samples else None
