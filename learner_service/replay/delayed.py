"""Returns that become longer in the course of a run."""

import logging

from learner_service.replay.n_step import Returns

_log = logging.getLogger(__name__)


class DelayedReturns:
    """`first` until `after` transitions were inserted, then `longest` (RLx2, arXiv 2205.15043, sec. 4.2).

    Early in training the policy changes quickly, so rewards of several steps by older policies mislead the critic.
    Later these rewards compensate for the limited capacity of a sparse critic.

    after: transitions inserted over all restarts. The switch is permanent, even if a larger budget moves this number.

    Not thread-safe: the replay's lock covers it.
    """

    def __init__(self, first: Returns, longest: Returns, after: float) -> None:
        self.longest = longest
        """The returns with the most steps. Batches need room for these."""
        self.since: int | None = None
        """Transitions inserted before the first draw of the longer ones; None before it."""
        self._first = first
        self._after = after

    def at(self, inserted: int) -> Returns:
        """The returns to use after `inserted` transitions."""
        if self.since is None and inserted >= self._after:
            self.since = inserted
            _log.info("targets have %d steps from environment step %d on", self.longest.n_step, inserted)
        return self._first if self.since is None else self.longest
