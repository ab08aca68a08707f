"""Returns that become longer in the course of a run."""

import logging

from learner_service.replay.n_step import Returns

_log = logging.getLogger(__name__)


class DelayedReturns:
    """`first` until so many transitions were inserted, then `longest` (RLx2, arXiv 2205.15043, sec. 4.2).

    Early on a sparse critic is far off and the policy changes quickly, so that the rewards of several steps, taken by
    older policies, would mislead more than they tell; later they make up for what the critic cannot represent.

    after: transitions inserted over all restarts, from which on it is so. Once it is, it stays, also when the run goes
        on with a larger budget of which that is a smaller share.

    Not thread-safe: the lock of the replay covers it.
    """

    def __init__(self, first: Returns, longest: Returns, after: float) -> None:
        self.longest = longest
        """What batches are to have room for."""
        self.since: int | None = None
        """Transitions inserted before the first draw of the longer ones; None before it."""
        self._first = first
        self._after = after

    def at(self, inserted: int) -> Returns:
        """How rewards become returns once so many transitions were inserted."""
        if self.since is None and inserted >= self._after:
            self.since = inserted
            _log.info("targets are of %d steps from environment step %d on", self.longest.n_step, inserted)
        return self._first if self.since is None else self.longest
