"""What the launcher tells whoever shows the run."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from actorq.domain.status import RunStatus
from actorq.local.services import Kind


class ProcessState(Enum):
    """Where a process is in its life; it runs once it serves."""

    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    ENDING = "ending"
    EXITED = "exited"
    GIVEN_UP = "given up"


@dataclass(frozen=True)
class ProcessView:
    """A process as its supervisor sees it; `pid` is None while there is none."""

    name: str
    kind: Kind
    state: ProcessState
    pid: int | None
    restarts: int


class Observer(Protocol):
    """Someone who watches a run; called from the launcher's thread only, and must not block."""

    def process(self, view: ProcessView) -> None:
        """A process has changed."""
        ...

    def status(self, status: RunStatus) -> None:
        """The learner has told how the run goes."""
        ...

    def event(self, text: str) -> None:
        """Something happened that a person wants to know."""
        ...
