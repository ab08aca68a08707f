"""The events that a run sends to the program that started it, and the run's result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actorq.domain.status import RunState, RunStatus
from actorq.domain.trajectory import Evaluation


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    state: SOLVED, BUDGET_ENDED or STOPPED for a finished run; INTERRUPTED for a run that can be resumed.
    mean_return, success_rate: of the last evaluation; None without one.
    seconds: wall clock from the start of the learner. environment_steps: of all actors.
    summary: the content of `summary.json`.
    """

    state: RunState
    directory: Path
    mean_return: float | None
    success_rate: float | None
    seconds: float
    environment_steps: int
    summary: Mapping[str, Any] = field(repr=False)

    @property
    def solved(self) -> bool:
        """Whether the run reached its target."""
        return self.state is RunState.SOLVED

    @classmethod
    def of(cls, directory: Path, summary: Mapping[str, Any], state: RunState) -> "Result":
        """The result from a run's summary. state: for a run without a summary."""
        evaluation = summary.get("evaluation") or {}
        return cls(
            RunState(summary.get("state", state.value)),
            directory,
            evaluation.get("mean_return"),
            evaluation.get("success_rate"),
            float(summary.get("wall_clock_s", 0.0)),
            int(summary.get("environment_steps", 0)),
            summary,
        )


@dataclass(frozen=True)
class StatusEvent:
    """The learner has sent a status, twice a second."""

    status: RunStatus


@dataclass(frozen=True)
class EvaluationEvent:
    """An evaluation of a policy version has ended. status: the status that reported it."""

    evaluation: Evaluation
    status: RunStatus


@dataclass(frozen=True)
class NoticeEvent:
    """A line that the user should see, such as the restart of a process."""

    text: str


@dataclass(frozen=True)
class EndEvent:
    """The run has ended, and none of its processes is left. It is the last event."""

    result: Result


Event = StatusEvent | EvaluationEvent | NoticeEvent | EndEvent
