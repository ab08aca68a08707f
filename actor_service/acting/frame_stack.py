"""What a policy sees of environments whose observations are single frames: the last K of each."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.trajectory import EnvironmentSpec


class FrameStack:
    """Stacks of the last K observations of N environments, oldest first: [N, K, *observation].

    In a young episode the first observation stands in for those that there were not. With K = 1 there is no axis and
    nothing is copied.
    """

    def __init__(self, spec: EnvironmentSpec, environments: int) -> None:
        self._depth = spec.frame_stack
        shape = (environments, self._depth, *spec.observations.shape)
        self._stack = np.zeros(shape if self._depth > 1 else 0, spec.observations.dtype)

    def push(self, observations: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
        """Take the next observations [N, *observation]; `lengths` are the steps since each one's reset, int64[N].

        Returns what the policy is to be given; overwritten by the next call.
        """
        if self._depth == 1:
            return observations
        self._stack[:, :-1] = self._stack[:, 1:]
        self._stack[:, -1] = observations
        begun = np.flatnonzero(lengths == 0)
        if begun.size:
            self._stack[begun] = observations[begun, None]
        return self._stack
