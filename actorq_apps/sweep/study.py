"""The study of a sweep: Optuna's samplers and pruners, with a journal that outlives the process."""

import math
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as StoredState

from actorq_apps.sweep.journal import CheckedJournal
from actorq_apps.sweep.space import Space
from actorq_apps.sweep.trials import Objective, Progress, RunEnd, Trial, TrialResult, TrialState

REPORTS = 20
"""Number of reports from a run to its pruner, at equal distances in environment steps."""
_NAME = "sweep"
_STARTUP_TRIALS = 5
# Number of reports before the first decision of successive halving.
_RUNG = 2
_REDUCTION = 3

# The figures of a result that are stored in addition to its state.
_STORED = ("mean_return", "steps", "seconds", "reason")
_NO_RETURN = "the run ended without an evaluation whose return is a number"
# The time is missing only with an older operator or an older definition of TrainingRun.
_NO_TIME = "status.elapsedSeconds is missing: upgrade the operator and the kind TrainingRun"
_STORED_STATES = {TrialState.COMPLETE: StoredState.COMPLETE, TrialState.FAILED: StoredState.FAIL}

SAMPLERS: Mapping[str, Callable[[int, bool], BaseSampler]] = {
    # With several jobs, running trials count as bad results, so that simultaneous proposals differ.
    "tpe": lambda seed, several: TPESampler(seed=seed, constant_liar=several),
    "random": lambda seed, _: RandomSampler(seed=seed),
}
PRUNERS: Mapping[str, Callable[[], BasePruner]] = {
    "none": NopPruner,
    "median": lambda: MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=_RUNG),
    "asha": lambda: SuccessiveHalvingPruner(min_resource=_RUNG, reduction_factor=_REDUCTION),
    "hyperband": lambda: HyperbandPruner(min_resource=_RUNG, max_resource=REPORTS, reduction_factor=_REDUCTION),
}


