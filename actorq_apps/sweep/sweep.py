"""The loop of a sweep: starts the runs of trials, reports them to the study, and prunes runs."""

import queue
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from actorq.errors import ActorQError
from actorq.text import return_text
from actorq_apps.local.events import Events, SignalReceived
from actorq_apps.sweep.study import Study
from actorq_apps.sweep.trials import Backend, Progress, Trial, TrialResult, TrialState

# If the first trials all fail, the settings are probably wrong. The same command then tries again.
_FAILURES_AT_FIRST = 3


class Observer(Protocol):
    """Receives news of a sweep."""

    def line(self, text: str) -> None:
        """An event."""

    def update(self, results: list[TrialResult], running: Mapping[int, Progress]) -> None:
        """The results so far, and the progress of running trials by number. Called after each check of the runs."""


class SweepInterruptedError(Exception):
    """A signal has ended the sweep. Its running trials can continue later."""

    def __init__(self, received: SignalReceived) -> None:
        super().__init__(received.number.name)
        self.number = received.number


@dataclass
class _Active:
    """A trial with a run. A pruned run may need some time to end."""

    trial: Trial
    progress: Progress
    pruned: bool = False


def run_sweep(
    study: Study, backend: Backend, observer: Observer, events: Events, trials: int, jobs: int, budget: int
) -> None:
    """Run trials until `trials` of them have a result, at most `jobs` at a time.

    Unfinished trials of an earlier process continue first.
    events: gets the signals of this process. Any event wakes the loop. budget: environment steps of a whole run.
    Raises SweepInterruptedError after a signal, and ActorQError when no trial succeeds.
    """
    for result in study.results():
        if result.state is TrialState.PRUNED:
            # An earlier process may have ended before it pruned the run.
            backend.prune(Trial(result.number, result.params))
    waiting = study.unfinished()
    tried = min(len(study.results()) - len(waiting) + _FAILURES_AT_FIRST, trials)
    active: list[_Active] = []
    try:
        while True:
            while len(active) < jobs and (waiting or len(study.results()) < trials):
                trial = waiting.pop(0) if waiting else study.ask()
                backend.start(trial)
                observer.line(f"trial {trial.number}: {settings_text(trial.params)}")
                active.append(_Active(trial, Progress()))
            active = [one for one in active if _goes_on(one, study, backend, observer, budget)]
            results = study.results()
            observer.update(results, {one.trial.number: one.progress for one in active})
            _check_success(results, tried, active)
            if active:
                with suppress(queue.Empty):
                    if isinstance(event := events.get(timeout=backend.period_s), SignalReceived):
                        raise SweepInterruptedError(event)
            elif len(results) >= trials:
                return
    except BaseException:
        if active:
            observer.line("ending the running trials; the same command continues them")
            backend.interrupt()
        raise


def settings_text(params: Mapping[str, object]) -> str:
    """The values of a trial in one line."""
    shown = ((name, f"{value:.4g}" if isinstance(value, float) else value) for name, value in params.items())
    return ", ".join(f"{name}={value}" for name, value in shown)


def _goes_on(one: _Active, study: Study, backend: Backend, observer: Observer, budget: int) -> bool:
    """Check a run. Returns whether it still counts as a running job."""
    one.progress = backend.progress(one.trial)
    if one.pruned:
        return one.progress.end is None
    prune = study.report(one.trial, one.progress, budget)
    if prune or one.progress.end is not None:
        observer.line(result_text(study.finish(one.trial, one.progress, prune)))
    if prune:
        # Recorded last: if the process is killed before, the next process runs the trial again.
        one.pruned = True
        backend.prune(one.trial)
    return one.progress.end is None


def result_text(result: TrialResult) -> str:
    """The result of a trial in one line."""
    if result.state is TrialState.FAILED:
        return f"trial {result.number} failed: {result.reason}"
    score = "no evaluation" if result.mean_return is None else f"return {return_text(result.mean_return)}"
    return f"trial {result.number} {result.state.value}: {score}, {result.steps:,} steps, {result.seconds:,.1f} s"


def _check_success(results: list[TrialResult], tried: int, active: list[_Active]) -> None:
    ended = [result for result in results if result.state is not TrialState.RUNNING]
    if len(ended) < tried or any(one.progress.evaluations for one in active):
        return
    if all(result.state is TrialState.FAILED for result in ended):
        raise ActorQError(f"all {len(ended)} trials failed, the last one: {ended[-1].reason}")
