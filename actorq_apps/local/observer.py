"""The interface between the launcher and a display of the run."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from actorq.domain.status import RunStatus
from actorq_apps.local.services import Kind


class ProcessState(Enum):
    """The state of a process. A process is RUNNING once it serves."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    ENDING = "ending"
    EXITED = "exited"
    GIVEN_UP = "given up"


@dataclass(frozen=True)
class ProcessView:
    """The supervisor's view of a process. `pid` is None while no process exists."""

    name: str
    kind: Kind
    state: ProcessState
    pid: int | None
    restarts: int


class Watcher(Protocol):
    """Receives news of a run. It must not block."""

    def status(self, status: RunStatus) -> None:
        """The learner has sent the status of the run."""

    def event(self, text: str) -> None:
        """An event that the user should see."""


class Observer(Watcher, Protocol):
    """Receives news of a run on this machine. Only the launcher's thread calls it."""

    def process(self, view: ProcessView) -> None:
        """A process has changed."""
