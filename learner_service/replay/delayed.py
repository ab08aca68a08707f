"""Returns whose number of steps grows during a run."""

import logging
from dataclasses import dataclass

from learner_service.replay.n_step import Returns

_log = logging.getLogger(__name__)


@dataclass
class DelayedReturns:
    """`first` until the run has made `after` steps, then `longest` (RLx2, arXiv 2205.15043, sec. 4.2).

    Early in training the policy changes quickly, so rewards of several steps by older policies mislead the critic.
    Later these rewards compensate for the limited capacity of a sparse critic.

    after: steps over all restarts. The switch is permanent, even if a larger budget moves this number.
    since: steps before the first draw of longer returns; None before it.
    unit: what the steps are: environment steps, which are inserted transitions; or updates of an offline run.
    """

    first: Returns
    longest: Returns
    after: float
    since: int | None = None
    unit: str = "environment step"

    def at(self, steps: int) -> Returns:
        """The returns to use after this number of steps."""
        if self.since is None and steps >= self.after:
            self.since = steps
            _log.info("targets have %d steps from %s %d on", self.longest.n_step, self.unit, steps)
        return self.first if self.since is None else self.longest
