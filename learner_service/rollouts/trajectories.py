"""Trajectories as on-policy algorithms read them: consecutive steps with the probabilities of their actions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import Array


@dataclass(frozen=True)
class Trajectories:
    """T consecutive steps of N environments, time-major.

    observations:      [T + 1, N, *policy_observation]: single observations, or stacks; the last row only bootstraps
    actions:           [T, N, *action]; continuous actions as drawn: see `Segment.actions`
    rewards:           float32[T, N], clipped or normalized if the run asks for it
    terminated:        bool[T, N], the environment reached a terminal state: do not bootstrap past it
    truncated:         bool[T, N], the episode was cut by a time limit: bootstrap with observation t + 1
    valid:             bool[T, N], false if the step only reset the environment. Observation t + 1 is then the first one
                       of the new episode
    log_probabilities: float32[T, N], log mu(a | s) of the quantized policy that acted
    policy_versions:   int64[T, N], the version that acted
    senders:           uint64[T, N], numbers that tell the actors apart
    """

    observations: Array
    actions: Array
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    log_probabilities: NDArray[np.float32]
    policy_versions: NDArray[np.int64]
    senders: NDArray[np.uint64]

    @property
    def steps(self) -> int:
        """Environment steps, resets included: T * N."""
        return self.rewards.size
