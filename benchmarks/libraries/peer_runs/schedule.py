"""When another library's run evaluates its policy."""

import time
from collections.abc import Callable


class EvaluationSchedule:
    """An evaluation is due after `period` steps, and not before all evaluations fit into `share` of the run's time.

    The library learns nothing during an evaluation, so frequent evaluations slow it down.

    period: environment steps. share: in (0, 1]; 1 for no limit. clock: seconds.
    """

    def __init__(self, period: int, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._period, self._share, self._clock = period, share, clock
        self._next_steps = period
        self._next_s = clock()

    def is_due(self, steps: int) -> bool:
        """Whether to evaluate now, after `steps` environment steps."""
        return steps >= self._next_steps and self._clock() >= self._next_s

    def ended(self, steps: int, seconds: float) -> None:
        """Record the end of an evaluation. steps: at its start. seconds: its duration."""
        self._next_steps = steps - steps % self._period + self._period
        self._next_s = self._clock() + seconds * (1.0 / self._share - 1.0)
