"""Selects the versions for an evaluator: one per period of updates, and the versions that the learner requests."""

from collections.abc import Callable
from dataclasses import dataclass

from actorq.domain.policy import PolicyDescriptor
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import RunSpec

# A run is near its end above this share of the way from the first return to the target.
_NEAR = 0.8


@dataclass(eq=False)
class EvaluationSchedule:
    """Decides whether a version is due for evaluation.

    The evaluator's thread calls `begun`, `ended`, `lost` and `try_again`. Any thread may call `is_due` and `want`.

    period_updates: least number of the learner's updates between two evaluated versions.
    affordable: whether there is CPU time for an evaluation. Ignored for wanted versions and near the target.
    excuse: called after an evaluation near the target. Its CPU time is not charged, because otherwise a policy that
        falls back from the target would not be evaluated for minutes.
    target: the score that ends the run, a mean return or a success rate; None if none does.
    """

    period_updates: int
    affordable: Callable[[], bool] = lambda: True
    excuse: Callable[[], None] = lambda: None
    target: float | None = None

    def __post_init__(self) -> None:
        self._first_score: float | None = None
        self._is_near = False
        self._last_update = -self.period_updates
        self._last_version = 0
        self._lost_version = 0
        self._wanted_version = 0
        self._has_reached_target = False

    @classmethod
    def of(
        cls,
        run: RunSpec,
        spec: EnvironmentSpec,
        affordable: Callable[[], bool],
        excuse: Callable[[], None] = lambda: None,
    ) -> "EvaluationSchedule":
        """The schedule of a run. If the run has no target, the environment's target is used."""
        target = run.target_success if run.target_return is None else run.target_return
        return cls(
            run.evaluation_period_updates, affordable, excuse, spec.reward_threshold if target is None else target
        )

    def want(self, version: int) -> None:
        """Make this version, or the next newer one, due at once."""
        self._wanted_version = max(self._wanted_version, version)

    def is_due(self, descriptor: PolicyDescriptor) -> bool:
        """Whether to evaluate this version."""
        if descriptor.version == self._lost_version:
            return False
        wanted = self._last_version < self._wanted_version <= descriptor.version
        # The absolute value, because a learner restored from a checkpoint has fewer updates than before.
        due = abs(descriptor.learner_step - self._last_update) >= self.period_updates
        return wanted or (due and not self._has_reached_target and (self._is_near or self.affordable()))

    def begun(self, descriptor: PolicyDescriptor) -> None:
        """Record that the evaluation of this version has begun."""
        self._last_update, self._last_version = descriptor.learner_step, descriptor.version

    def ended(self, score: float | None) -> None:
        """Record the score, if there is one.

        At the target, nothing is due until `try_again`, because the run should end.
        """
        if self._is_near:
            self.excuse()
        if score is None:
            return
        if self._first_score is None:
            self._first_score = score
        way = None if self.target is None else self.target - self._first_score
        self._is_near = way is not None and score - self._first_score >= _NEAR * way
        self._has_reached_target = self.target is not None and score >= self.target

    def lost(self, version: int) -> None:
        """Record that the quantizer no longer has this version. It is not due until `try_again`."""
        self._lost_version = version

    def try_again(self) -> None:
        """Make a lost version due again, because the learner republishes it.

        Also continue if the run continues at the target.
        """
        self._lost_version = 0
        self._has_reached_target = False
