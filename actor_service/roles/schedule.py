"""Which versions of the policy an evaluator takes: one in so many updates, and those that the learner asks for."""

from collections.abc import Callable

from actorq.domain.policy import PolicyDescriptor

# From here on, of the way from the first return to the target, the run may be over with each evaluation.
_NEAR = 0.8


class EvaluationSchedule:
    """Says of a version whether it is to be evaluated.

    The evaluator's thread tells it what it does; any thread may ask it and tell it what the learner wants.

    period_updates: the learner's updates from one evaluated version to the next, at least.
    affordable: whether there is CPU time for an evaluation; not asked for what the learner wants, nor near the target.
    target_return: that ends the run; None where none does.
    """

    def __init__(
        self,
        period_updates: int,
        affordable: Callable[[], bool] = lambda: True,
        target_return: float | None = None,
    ) -> None:
        self._period_updates = period_updates
        self._affordable = affordable
        self._target_return = target_return
        self._first_return: float | None = None
        self._is_near = False
        self._last_update = -period_updates
        self._last_version = 0
        self._lost_version = 0
        self._wanted_version = 0

    def want(self, version: int) -> None:
        """Take this version, or the next newer one there is, whatever the updates since the last."""
        self._wanted_version = max(self._wanted_version, version)

    def is_due(self, descriptor: PolicyDescriptor) -> bool:
        """Whether this version is to be evaluated."""
        if descriptor.version == self._lost_version:
            return False
        wanted = self._last_version < self._wanted_version <= descriptor.version
        # A learner that went back to a checkpoint has fewer updates than before.
        due = abs(descriptor.learner_step - self._last_update) >= self._period_updates
        return wanted or (due and (self._is_near or self._affordable()))

    def begun(self, descriptor: PolicyDescriptor) -> None:
        """This version is being evaluated."""
        self._last_update, self._last_version = descriptor.learner_step, descriptor.version

    def ended(self, mean_return: float) -> None:
        """The evaluation gave this."""
        if self._first_return is None:
            self._first_return = mean_return
        way = None if self._target_return is None else self._target_return - self._first_return
        self._is_near = way is not None and mean_return - self._first_return >= _NEAR * way

    def lost(self, version: int) -> None:
        """The quantizer does not have this version any more: it is not due until `try_again`."""
        self._lost_version = version

    def try_again(self) -> None:
        """A version that was lost may be there again: the learner publishes again what a new quantizer lacks."""
        self._lost_version = 0
