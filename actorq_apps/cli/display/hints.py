"""Hints for the user during a run."""

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import RunState, RunStatus
from actorq_apps.local.observer import Observer, ProcessView

# Steps of each environment without an episode's end. Most episodes without a limit are shorter.
_STEPS = 500
# Seconds that a run has policies but no evaluation.
_SECONDS = 20.0
_REMEDY = "give --environment-args max_episode_steps=1000"
# Seconds of training after which WaitHint judges, and the share of them that is a long wait.
_WINDOW_S = 120.0
_LONG = 0.9
# A run with less than this share of its forecast has missed it.
_MET = 0.7
_PACE = "--rate-limiter.samples-per-insert"


def with_hints(
    observer: Observer, config: RunConfig, spec: EnvironmentSpec, updates_per_s: float | None, *, acts: bool
) -> Observer:
    """The observer with the hints that suit the run. updates_per_s: the forecast. acts: whether the run has actors."""
    if not spec.max_episode_steps:
        observer = EpisodeHint(observer, config.actors * config.environments_per_actor)
    # The learner of an on-policy run always waits for its next rollout. A program acts at its own pace.
    return WaitHint(observer, updates_per_s) if config.on_policy is None and acts else observer


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


class WaitHint:
    """An observer that forwards everything. It says once which side of an off-policy run waits for long.

    It also says once that a run is slower than the forecast of `--preset auto`. Each window of training is judged on
    its own, so it notices a machine that becomes slower later. A pause or a full disk begins a new window.

    updates_per_s: the forecast; None without one.
    """

    def __init__(self, observer: Observer, updates_per_s: float | None = None) -> None:
        self._observer = observer
        self._forecast = updates_per_s
        self._given = False
        self._began: RunStatus | None = None

    def process(self, view: ProcessView) -> None:
        """Forward."""
        self._observer.process(view)

    def status(self, status: RunStatus) -> None:
        """Forward, and check the waits."""
        self._observer.status(status)
        is_full = status.storage is not None and status.storage.disk_low
        if self._given or is_full or status.state is not RunState.TRAINING:
            self._began = None
        elif self._began is None:
            self._began = status
        elif status.elapsed_s - self._began.elapsed_s >= _WINDOW_S:
            if text := self._judged(self._began, status):
                self._given = True
                self.event(text)
            self._began = status

    def event(self, text: str) -> None:
        """Forward."""
        self._observer.event(text)

    def _judged(self, began: RunStatus, status: RunStatus) -> str:
        """What to say about the window between two statuses; "" for nothing."""
        seconds = status.elapsed_s - began.elapsed_s
        learner = min(1.0, (status.starved_s - began.starved_s) / seconds)
        actors = _waiting_share(began, status, seconds)
        rate = (status.updates - began.updates) / seconds
        waits = f"in {seconds:.0f} s the learner waited {learner:.0%} of the time, the actors {actors:.0%}"
        if self._forecast is not None and rate < _MET * self._forecast:
            slower = f"slower than the forecast of --preset auto: {rate:,.0f} of {self._forecast:,.0f} updates/s"
            return f"{slower}; {waits}; if other programs use the cores, stop them"
        if learner >= _LONG:
            remedy = f"give more --actors or a higher {_PACE}; --preset auto chooses both"
            return f"the learner waits for data: {waits}; {remedy}"
        if actors >= _LONG:
            remedy = f"a lower {_PACE} makes fewer updates per step; --preset auto chooses it; more actors do not help"
            return f"the actors wait for the learner: {waits}; {remedy}"
        return ""


def _waiting_share(began: RunStatus, status: RunStatus, seconds: float) -> float:
    """Share of a window in which the actors waited for credit: the mean of those that ran all the time."""
    earlier, later = ({each.name: each.report for each in of.actors if each.role == "actor"} for of in (began, status))
    # A restarted actor counts from zero.
    waits = [
        report.waited_seconds - before.waited_seconds
        for name, report in later.items()
        if report and (before := earlier.get(name)) and report.waited_seconds >= before.waited_seconds
    ]
    return min(1.0, sum(waits) / len(waits) / seconds) if waits else 0.0
