"""Frame stacking: gives a policy the last K observations of each environment."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.spaces import EnvironmentSpec


class FrameStack:
    """Stacks of the last K observations of N environments, oldest first: [N, K, *observation].

    At an episode's start, copies of its first observation fill the stack. K = 1 means no stack axis and no copy.
    """

    def __init__(self, spec: EnvironmentSpec, environments: int) -> None:
        self._depth = spec.frame_stack
        shape = (environments, self._depth, *spec.observations.shape)
        self._stack = np.zeros(shape if self._depth > 1 else 0, spec.observations.dtype)

    def push(self, observations: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
        """Add the next observations [N, *observation] and return the stacks. The next call overwrites them.

        lengths: int64[N], steps since each environment's reset.
        """
        if self._depth == 1:
            return observations
        self._stack[:, :-1] = self._stack[:, 1:]
        self._stack[:, -1] = observations
        begun = np.flatnonzero(lengths == 0)
        if begun.size:
            self._stack[begun] = observations[begun, None]
        return self._stack
