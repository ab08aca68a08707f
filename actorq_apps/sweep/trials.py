"""The values and the interface that connect a sweep with its backends."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from actorq.config.run_config import RunConfig
from actorq_apps.sweep.space import Value


class TrialState(Enum):
    """State of a trial. UNSOLVED: the budget ended, although the objective requires a solved run."""

    RUNNING = "running"
    COMPLETE = "complete"
    UNSOLVED = "not solved"
    PRUNED = "pruned"
    FAILED = "failed"


class RunEnd(Enum):
    """How a run has ended."""

    SOLVED = "solved"
    BUDGET_ENDED = "budget ended"
    FAILED = "failed"


class Objective(Enum):
    """The figure that a sweep improves: the return at the end, or the time or environment steps to a solved run."""

    RETURN = "return"
    SECONDS = "seconds"
    STEPS = "steps"

    @property
    def maximized(self) -> bool:
        """Whether a higher value is better."""
        return self is Objective.RETURN


@dataclass(frozen=True)
class Trial:
    """A proposal: its number, starting at 0, and the values of the searched settings."""

    number: int
    params: Mapping[str, Value]


def own_urls(config: RunConfig, name: str) -> dict[str, Value]:
    """The object storage URLs of a run by setting: separate folders below the sweep's folders.

    Runs that share a URL would continue each other's checkpoints, and overwrite each other's policies.
    """
    return {setting: folder_below(url, name) for setting, url in config.object_storage_urls.items()}


def folder_below(url: str, name: str) -> str:
    """The URL of a subfolder of a URL's folder."""
    return f"{url.rstrip('/')}/{name}"


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    evaluations: environment steps and mean return of each evaluation so far.
    steps, seconds: environment steps and time of the run. seconds is 0 if the run does not report it.
    end: None while the run is active. reason: why it failed.
    """

    evaluations: tuple[tuple[int, float], ...] = ()
    steps: int = 0
    seconds: float = 0.0
    end: RunEnd | None = None
    reason: str = ""

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last evaluation."""
        return self.evaluations[-1][1] if self.evaluations else None


@dataclass(frozen=True)
class TrialResult:
    """A row of the results. value: value of the objective; None if the trial has none."""

    number: int
    state: TrialState
    params: Mapping[str, Value]
    value: float | None = None
    mean_return: float | None = None
    steps: int = 0
    seconds: float = 0.0
    reason: str = ""


class Backend(Protocol):
    """Executes the runs of trials. Only the sweep's thread calls it."""

    period_s: float
    """Seconds between two checks of the runs."""

    def start(self, trial: Trial) -> None:
        """Start the run of a trial, or continue it if it has begun earlier. A finished run stays unchanged."""

    def progress(self, trial: Trial) -> Progress:
        """The progress of the run until now."""

    def prune(self, trial: Trial) -> None:
        """End the run permanently. `progress` reports when it has ended.

        The run may belong to an earlier process, and it may no longer exist.
        """

    def interrupt(self) -> None:
        """End all runs so that they can continue later, and wait for that. A further signal ends them at once."""

    def keep_best(self, trial: Trial, folder: Path) -> str:
        """Put the files of the best run into a folder. They replace the files of an earlier best run.

        Returns a line that says where its policy is.
        """
