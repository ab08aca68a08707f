"""Returns whose number of steps grows during a run."""

import logging
from dataclasses import dataclass

from learner_service.replay.n_step import Returns

_log = logging.getLogger(__name__)


@dataclass
class DelayedReturns:
    """`first` until `after` transitions were inserted, then `longest` (RLx2, arXiv 2205.15043, sec. 4.2).

    Early in training the policy changes quickly, so rewards of several steps by older policies mislead the critic.
    Later these rewards compensate for the limited capacity of a sparse critic.

    after: transitions inserted over all restarts. The switch is permanent, even if a larger budget moves this number.
    since: transitions inserted before the first draw of longer returns; None before it.
    """

    first: Returns
    longest: Returns
    after: float
    since: int | None = None

    def at(self, inserted: int) -> Returns:
        """The returns to use after `inserted` transitions."""
        if self.since is None and inserted >= self.after:
            self.since = inserted
            _log.info("targets have %d steps from environment step %d on", self.longest.n_step, inserted)
        return self.first if self.since is None else self.longest