class Study:
    """All trials of a sweep. Each change is on the disk when the call returns.

    The proposal of a trial depends only on `seed`, the trial's number and the results so far. A resumed study therefore
    makes the same proposals as an uninterrupted one. Raises UserError for a damaged journal.
    """

    def __init__(
        self, journal: Path, space: Space, objective: Objective, sampler: str, pruner: str, seed: int, several: bool
    ) -> None:
        # Optuna's log lines would appear between the lines of the sweep.
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space.distributions()
        self._objective = objective
        self._sign = 1.0 if objective.maximized else -1.0
        self._sampler = sampler
        self._seed = seed
        self._several = several
        self._cells = _shuffled(space, seed) if sampler == "grid" else None
        # Number of cells of the grid; None for other samplers.
        self.cells = None if self._cells is None else len(self._cells)
        self._storage = JournalStorage(CheckedJournal(journal))
        self._study = optuna.create_study(
            storage=self._storage,
            study_name=_NAME,
            direction="maximize" if objective.maximized else "minimize",
            pruner=PRUNERS[pruner](),
            load_if_exists=True,
        )
        for stored in self._stored():
            # A process was killed while it wrote this proposal, so no run used the proposal.
            if not stored.state.is_finished() and not self._is_whole(stored):
                self._study.tell(stored.number, state=StoredState.FAIL)

    def ask(self) -> Trial:
        """A new trial."""
        # Incomplete proposals do not count.
        index = len(self.results())
        if self._cells is not None:
            self._study.sampler = _Cell(self._cells[index])
        else:
            seed = int(np.random.SeedSequence((self._seed, index)).generate_state(1)[0])
            self._study.sampler = SAMPLERS[self._sampler](seed, self._several)
        asked = self._study.ask(self._space)
        return Trial(asked.number, asked.params)

    def unfinished(self) -> list[Trial]:
        """Trials without a result, from an earlier process."""
        return [Trial(each.number, each.params) for each in self.results() if each.state is TrialState.RUNNING]

    def report(self, trial: Trial, progress: Progress, budget: int) -> bool:
        """Report the returns at the report steps that the run has passed. Returns whether to prune the run.

        budget: environment steps of a whole run. A solved run is over and keeps its last return in later reports.
        """
        stored = self._open(trial)
        reported = -1 if (last := self._stored()[trial.number].last_step) is None else last
        points = list(progress.evaluations)
        if progress.end is RunEnd.SOLVED and points:
            points.append((budget, points[-1][1]))
        for steps, mean_return in points:
            if not math.isfinite(mean_return):
                continue
            reached = min(REPORTS, steps * REPORTS // budget)
            for step in range(reported + 1, reached + 1):
                stored.report(self._sign * mean_return, step)
            reported = max(reported, reached)
        return stored.should_prune() and progress.end is None

    def finish(self, trial: Trial, progress: Progress, pruned: bool = False) -> TrialResult:
        """Store the result of a trial whose run is over, or that is pruned."""
        value, state = (None, TrialState.PRUNED) if pruned else _judged(progress, self._objective)
        reason, score = progress.reason, progress.mean_return
        if state is TrialState.FAILED:
            reason = reason or (_NO_TIME if self._objective is Objective.SECONDS else _NO_RETURN)
        if score is not None and not math.isfinite(score):
            score = None
        result = TrialResult(trial.number, state, trial.params, value, score, progress.steps, progress.seconds, reason)
        stored = {"state": state.value, **{name: getattr(result, name) for name in _STORED}}
        self._open(trial).set_user_attr("result", stored)
        self._study.tell(trial.number, value, _STORED_STATES.get(state, StoredState.PRUNED))
        return result

    def results(self) -> list[TrialResult]:
        """All trials in the order of their numbers."""
        return [_result(stored) for stored in self._stored() if self._is_whole(stored)]

    def best(self) -> TrialResult | None:
        """The trial with the best value; None before the first value. Of equal trials the earliest wins."""
        found = [result for result in self.results() if result.state is TrialState.COMPLETE]
        return max(found, key=lambda result: self._sign * (result.value or 0.0), default=None)

    def attribute(self, name: str, value: Callable[[], Any]) -> Any:
        """A stored attribute of the whole study. The first call computes it."""
        if name not in self._study.user_attrs:
            self._study.set_user_attr(name, value())
        return self._study.user_attrs[name]

    def _stored(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _is_whole(self, stored: FrozenTrial) -> bool:
        return stored.params.keys() == self._space.keys()

    def _open(self, trial: Trial) -> optuna.trial.Trial:
        study = self._storage.get_study_id_from_name(_NAME)
        stored = self._storage.get_trial_id_from_study_id_trial_number(study, trial.number)
        return optuna.trial.Trial(self._study, stored)


class _Cell(RandomSampler):
    """Proposes one cell of a grid. Its base is the random sampler, which samples each value independently."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        self._values = values

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._values[param_name]


def _judged(progress: Progress, objective: Objective) -> tuple[float | None, TrialState]:
    """The value of a run that is over, and the state of its trial."""
    if progress.end is RunEnd.FAILED:
        return None, TrialState.FAILED
    if objective is not Objective.RETURN and progress.end is not RunEnd.SOLVED:
        return None, TrialState.UNSOLVED
    values = {Objective.RETURN: progress.mean_return, Objective.SECONDS: progress.seconds or None}
    value = values.get(objective, float(progress.steps))
    known = value is not None and math.isfinite(value)
    return (value, TrialState.COMPLETE) if known else (None, TrialState.FAILED)


def _result(stored: FrozenTrial) -> TrialResult:
    result = stored.user_attrs.get("result")
    if result is None or not stored.state.is_finished():
        return TrialResult(stored.number, TrialState.RUNNING, stored.params)
    state = TrialState(result["state"])
    value = stored.value if state is TrialState.COMPLETE else None
    return TrialResult(stored.number, state, stored.params, value, **{name: result[name] for name in _STORED})


def _shuffled(space: Space, seed: int) -> list[dict[str, Any]]:
    """The grid's cells in an order that depends on the seed, so that the first cells are spread out."""
    grid = space.grid()
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    return [cells[index] for index in np.random.default_rng(seed).permutation(len(cells))]
