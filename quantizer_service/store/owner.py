"""The learner that a store takes versions from: of two copies of a run's folder, only one publishes."""

from dataclasses import dataclass

from actorq.domain.lineage import Lineage
from actorq.errors import ConflictError

_MOST_REFUSED = 64


@dataclass(frozen=True)
class Owner:
    """The learner process that published last.

    epoch, process: see Lineage; 0 before the first. refused: numbers of the newest processes of this epoch that wanted
    to publish beside the owner. Later processes of their folder are refused too.
    """

    epoch: int = 0
    process: int = 0
    refused: tuple[int, ...] = ()

    def followed_by(self, learner: Lineage) -> "Owner":
        """The owner once a learner has taken the store over. Raises ConflictError when it may not."""
        if not learner.processes:
            return self
        if learner.epoch > self.epoch:
            return Owner(learner.epoch, learner.process)
        refused = self.refused and not set(self.refused).isdisjoint(learner.processes)
        if learner.epoch < self.epoch or refused or (self.process and self.process not in learner.processes):
            raise superseded()
        return Owner(self.epoch, learner.process, self.refused)

    def refusing(self, learner: Lineage) -> "Owner":
        """The owner, after it was there before another learner."""
        return Owner(self.epoch, self.process, (*self.refused, learner.process)[-_MOST_REFUSED:])


def superseded() -> ConflictError:
    """The error for a learner that may not go on with its run."""
    return ConflictError(
        "this learner's folder is a copy, and another learner has gone on with the run; end one of the two. To go on "
        "from this folder instead of the other, give it a new epoch: actorq restore RUN_DIR"
    )
