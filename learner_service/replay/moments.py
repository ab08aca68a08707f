"""Mean and variance of the stored observations, for the normalizer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import Array


class ObservationMoments:
    """Running mean and sum of squared deviations of each component, merged batch by batch, in float64.

    Uses the pairwise update of Chan, Golub and LeVeque 1983 (equations 2.1). It never subtracts large sums, so it stays
    exact when the mean is much larger than the deviation. Not thread-safe: the buffer's lock covers it.

    through: total transitions of the store up to the last counted one.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        """shape: of one observation, without a stack."""
        self.count = 0
        self.through = 0
        self._mean = np.zeros(shape, np.float64)
        self._squares = np.zeros(shape, np.float64)

    @property
    def mean(self) -> NDArray[np.float64]:
        """float64[*observation], a copy; zeros before the first observation."""
        return self._mean.copy()

    @property
    def std(self) -> NDArray[np.float64]:
        """Standard deviation, float64[*observation]; zeros before the first observation."""
        return np.sqrt(self._squares / max(1, self.count))

    def add(self, observations: Array, through: int) -> None:
        """Add observations [B, *observation]. through: total transitions of the store up to these."""
        self.through = through
        size = len(observations)
        if size == 0:
            return
        batch = observations.astype(np.float64)
        mean = batch.mean(axis=0)
        batch -= mean
        squares = np.einsum("i...,i...->...", batch, batch)
        total = self.count + size
        difference = mean - self._mean
        self._mean += difference * (size / total)
        self._squares += squares + difference**2 * (self.count * size / total)
        self.count = total

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON values. Floats survive JSON unchanged."""
        return {
            "count": self.count,
            "through": self.through,
            "mean": self._mean.ravel().tolist(),
            "squares": self._squares.ravel().tolist(),
        }

    def load_state(self, state: dict[str, Any], stored: int) -> None:
        """Restore what `state` returned. Raises ValueError when the shape of observations differs.

        stored: total transitions of the store. A power cut may lose the newest ones.
        """
        for array, values in ((self._mean, state["mean"]), (self._squares, state["squares"])):
            array[...] = np.reshape(values, array.shape)
        self.count, self.through = state["count"], min(state["through"], stored)
