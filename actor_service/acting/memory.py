"""The states of a recurrent policy in an actor: they belong to the acting loop, so a new policy goes on with them."""

import numpy as np
from numpy.typing import NDArray

from actor_service.policies.policy import OnnxPolicy


class PolicyStates:
    """The states before the next step, float32[N, S], of N environments. They are zero where an episode begins."""

    def __init__(self, environments: int, size: int) -> None:
        self.values = np.zeros((environments, size), np.float32)

    def give(self, policy: OnnxPolicy, rows: slice = slice(None)) -> None:
        """Make the states of these environments the policy's input of its next call."""
        np.copyto(policy.state, self.values[rows])

    def take(self, policy: OnnxPolicy, rows: slice = slice(None)) -> None:
        """Take the states after the policy's last call, of the same environments."""
        self.values[rows] = policy.next_state

    def begin(self, lengths: NDArray[np.int64]) -> None:
        """Make states zero where an episode begins. lengths: int64[N], steps since each environment's reset."""
        begun = np.flatnonzero(lengths == 0)
        if begun.size:
            self.values[begun] = 0.0
