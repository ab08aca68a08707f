"""The values that a display shows, from the learner's status and the launcher's processes."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import get_args

import psutil

from actorq.config.run_config import RunConfig
from actorq.domain.status import ActorStatus, RunStatus
from actorq.domain.trajectory import Role
from actorq_apps.cli.display import fidelity
from actorq_apps.local.observer import ProcessState, ProcessView
from actorq_apps.local.services import Kind

_EVENTS_KEPT = 4
_MEMBERS = get_args(Role)
# Texts of a status that become events when they change, with their prefixes.
_NEWS = {
    "problem": "refused",
    "flagged_evaluation": "flagged evaluation of",
    "publishing_problem": "new versions reach no actor:",
    "outdated": "the learner's state is older than the run:",
}


@dataclass(frozen=True)
class ProcessRow:
    """A row of the table of processes; None for unknown values."""

    name: str
    state: str
    pid: int | None
    doing: str
    version: int | None = None
    steps_per_s: float | None = None
    resident_bytes: int | None = None
    cpu_s: float | None = None
    restarts: int = 0


Resources = tuple[int, float]
"""Current resource use of a process: resident bytes, and seconds of CPU time."""


class RunView:
    """Everything that a display shows of a run. It follows the run's status, processes and events.

    max_updates: updates that end an offline run; None for other runs.
    """

    def __init__(self, title: str, environment: str, algorithm: str, max_updates: int | None = None) -> None:
        self.title, self.environment, self.algorithm = title, environment, algorithm
        self.max_updates = max_updates
        self.status: RunStatus | None = None
        self.evaluations: list[float] = []
        self.events: deque[str] = deque(maxlen=_EVENTS_KEPT)
        self._evaluation_sequence: tuple[int, int] | None = None
        self._processes: dict[str, ProcessView] = {}

    @classmethod
    def of(cls, title: str, config: RunConfig) -> "RunView":
        """The view of a run with these settings."""
        return cls(title, config.environment, config.algorithm, config.max_updates if config.offline else None)

    def progress(self, status: RunStatus) -> tuple[int, int, str]:
        """The used part of the run's budget, the budget, and its unit."""
        if self.max_updates is not None:
            return status.updates, self.max_updates, "updates"
        return status.environment_steps, status.max_environment_steps, "environment steps"

    @property
    def state(self) -> str:
        """The state of the run."""
        return self.status.state.value if self.status else "starting"

    def update_status(self, status: RunStatus) -> bool:
        """Store the newest status. Returns whether it has a new evaluation."""
        self.events += news(self.status, status)
        self.status, self.environment, self.algorithm = status, status.environment_id, status.algorithm
        if status.evaluation is None:
            return False
        key = (status.evaluation.policy_version, status.evaluation.sequence)
        if key == self._evaluation_sequence:
            return False
        self._evaluation_sequence = key
        score = status.evaluation.score(status.target_success is not None)
        if score is not None:
            self.evaluations.append(score)
        return True

    def update_process(self, view: ProcessView) -> None:
        """Store the newest view of a process."""
        self._processes[view.name] = view

    def rows(self, resources: Callable[[int], Resources | None]) -> list[ProcessRow]:
        """The table of processes: from the launcher if there is one, otherwise from the learner's status."""
        if not self._processes:
            return list(_rows_by_status(self.status)) if self.status else []
        return [self._row(view, resources) for view in tuple(self._processes.values())]

    def _row(self, view: ProcessView, resources: Callable[[int], Resources | None]) -> ProcessRow:
        resident_bytes, cpu_s = (resources(view.pid) if view.pid else None) or (None, None)
        report = actor.report if (actor := self._actor(view)) and view.pid else None
        return ProcessRow(
            name=view.name,
            state=view.state.value,
            pid=view.pid,
            doing=self._doing(view) if view.state is ProcessState.RUNNING else "",
            version=report.policy_version if report else None,
            steps_per_s=report.steps_per_second if report and view.kind is Kind.ACTOR else None,
            resident_bytes=resident_bytes,
            cpu_s=cpu_s,
            restarts=view.restarts,
        )

    def _actor(self, view: ProcessView) -> ActorStatus | None:
        actors: Iterable[ActorStatus] = self.status.actors if self.status else ()
        return next((actor for actor in actors if (actor.role, actor.name) == (view.kind.value, view.name)), None)

    def _doing(self, view: ProcessView) -> str:
        if self.status is None:
            return ""
        match view.kind:
            case Kind.LEARNER:
                return self.status.state.value
            case Kind.QUANTIZER:
                emitted = self.status.emitted
                return f"emitted v{emitted.version} {fidelity.scheme(emitted)}" if emitted else "waiting for the graph"
            case Kind.METER:
                return self.status.energy.method or "measuring"
            case Kind.ACTOR | Kind.EVALUATOR:
                return _doing_of_actor(self._actor(view))


def news(before: RunStatus | None, status: RunStatus) -> Iterable[str]:
    """Events in a status that the previous status did not have."""
    for field, event in _NEWS.items():
        text: str = getattr(status, field)
        if text not in ("", getattr(before, field, "")):
            yield f"{event} {text}"


def measure(pid: int) -> Resources | None:
    """Resources of a process on this machine; None after it has ended."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return process.memory_info().rss, times.user + times.system
    except psutil.Error:
        return None


def _doing_of_actor(actor: ActorStatus | None) -> str:
    if actor is None or actor.report is None:
        return "joined"
    if actor.report.policy_version == 0:
        return "waiting for a policy"
    doing = "evaluating" if actor.role == "evaluator" else f"acting, {actor.report.queued_segments} queued"
    if (avoided := actor.report.avoided_scheme) and actor.report.scheme_error:
        return f"{doing}; avoids {avoided}: error {actor.report.scheme_error:.0%} here"
    return f"{doing}; avoids {avoided}: wrong here" if avoided else doing


def _rows_by_status(status: RunStatus) -> Iterable[ProcessRow]:
    actors: dict[tuple[str, str], ActorStatus] = {(actor.role, actor.name): actor for actor in status.actors}
    for process in status.processes:
        actor = actors.pop((process.role, process.name), None)
        if actor is None and process.role in _MEMBERS:
            # The actor has left. Its resource use stays recorded.
            continue
        report = actor.report if actor else None
        yield ProcessRow(
            name=process.name,
            state="gone" if actor and not actor.connected else "running",
            pid=process.pid,
            doing=_doing_of_actor(actor) if actor else f"{process.role} on {process.node}",
            version=report.policy_version if report else None,
            steps_per_s=report.steps_per_second if report and actor and actor.role == "actor" else None,
            resident_bytes=process.resident_bytes,
            cpu_s=process.cpu_seconds,
        )
    for actor in actors.values():
        yield ProcessRow(actor.name, "running" if actor.connected else "gone", None, _doing_of_actor(actor))
