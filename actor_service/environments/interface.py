"""What every backend of environments is: a batch that is reset once and then stepped for ever."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actorq.domain.trajectory import EnvironmentSpec, Episode


class Fault(NamedTuple):
    """What went wrong in one environment, which has begun a new episode since.

    restarted: it was made anew, as it had raised an error; otherwise it had given NaN or infinity.
    """

    environment: int
    reason: str
    restarted: bool


class Step(NamedTuple):
    """What one step of N environments gave. The arrays are overwritten by the next step.

    observations: [N, *observation], after the step
    rewards:      float32[N], as the environment gave them; 0 where not valid
    terminated, truncated, valid: bool[N], as in `actorq.domain.trajectory.Segment`
    episodes:     those that ended with this step
    faults:       environments whose step was lost: their row is of no use but for the observation, which begins a new
                  episode. Such rows are not valid, although the row before was no end.
    """

    observations: NDArray[Any]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    episodes: tuple[Episode, ...] = ()
    faults: tuple[Fault, ...] = ()


class Environments(ABC):
    """N environments of one id. `reset` once, then `step` for ever; episodes start over by themselves.

    spec: what a learner must know of them.
    lengths: int64[N], steps since the reset; that of an ended episode until the step that resets.
    steps_per_second: of the environment's own time, for videos.
    """

    steps_per_second = 30.0

    def __init__(self, spec: EnvironmentSpec, count: int) -> None:
        self.spec = spec
        self.count = count
        self.lengths = np.zeros(count, np.int64)

    @abstractmethod
    def reset(self, seed: int) -> NDArray[Any]:
        """Start new episodes in all environments and return their observations [N, *observation].

        The same seed and the same actions give the same episodes. The array is overwritten by the next step. Raises
        ActorQError when an environment cannot be reset.
        """

    @abstractmethod
    def step(self, actions: NDArray[Any]) -> Step:
        """Take one action in each environment, [N, *action]; raises ActorQError when one fails again and again."""

    def render(self, index: int) -> NDArray[np.uint8]:
        """A picture of one environment as it is, uint8[height, width, 3]."""
        raise NotImplementedError(f"{type(self).__name__} has no pictures of environment {index}")

    @abstractmethod
    def close(self) -> None:
        """Release the environments."""
