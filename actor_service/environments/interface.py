"""The interface of every environment backend: a batch that is reset once and then stepped forever."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actor_service.goals.rewards import GoalRewards
from actorq.domain.limits import LARGEST_NUMBER
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Episode

OUT_OF_RANGE = f"NaN or a number beyond {LARGEST_NUMBER:g}"
"""The reason of a fault: the learner would refuse this reward or observation."""


class Fault(NamedTuple):
    """A failed step of one environment, which has begun a new episode since then.

    restarted: True if it raised an error and was recreated; False if a value was `OUT_OF_RANGE` and it was reset.
    error: the exception, if known.
    """

    environment: int
    reason: str
    restarted: bool
    error: BaseException | None = None


class Step(NamedTuple):
    """The result of one step of N rows. The next step overwrites the arrays.

    A row is an environment, or one agent of an environment with several agents.

    observations: [N, *observation], after the step
    rewards:      float32[N], as the environments returned them; 0 where not valid
    terminated, truncated, valid: bool[N], as in `actorq.domain.trajectory.Segment`
    episodes:     the episodes that ended with this step
    faults:       the failed environments. Their rows are not valid; only its observation counts, which begins a new
                  episode. The environment's previous row is not marked as an end, so the caller must end the episode
                  there.
    """

    observations: NDArray[Any]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    episodes: tuple[Episode, ...] = ()
    faults: tuple[Fault, ...] = ()


class Environments(ABC):
    """N environments of one id. Call `reset` once, then `step` forever. Episodes restart by themselves.

    spec: the description of one environment for the learner.
    rows: number of rows of observations, actions and results: one for each agent of each environment.
    lengths: int64[rows], steps of each environment since its last reset. An ended episode keeps its length until the
        step that resets. With several agents: steps since the agent came, and 0 while it is absent.
    present: bool[rows], whether the newest observation of a row is the agent's own; see `PRESENT`.
    steps_per_second: steps in one second of simulated time, for videos.
    goal_rewards: computes the environment's rewards for other goals; None without goals.
    """

    steps_per_second = 30.0
    goal_rewards: GoalRewards | None = None

    def __init__(self, spec: EnvironmentSpec, count: int) -> None:
        self.spec = spec
        self.count = count
        self.rows = count * spec.agent_count
        self.lengths = np.zeros(self.rows, np.int64)
        self.present = np.ones(self.rows, np.bool_)

    @abstractmethod
    def reset(self, seed: int) -> NDArray[Any]:
        """Start new episodes in all environments and return their observations [rows, *observation].

        The same seed and the same actions give the same episodes. The next step overwrites the array. Raises
        ActorQError when an environment cannot be reset.
        """

    @abstractmethod
    def step(self, actions: NDArray[Any]) -> Step:
        """Take one action in each row, [rows, *action]. Raises ActorQError when one fails repeatedly."""

    def render(self, index: int) -> NDArray[np.uint8]:
        """A picture of one environment's current state, uint8[height, width, 3]."""
        raise NotImplementedError(f"{type(self).__name__} cannot render environment {index}")

    @abstractmethod
    def close(self) -> None:
        """Release the environments."""
