"""The learner that publishes to a store. If a run's folder was copied, only one of the two learners publishes."""

from dataclasses import dataclass

from actorq.domain.lineage import Lineage
from actorq.errors import ConflictError

_MOST_REFUSED = 64


@dataclass(frozen=True)
class Owner:
    """The learner process that published last.

    epoch, process: see Lineage; 0 before the first.
    refused: numbers of the newest refused processes of this epoch. Later processes of their folders are refused too.
    """

    epoch: int = 0
    process: int = 0
    refused: tuple[int, ...] = ()

    def followed_by(self, learner: Lineage) -> "Owner":
        """The new owner, after a learner has taken over the store. Raises ConflictError when the learner may not."""
        if not learner.processes:
            return self
        if learner.epoch > self.epoch:
            return Owner(learner.epoch, learner.process)
        refused = self.refused and not set(self.refused).isdisjoint(learner.processes)
        if learner.epoch < self.epoch or refused or (self.process and self.process not in learner.processes):
            raise superseded()
        return Owner(self.epoch, learner.process, self.refused)

    def refusing(self, learner: Lineage) -> "Owner":
        """The owner after it has refused another learner."""
        return Owner(self.epoch, self.process, (*self.refused, learner.process)[-_MOST_REFUSED:])


def superseded() -> ConflictError:
    """The error for a learner that may not continue its run."""
    return ConflictError(
        "this learner's folder is a copy, and another learner has continued the run; end one of the two. "
        "To continue from this folder instead of the other, give it a new epoch: actorq restore RUN_DIR"
    )
