"""The newest published policy versions, from which the lag of transitions is counted."""

from collections import deque
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PublishedVersions:
    """The last `max_lag` + 1 published versions. Not thread-safe.

    The lag of a version is the number of publications after it. The difference of two version numbers is not the lag,
    because a restarted learner skips numbers.

    Versions can be lost: a killed learner published them after its last checkpoint. The restarted learner learns from
    the same rollouts again, so its n-th publication repeats the n-th lost version. The lag of a lost version is
    therefore counted from the publication that repeats it.
    """

    def __init__(self, max_lag: int) -> None:
        self.max_lag = max_lag
        self._versions: deque[int] = deque(maxlen=max_lag + 1)
        # The last version of the checkpoint and the first version after it. Versions in between are lost.
        self._lost = (0, 0)
        self._since = 0
        self._is_restored = False

    def add(self, version: int) -> None:
        """Record a published version, which is above all earlier versions."""
        if self._is_restored:
            # This version has the checkpoint's parameters.
            self._lost, self._since, self._is_restored = (max(self._versions, default=0), version), 0, False
        else:
            self._since += 1
        self._versions.append(version)

    def lag(self, versions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number of publications after each of these versions, at most `max_lag` + 1."""
        different, places = np.unique(versions, return_inverse=True)
        lags = np.array([self.lag_of(version) for version in different.tolist()], np.int64)
        return lags[places].reshape(versions.shape)

    def lag_of(self, version: int) -> int:
        """As `lag`, for a single version. Fast for small lags."""
        last, first = self._lost
        if last < version < first:
            return min(max(0, self._since - (version - last)), self.max_lag + 1)
        return sum(1 for _ in takewhile(version.__lt__, reversed(self._versions)))

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON values."""
        return {"versions": list(self._versions), "lost": list(self._lost), "since": self._since}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._versions.clear()
        self._versions.extend(state["versions"])
        first, last = state["lost"]
        self._lost, self._since, self._is_restored = (first, last), state["since"], True
