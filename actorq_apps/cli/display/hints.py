"""Hints to the user while a run goes on."""

from actorq.domain.status import RunStatus
from actorq_apps.local.observer import Observer, ProcessView

# Steps of each environment without an end. Most episodes of environments without a limit are shorter.
_STEPS = 500


class EpisodeHint:
    """An observer that forwards everything, and tells once when no episode of an environment without limit has ended.

    environments: of all actors.
    """

    def __init__(self, observer: Observer, environments: int) -> None:
        self._observer = observer
        self._most_steps = _STEPS * environments
        self._told = False

    def process(self, view: ProcessView) -> None:
        """Forward."""
        self._observer.process(view)

    def status(self, status: RunStatus) -> None:
        """Forward, and look at the episodes."""
        self._observer.status(status)
        if not self._told and not status.episodes and status.environment_steps >= self._most_steps:
            self._told = True
            self.event(
                f"no episode has ended in {status.environment_steps:,} steps, and evaluations wait for ends: if they "
                "never come, give --environment-args max_episode_steps=1000"
            )

    def event(self, text: str) -> None:
        """Forward."""
        self._observer.event(text)
