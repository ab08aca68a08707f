"""Hints for the user during a run."""

from actorq.domain.status import RunStatus
from actorq_apps.local.observer import Observer, ProcessView

# Steps of each environment without an episode's end. Most episodes without a limit are shorter.
_STEPS = 500
# Seconds that a run has policies but no evaluation.
_SECONDS = 20.0
_REMEDY = "give --environment-args max_episode_steps=1000"


class EpisodeHint:
    """An observer that forwards everything. It gives one hint when episodes without a limit do not end.

    This concerns episodes of actors, or only of evaluations: a greedy policy may repeat a useless action forever.

    environments: number of environments of all actors.
    """

    def __init__(self, observer: Observer, environments: int) -> None:
        self._observer = observer
        self._most_steps = _STEPS * environments
        self._given = False
        # Elapsed seconds when the first policy appeared.
        self._acting_since: float | None = None

    def process(self, view: ProcessView) -> None:
        """Forward."""
        self._observer.process(view)

    def status(self, status: RunStatus) -> None:
        """Forward, and check the episodes."""
        self._observer.status(status)
        if self._acting_since is None and status.policy_version:
            self._acting_since = status.elapsed_s
        if self._given:
            return
        if not status.episodes and status.environment_steps >= self._most_steps:
            self._given = True
            facts = f"in {status.environment_steps:,} steps, and evaluations need ended episodes"
            self.event(f"no episode has ended {facts}: if episodes never end, {_REMEDY}")
        elif status.episodes and status.evaluation is None and self._acted_s(status) >= _SECONDS:
            self._given = True
            facts = f"in {self._acted_s(status):.0f} s: without random actions an episode may never end"
            self.event(f"no evaluation has ended {facts}; if so, {_REMEDY}")

    def _acted_s(self, status: RunStatus) -> float:
        return 0.0 if self._acting_since is None else status.elapsed_s - self._acting_since

    def event(self, text: str) -> None:
        """Forward."""
        self._observer.event(text)
