"""Hints to the user while a run goes on."""

from actorq.domain.status import RunStatus
from actorq_apps.local.observer import Observer, ProcessView

# Steps of each environment without an end. Most episodes of environments without a limit are shorter.
_STEPS = 500
# Seconds of a run with policies and without an evaluation.
_SECONDS = 60.0
_REMEDY = "give --environment-args max_episode_steps=1000"


class EpisodeHint:
    """An observer that forwards everything, and tells once when episodes of an environment without limit do not end.

    Those of actors, or those of evaluations alone: a greedy policy may repeat an action for ever that changes nothing.

    environments: of all actors.
    """

    def __init__(self, observer: Observer, environments: int) -> None:
        self._observer = observer
        self._most_steps = _STEPS * environments
        self._told = False
        # Elapsed seconds when the first policy was seen.
        self._acting_since: float | None = None

    def process(self, view: ProcessView) -> None:
        """Forward."""
        self._observer.process(view)

    def status(self, status: RunStatus) -> None:
        """Forward, and look at the episodes."""
        self._observer.status(status)
        if self._acting_since is None and status.policy_version:
            self._acting_since = status.elapsed_s
        if self._told:
            return
        if not status.episodes and status.environment_steps >= self._most_steps:
            self._told = True
            told = f"in {status.environment_steps:,} steps, and evaluations wait for ends"
            self.event(f"no episode has ended {told}: if they never come, {_REMEDY}")
        elif status.episodes and status.evaluation is None and self._acted_s(status) >= _SECONDS:
            self._told = True
            told = f"in {self._acted_s(status):.0f} s: without random actions an episode may never end"
            self.event(f"no evaluation has ended {told}; if so, {_REMEDY}")

    def _acted_s(self, status: RunStatus) -> float:
        return 0.0 if self._acting_since is None else status.elapsed_s - self._acting_since

    def event(self, text: str) -> None:
        """Forward."""
        self._observer.event(text)
