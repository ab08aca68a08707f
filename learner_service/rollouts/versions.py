"""The policy versions that the learner published last, from which the lag of transitions is counted."""

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class PublishedVersions:
    """The last `max_lag` + 1 published versions. Not thread-safe.

    The lag of a version is the number of publications after it. The difference of two version numbers is not the lag,
    because a restarted learner leaves numbers out.
    """

    def __init__(self, max_lag: int) -> None:
        self.max_lag = max_lag
        self._versions: deque[int] = deque(maxlen=max_lag + 1)

    def add(self, version: int) -> None:
        """Note a published version. It is above all earlier ones."""
        self._versions.append(version)

    def lag(self, versions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of publications after each of these versions, at most `max_lag` + 1."""
        known = np.array(self._versions, np.int64)
        lags: NDArray[np.int64] = len(known) - np.searchsorted(known, versions, side="right")
        return lags

    def state(self) -> list[int]:
        """The versions, for a checkpoint."""
        return list(self._versions)

    def load_state(self, versions: Iterable[int]) -> None:
        """Restore what `state` returned."""
        self._versions.clear()
        self._versions.extend(versions)
