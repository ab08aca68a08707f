"""Which learner of a run goes on, when its folder was copied or restored (docs/decisions/0060-epochs.md)."""

import time
from dataclasses import dataclass

MAX_LINEAGE = 64
"""Number of processes in a lineage. A quantizer that was away during more restarts refuses the learner."""
# The first second of 2025. Numbers since then fit 31 bits for decades.
_SINCE_S = 1_735_689_600


def unique_number(above: int) -> int:
    """The number of a new epoch or process, above `above`: of seconds, so that no copy of a folder gives it again."""
    return max(above + 1, round(time.time()) - _SINCE_S)


@dataclass(frozen=True)
class Lineage:
    """A learner among the copies of its run's folder.

    epoch: raised by each restore of the folder from a copy; below 2^31. The highest one goes on with the run.
    processes: random 64-bit numbers of the folder's newest learner processes, this one last; empty for a learner that
        is not checked. Two copies of a folder have the same processes up to the copy, and different ones after it.
    """

    epoch: int = 0
    processes: tuple[int, ...] = ()

    @property
    def process(self) -> int:
        """The number of this process; 0 for a learner that is not checked."""
        return self.processes[-1] if self.processes else 0


UNCHECKED = Lineage()
"""Of a learner that does not say which copy of the folder it has, as older ones."""
