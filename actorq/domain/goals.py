"""Goals of an environment, and the columns with alternative goals for hindsight (arXiv 1707.01495)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actorq.domain.limits import MAX_GOAL_COPIES


@dataclass(frozen=True)
class Goal:
    """The positions of the achieved and the desired goal in a vector of observations.

    achieved, desired: index of the first component of each. size: number of components of a goal.
    """

    achieved: int
    desired: int
    size: int

    def achieved_of(self, observations: NDArray[np.generic]) -> NDArray[np.generic]:
        """The achieved goals of observations [..., components], as a view [..., size]."""
        return observations[..., self.achieved : self.achieved + self.size]

    def desired_of(self, observations: NDArray[np.generic]) -> NDArray[np.generic]:
        """The desired goals of observations [..., components], as a view [..., size]."""
        return observations[..., self.desired : self.desired + self.size]

    def fits(self, components: int) -> bool:
        """Whether both goals fit into a vector of this length and do not overlap."""
        apart = abs(self.achieved - self.desired) >= self.size
        return self.size >= 1 and apart and max(self.achieved, self.desired) + self.size <= components


@dataclass(frozen=True)
class HindsightColumns:
    """The names of the columns with other goals for each step. The names contain `copies`, which sets the shapes."""

    copies: int

    @property
    def goals(self) -> str:
        """Other goals, [T, N, copies, size of a goal]."""
        return f"hindsight_goals_{self.copies}"

    @property
    def rewards(self) -> str:
        """The reward of the step under each of these goals, float32[T, N, copies]."""
        return f"hindsight_rewards_{self.copies}"

    @property
    def terminated(self) -> str:
        """Whether the step ends the episode under each of these goals, bool[T, N, copies]."""
        return f"hindsight_terminated_{self.copies}"

    @property
    def names(self) -> tuple[str, ...]:
        """All names; none without copies."""
        return (self.goals, self.rewards, self.terminated) if self.copies else ()


HINDSIGHT = tuple(map(HindsightColumns, range(1, MAX_GOAL_COPIES + 1)))
"""The columns for each possible number of copies."""


def hindsight_of(names: tuple[str, ...]) -> HindsightColumns | None:
    """The hindsight columns among these names; None if they have none."""
    return next((each for each in HINDSIGHT if each.goals in names), None)
