"""The output of a sweep: table, lines, JSON, CSV and plot."""

import csv
import io
import json
import queue
import re
from pathlib import Path

import pytest
from matplotlib import image
from rich.console import Console

from actorq.statefiles.documents import read_document
from actorq_apps.cli.sweep.view import SweepView, print_results, table
from actorq_apps.sweep.report import write_results
from actorq_apps.sweep.space import read_space
from actorq_apps.sweep.sweep import run_sweep
from actorq_apps.sweep.trials import Objective, Progress, RunEnd, Trial, TrialResult, TrialState
from tests.actorq_apps.sweep.sweep_parts import BUDGET, Lines, StagedRuns, study_in

SPACE = read_space(("dqn.learning_rate=log:1e-4..1e-2", "dqn.hidden_sizes=16,16|64,64", "dqn.n_step=1..5"), None)


def end(trial: Trial) -> RunEnd:
    return RunEnd.FAILED if trial.number == 1 else RunEnd.BUDGET_ENDED


def test_the_files_have_all_trials(tmp_path: Path) -> None:
    study = study_in(tmp_path, space=SPACE)
    run_sweep(study, StagedRuns(ends=end), Lines(), queue.SimpleQueue(), 6, 1, BUDGET)
    write_results(tmp_path, study, SPACE, Objective.RETURN, "actorq sweep")
    found = read_document(tmp_path / "trials.json")
    best = study.best()
    assert best is not None
    assert found["best"] == best.number
    assert found["objective"] == "return"
    assert [trial["number"] for trial in found["trials"]] == list(range(6))
    assert found["trials"][1]["state"] == "failed"
    assert found["trials"][1]["reason"] == "the staged fault"
    rows = list(csv.DictReader(io.StringIO((tmp_path / "trials.csv").read_text())))
    for row, trial in zip(rows, found["trials"], strict=True):
        assert row["dqn.hidden_sizes"] == trial["params"]["dqn.hidden_sizes"]
        assert row["value"] == ("" if trial["value"] is None else str(trial["value"]))
    # Two rows of panels: the history and three settings.
    assert image.imread(tmp_path / "sweep.png").shape[:2] == (832, 1638)


def test_without_a_best_trial_there_is_no_plot(tmp_path: Path) -> None:
    space = read_space(("dqn.learning_rate=1e-4..1e-2",), None)
    study = study_in(tmp_path, space=space)
    study.finish(study.ask(), Progress(end=RunEnd.FAILED, reason="why"))
    write_results(tmp_path, study, space, Objective.STEPS, "actorq sweep")
    assert json.loads((tmp_path / "trials.json").read_text())["best"] is None
    assert not (tmp_path / "sweep.png").exists()


def test_the_table_shows_the_progress_of_running_trials() -> None:
    results = [
        TrialResult(
            0, TrialState.COMPLETE, {"dqn.learning_rate": 0.00123456, "dqn.double": "true"}, 9.0, 9.0, 900, 3.0
        ),
        TrialResult(1, TrialState.RUNNING, {"dqn.learning_rate": 0.5, "dqn.double": "false"}),
    ]
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(table(results, {1: Progress(((400, 4.0),), 400, 1.5)}, results[0]))
    assert isinstance(console.file, io.StringIO)
    head, first, second = (line.split() for line in console.file.getvalue().splitlines())
    assert head == ["trial", "state", "return", "steps", "seconds", "learning_rate", "double"]
    assert first == ["0", "complete", "9.00", "900", "3.0", "0.001235", "true"]
    assert second == ["1", "running", "4.00", "400", "1.5", "0.5", "false"]


def test_prints_a_plain_line_per_evaluation_outside_a_terminal() -> None:
    file = io.StringIO()
    view = SweepView(Console(file=file), trials=3, live=None)
    for progress in (Progress(), Progress(((400, 4.0),), 400, 1.5), Progress(((400, 4.0),), 400, 2.0)):
        view.update([], {1: progress})
    view.line("trial 1 complete")
    assert file.getvalue() == "trial 1: return 4.00 at 400 steps\ntrial 1 complete\n"


def test_the_end_names_the_best_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = study_in(tmp_path, space=SPACE)
    run_sweep(study, StagedRuns(curve=lambda t: 30.0 - t.number), Lines(), queue.SimpleQueue(), 3, 1, BUDGET)
    print_results(study, Objective.RETURN)
    out = capsys.readouterr().out
    assert re.search("trial 0.*return 30\n", out)
    assert "\x1b[" not in out
