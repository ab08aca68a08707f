"""What a sweep and the makers of its runs exchange."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from actorq.config.run_config import RunConfig
from actorq_apps.sweep.space import Value


class TrialState(Enum):
    """State of a trial. UNSOLVED: the budget ended, although the objective needs a solved run."""

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
    """A proposal: its number, from 0 on, and the values of the searched settings."""

    number: int
    params: Mapping[str, Value]


def own_urls(config: RunConfig, name: str) -> dict[str, Value]:
    """The URLs of a run's object storage by their settings: folders of its own below those of the sweep.

    Runs that share a URL would continue each other's checkpoints, and overwrite each other's policy.
    """
    return {setting: folder_below(url, name) for setting, url in config.object_storage_urls.items()}


def folder_below(url: str, name: str) -> str:
    """The URL of a folder in that of another."""
    return f"{url.rstrip('/')}/{name}"


@dataclass(frozen=True)
class Progress:
    """What a run has reached.

    evaluations: environment steps and mean return of each evaluation so far.
    steps, seconds: environment steps and time of the run. seconds is 0 if the run does not tell it.
    end: None while the run goes on. reason: why it failed.
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
    """A row of the results. value: of the objective; None if the trial has none."""

    number: int
    state: TrialState
    params: Mapping[str, Value]
    value: float | None = None
    mean_return: float | None = None
    steps: int = 0
    seconds: float = 0.0
    reason: str = ""


class Backend(Protocol):
    """Makes the runs of trials. Only the thread of the sweep calls it."""

    period_s: float
    """Seconds between two looks at the runs."""

    def start(self, trial: Trial) -> None:
        """Begin the run of a trial, or go on with it if it has begun earlier. A finished run stays as it is."""

    def progress(self, trial: Trial) -> Progress:
        """What the run has reached by now."""

    def prune(self, trial: Trial) -> None:
        """End the run, which does not go on later. `progress` tells when it has ended.

        The run may be that of an earlier process, and it may be gone.
        """

    def interrupt(self) -> None:
        """End all runs so that they can go on later, and wait for that. A further signal ends them at once."""

    def keep_best(self, trial: Trial, folder: Path) -> str:
        """Put what is left of the best run into a folder, in place of an earlier best run.

        Returns a line that tells where its policy is.
        """
