"""Sweeps with simulated runs: proposals, pruning, resumption, failures."""

import queue
import signal
from itertools import product
from pathlib import Path

import pytest

from actorq.errors import ActorQError, UserError
from actorq_apps.local.events import Events, SignalReceived
from actorq_apps.sweep.space import read_space
from actorq_apps.sweep.study import Study
from actorq_apps.sweep.sweep import SweepInterruptedError, run_sweep
from actorq_apps.sweep.trials import Objective, RunEnd, Trial, TrialState
from tests.actorq_apps.sweep.sweep_parts import BUDGET, Lines, StagedRuns, by_learning_rate, study_in

STATES = TrialState


def sweep(study: Study, runs: StagedRuns, trials: int = 8, jobs: int = 1, events: Events | None = None) -> list[str]:
    lines = Lines()
    run_sweep(study, runs, lines, events or queue.SimpleQueue(), trials, jobs, BUDGET)
    return lines.lines


def proposals(study: Study) -> list[dict[str, object]]:
    return [dict(result.params) for result in study.results()]


def test_the_best_trial_has_the_best_return(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    lines = sweep(study, StagedRuns())
    assert [result.state for result in study.results()] == [STATES.COMPLETE] * 8
    best = study.best()
    assert best is not None
    rates = [by_learning_rate(Trial(result.number, result.params)) for result in study.results()]
    assert best.number == rates.index(max(rates))
    assert best.value == pytest.approx(max(rates))
    assert lines[1].startswith("trial 0 complete")


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_seed_gives_the_same_proposals(tmp_path: Path, sampler: str) -> None:
    found = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        (tmp_path / name).mkdir()
        study = study_in(tmp_path / name, sampler=sampler, seed=seed)
        sweep(study, StagedRuns(), trials=14)
        found.append(proposals(study))
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert len({str(each) for each in found[0]}) == 14


def test_a_killed_sweep_continues_with_the_same_proposals(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = study_in(tmp_path / "whole", pruner="median")
    sweep(whole, StagedRuns(), trials=14)
    started: list[int] = []
    for looks in (5, 60, 33, 0, 100):
        runs = StagedRuns(killed_at=looks)
        with pytest.raises(KeyboardInterrupt):
            sweep(study_in(tmp_path / "killed", pruner="median"), runs, trials=14)
        assert runs.interrupted
        started += runs.started
    runs = StagedRuns()
    study = study_in(tmp_path / "killed", pruner="median")
    sweep(study, runs, trials=14)
    assert proposals(study) == proposals(whole)
    assert [result.state for result in study.results()] == [result.state for result in whole.results()]
    # Each killed process began with the trial that the previous process left unfinished.
    assert sorted({*started, *runs.started}) == list(range(14))
    assert len(started) + len(runs.started) == 14 + 5


def test_repeats_a_proposal_that_was_written_incompletely(tmp_path: Path) -> None:
    whole = [study_in(tmp_path).ask().params for _ in range(3)]
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    for last, lost in product(range(len(lines)), (20, 1)):
        journal.write_bytes(b"".join(lines[:last]) + lines[last][:-lost])
        study = study_in(tmp_path)
        while len(study.results()) < 3:
            study.ask()
        study = study_in(tmp_path)
        assert [result.params for result in study.results()] == whole
        assert [trial.params for trial in study.unfinished()] == whole


def test_damage_within_the_journal_is_refused(tmp_path: Path) -> None:
    study_in(tmp_path).ask()
    journal = tmp_path / "journal.jsonl"
    data = bytearray(journal.read_bytes())
    data[10] ^= 1
    journal.write_bytes(data)
    with pytest.raises(UserError, match=r"--directory.*line 1 .*journal\.jsonl"):
        study_in(tmp_path)


@pytest.mark.parametrize("pruner", ["median", "asha", "hyperband"])
def test_bad_runs_end_early_and_good_ones_do_not(tmp_path: Path, pruner: str) -> None:
    study = study_in(tmp_path, pruner=pruner, sampler="random")
    runs = StagedRuns()
    sweep(study, runs, trials=24)
    pruned = {result.number for result in study.results() if result.state is STATES.PRUNED}
    assert pruned == set(runs.pruned)
    assert 3 <= len(pruned) < 24
    rates = [float(str(result.params["dqn.learning_rate"])) for result in study.results()]
    best = study.best()
    assert best is not None
    assert rates[best.number] >= sorted(rates)[-3]
    for result in study.results():
        assert (result.value is None) == (result.state is STATES.PRUNED)
        assert result.steps < BUDGET or result.state is STATES.COMPLETE


def test_a_sweep_killed_while_pruning_ends_the_run_later(tmp_path: Path) -> None:
    class Killed(StagedRuns):
        def prune(self, trial: Trial) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(study_in(tmp_path, pruner="median", sampler="random"), Killed(), trials=24)
    study = study_in(tmp_path, pruner="median", sampler="random")
    assert study.unfinished() == []
    (pruned,) = (result.number for result in study.results() if result.state is STATES.PRUNED)
    runs = StagedRuns()
    sweep(study, runs, trials=pruned + 1)
    assert (runs.pruned, runs.started) == ([pruned], [])


def test_jobs_limits_the_number_of_running_trials(tmp_path: Path) -> None:
    runs = StagedRuns()
    study = study_in(tmp_path, several=True)
    sweep(study, runs, trials=10, jobs=3)
    assert runs.most == 3
    assert sorted(runs.started) == list(range(10))
    assert len({str(each) for each in proposals(study)}) == 10


def test_more_trials_extend_a_sweep(tmp_path: Path) -> None:
    sweep(study_in(tmp_path), StagedRuns(), trials=3)
    runs = StagedRuns()
    sweep(study_in(tmp_path), runs, trials=5)
    assert runs.started == [3, 4]


@pytest.mark.parametrize("objective", [Objective.SECONDS, Objective.STEPS])
def test_only_solved_runs_have_a_time_to_the_solution(tmp_path: Path, objective: Objective) -> None:
    def end(trial: Trial) -> RunEnd:
        return RunEnd.SOLVED if trial.number % 2 else RunEnd.BUDGET_ENDED

    study = study_in(tmp_path, objective=objective)
    sweep(study, StagedRuns(ends=end), trials=6)
    states = [result.state for result in study.results()]
    assert states == [STATES.UNSOLVED, STATES.COMPLETE] * 3
    best = study.best()
    assert best is not None
    assert best.value == (20.0 if objective is Objective.SECONDS else BUDGET)


def test_a_grid_makes_each_cell_once(tmp_path: Path) -> None:
    space = read_space(("dqn.learning_rate=0.001|0.002|0.003", "dqn.n_step=1..2"), None)
    study = study_in(tmp_path, space=space, sampler="grid")
    assert study.cells == 6
    with pytest.raises(KeyboardInterrupt):
        sweep(study, StagedRuns(killed_at=30), trials=6)
    study = study_in(tmp_path, space=space, sampler="grid")
    sweep(study, StagedRuns(), trials=6)
    cells = [(each["dqn.learning_rate"], each["dqn.n_step"]) for each in proposals(study)]
    assert sorted(map(str, cells)) == sorted(str((rate, n)) for rate in ("0.001", "0.002", "0.003") for n in (1, 2))


def test_reports_a_failed_trial_and_continues_the_sweep(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    lines = sweep(study, StagedRuns(ends=lambda t: RunEnd.FAILED if t.number == 1 else RunEnd.SOLVED), trials=4)
    assert any(line.startswith("trial 1 ") and line.endswith(": the staged fault") for line in lines)
    assert [result.state for result in study.results()].count(STATES.COMPLETE) == 3


@pytest.mark.parametrize(("trials", "made"), [(16, 3), (2, 2)])
def test_a_sweep_whose_trials_all_fail_ends(tmp_path: Path, trials: int, made: int) -> None:
    runs = StagedRuns(ends=lambda _: RunEnd.FAILED)
    with pytest.raises(ActorQError, match=f" {made} trials .*the staged fault"):
        sweep(study_in(tmp_path), runs, trials=trials)
    assert runs.started == list(range(made))


def test_the_same_command_tries_again_after_the_cause_of_all_failures_is_gone(tmp_path: Path) -> None:
    failing = StagedRuns(ends=lambda _: RunEnd.FAILED)
    for made in (3, 6):
        with pytest.raises(ActorQError, match=f" {made} trials "):
            sweep(study_in(tmp_path), failing, trials=16)
    runs = StagedRuns(ends=lambda trial: RunEnd.FAILED if trial.number == 6 else RunEnd.SOLVED)
    sweep(study_in(tmp_path), runs, trials=16)
    assert (failing.started, runs.started) == (list(range(6)), list(range(6, 16)))
    assert not runs.interrupted


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_return_that_is_not_a_number_fails_its_trial(tmp_path: Path, score: float) -> None:
    study = study_in(tmp_path)
    sweep(study, StagedRuns(curve=lambda trial: score if trial.number == 0 else 1.0), trials=3)
    first, *others = study.results()
    assert (first.state, first.value, first.mean_return) == (STATES.FAILED, None, None)
    assert "number" in first.reason
    assert {result.state for result in others} == {STATES.COMPLETE}


def test_a_signal_ends_the_runs_resumably(tmp_path: Path) -> None:
    events: Events = queue.SimpleQueue()
    events.put(SignalReceived(signal.SIGTERM))
    runs = StagedRuns()
    study = study_in(tmp_path)
    with pytest.raises(SweepInterruptedError) as found:
        sweep(study, runs, jobs=2, events=events)
    assert found.value.number == signal.SIGTERM
    assert runs.interrupted
    assert [trial.number for trial in study.unfinished()] == [0, 1]
