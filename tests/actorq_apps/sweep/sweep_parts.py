"""A backend with simulated runs, whose learning curves depend only on the proposed settings."""

from collections.abc import Callable, Mapping
from pathlib import Path

from actorq_apps.sweep.space import Space, read_space
from actorq_apps.sweep.study import Study
from actorq_apps.sweep.trials import Objective, Progress, RunEnd, Trial, TrialResult

BUDGET = 1000
SPACE = read_space(("dqn.learning_rate=log:1e-4..1e-2", "replay.min_size=100..900"), None)

Curve = Callable[[Trial], float]


def study_in(folder: Path, space: Space = SPACE, **options: object) -> Study:
    """A study with a journal in the folder."""
    given = {"objective": Objective.RETURN, "sampler": "tpe", "pruner": "none", "seed": 0, "several": False, **options}
    return Study(folder / "journal.jsonl", space, *given.values())  # type: ignore[arg-type]


def by_learning_rate(trial: Trial) -> float:
    """A return that grows with the learning rate."""
    return float(str(trial.params["dqn.learning_rate"])) * 1000


class StagedRuns:
    """A `Backend` whose runs have one more evaluation at each check. `most` is the highest number of simultaneous runs.

    ends: the end of each trial's run; RunEnd.FAILED happens at once.
    killed_at: the number of checks before this process is "killed" by KeyboardInterrupt.
    """

    period_s = 0.0

    def __init__(
        self,
        curve: Curve = by_learning_rate,
        ends: Callable[[Trial], RunEnd] = lambda _: RunEnd.BUDGET_ENDED,
        points: int = 20,
        killed_at: int | None = None,
    ) -> None:
        self.started: list[int] = []
        self.pruned: list[int] = []
        self.interrupted = False
        self.most = 0
        self._curve = curve
        self._ends = ends
        self._points = points
        self._looks: dict[int, int] = {}
        self._all_looks = 0
        self._killed_at = killed_at

    def start(self, trial: Trial) -> None:
        self.started.append(trial.number)
        self._looks[trial.number] = 0
        self.most = max(self.most, len(self._looks))

    def progress(self, trial: Trial) -> Progress:
        self._all_looks += 1
        if self._killed_at is not None and self._all_looks > self._killed_at:
            raise KeyboardInterrupt
        end = self._ends(trial)
        self._looks[trial.number] += 1
        look = self._looks[trial.number]
        if end is RunEnd.FAILED or trial.number in self.pruned:
            del self._looks[trial.number]
            return Progress(end=RunEnd.FAILED, reason="the staged fault")
        curve = tuple(
            (BUDGET * point // self._points, self._curve(trial) * point / self._points) for point in range(1, look + 1)
        )
        over = look == self._points
        if over:
            del self._looks[trial.number]
        return Progress(curve, curve[-1][0], float(look), end if over else None)

    def prune(self, trial: Trial) -> None:
        self.pruned.append(trial.number)

    def interrupt(self) -> None:
        self.interrupted = True

    def keep_best(self, trial: Trial, folder: Path) -> str:
        return str(trial.number)


class Lines:
    """An `Observer` that records the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def update(self, results: list[TrialResult], running: Mapping[int, Progress]) -> None:
        pass
