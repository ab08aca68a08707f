"""Counts the faults of single environments, and ends the actor when there are too many in a row."""

import logging

from actorq.errors import ActorQError, UserError
from actorq.text import one_line

_log = logging.getLogger(__name__)

# Consecutive faults of one environment that end the actor.
MOST_FAULTS = 10
# The lower limit before the batch's first good step. A broken environment needs no more restarts.
MOST_FAULTS_AT_START = 5


class FaultLimits:
    """The consecutive faults of each of `count` environments."""

    def __init__(self, environment_id: str, count: int) -> None:
        self._environment_id = environment_id
        self._in_a_row = [0] * count
        self._faulty: set[int] = set()
        self._has_stepped = False

    def count(self, index: int, reason: str, cause: BaseException | None = None) -> None:
        """Count and log a fault of an environment.

        `MOST_FAULTS` faults in a row raise ActorQError. Before the first good step, `MOST_FAULTS_AT_START` raise
        UserError.
        """
        self._in_a_row[index] += 1
        self._faulty.add(index)
        reason = one_line(" ".join(reason.split()))
        _log.warning("environment %d of %s: %s", index, self._environment_id, reason)
        if not self._has_stepped and self._in_a_row[index] >= MOST_FAULTS_AT_START:
            raise UserError(f"environment {self._environment_id} does not work: {reason}") from cause
        if self._in_a_row[index] >= MOST_FAULTS:
            raise ActorQError(
                f"environment {self._environment_id} failed {MOST_FAULTS} times in a row; the last time: {reason}"
            ) from cause

    def settle(self, failed: set[int]) -> None:
        """Record a step: the environments that did not fail in it begin again at 0. failed: those that did."""
        if self._faulty:
            for index in self._faulty - failed:
                self._in_a_row[index] = 0
            self._faulty &= failed
        self._has_stepped = self._has_stepped or len(failed) < len(self._in_a_row)
