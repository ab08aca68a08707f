"""Decides which learner continues a run whose folder was copied or restored (docs/decisions/0060-epochs.md)."""

import time
from dataclasses import dataclass

MAX_LINEAGE = 64
"""Number of processes in a lineage. A quantizer that missed more restarts than this refuses the learner."""
# The first second of 2025. The seconds since then fit 31 bits for decades.
_SINCE_S = 1_735_689_600


def unique_number(above: int) -> int:
    """The number of a new epoch or process, above `above`. It counts seconds, so copies of a folder never repeat it."""
    return max(above + 1, round(time.time()) - _SINCE_S)


@dataclass(frozen=True)
class Lineage:
    """Identifies a learner among the copies of its run's folder.

    epoch: each restore of the folder from a copy raises it; below 2^31. The learner with the highest epoch continues.
    processes: random 64-bit numbers of the folder's newest learner processes, this one last; empty for a learner
        without this check. Two copies of a folder share the processes before the copy, and differ after it.
    """

    epoch: int = 0
    processes: tuple[int, ...] = ()

    @property
    def process(self) -> int:
        """The number of this process; 0 for a learner without this check."""
        return self.processes[-1] if self.processes else 0


UNCHECKED = Lineage()
"""Lineage of older learners, which do not report their copy of the folder."""
