"""`actorq sweep` from the command line, with real runs."""

import csv
import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

import actorq as package
from tests.builders.forked_commands import ForkedCommand
from tests.integration.training_run import actorq

ROOT = Path(__file__).parents[2]
# A run takes some seconds, so that it cannot end between two checks.
STEPS = 20_000
TASK = (
    *("--max-environment-steps", str(STEPS), "--target-return", "501", "--no-energy.enabled"),
    *("--evaluation.episodes", "2", "--dqn.hidden-sizes", "16,16"),
    # The first evaluation comes early, even if the evaluator gets little CPU time.
    *("--evaluation.period-updates", "50", "--evaluation.share", "1.0"),
)


def arguments(folder: Path, *more: str) -> tuple[str, ...]:
    search = ("--search", "dqn.learning_rate=log:1e-4..1e-2", "dqn.double=true|false")
    return ("sweep", "--directory", str(folder), *search, "--trials", "2", "--pruner", "none", *TASK, *more)


def begin(folder: Path) -> ForkedCommand:
    return ForkedCommand("actorq_apps.cli.main", *arguments(folder))


def read_until(process: ForkedCommand, beginning: str) -> None:
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith(beginning):
            return
    raise AssertionError("".join(said) + process.communicate()[1])


def run_id(folder: Path, trial: int) -> str:
    return str(json.loads((folder / "runs" / f"trial-00{trial}" / "run.json").read_text())["run_id"])


def test_a_sweep_continues_after_a_kill_and_after_ctrl_c(tmp_path: Path) -> None:
    folder = tmp_path / "swept"
    with begin(folder) as process:
        read_until(process, "trial 0: return")
        runs = psutil.Process(process.pid).children(recursive=True)
        assert {"learner", "quantizer", "actor-0"} <= {run.name() for run in runs if run.is_running()}
        # The first run must not end while the second starts.
        process.send_signal(signal.SIGSTOP)
        second_one = actorq(*arguments(folder))
        assert re.fullmatch(f"error: --directory: {folder} .*in use.*\n", second_one.stderr)
        process.kill()
    first = run_id(folder, 0)
    # The run detects the end of its parent, saves its state, and ends.
    assert not psutil.wait_procs(runs, timeout=60)[1]

    with begin(folder) as process:
        read_until(process, "trial 1: return")
        runs = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 130, errors
    second = run_id(folder, 1)
    assert "actorq sweep --directory" in out.splitlines()[-1]
    assert not psutil.wait_procs(runs, timeout=10)[1]

    result = actorq(*arguments(folder))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("trial 1: ")
    assert lines[-1].endswith(f" {folder / 'best' / 'policy.onnx'}")
    found = json.loads((folder / "trials.json").read_text())
    assert [trial["state"] for trial in found["trials"]] == ["complete", "complete"]
    assert (run_id(folder, 0), run_id(folder, 1)) == (first, second)
    assert all(trial["steps"] >= STEPS for trial in found["trials"])
    rows = list(csv.DictReader((folder / "trials.csv").open()))
    assert [float(row["value"]) for row in rows] == [trial["value"] for trial in found["trials"]]
    assert (folder / "sweep.png").stat().st_size > 1000
    policy = package.load_policy(folder / "best" / "policy.onnx")
    assert policy.predict([0.0, 0.1, 0.0, -0.1]) in (0, 1)

    other = actorq(*arguments(folder, "--sampler-seed", "3"))
    assert other.returncode == 2
    assert re.match(f"error: --directory: {folder} .*sampler_seed: 0 .*3", other.stderr)


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        (("--search", "dqn.learning_rat=1..2"), r"--search: .*'dqn\.learning_rat'; .*dqn\.learning_rate"),
        (("--search", "dqn.learning_rate=1..2", "--jobs", "0"), "--jobs: .*'0'"),
        (("--search", "dqn.learning_rate=1..2", "--sampler", "best"), "--sampler: .*'best'"),
        (("--search", "dqn.learning_rate=1..2", "--sampler", "grid"), r"--sampler grid: dqn\.learning_rate"),
        ((), "--search: .*at least one"),
        (("--search", "dqn.n_step=1..3", "--template", "absent.yaml"), r"--template: .*absent\.yaml"),
        (("--search", "dqn.n_step=1..3", "--seed", "3", "--template", "absent.yaml"), "--seed: .*--template"),
    ],
)
def test_a_mistake_ends_with_one_line_and_writes_no_files(tmp_path: Path, more: tuple[str, ...], fact: str) -> None:
    result = actorq("sweep", "--directory", str(tmp_path / "swept"), *more)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1), result.stderr
    assert re.match(f"error: .*{fact}", result.stderr)
    assert not (tmp_path / "swept").exists()


def test_a_sweep_whose_runs_all_fail_shows_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "swept"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests" / "user_modules")]))
    # The mistake appears only when the learner trains.
    broken = ("--algorithm", "own_algorithms:ThatCannotUpdate")
    result = actorq("sweep", "--directory", str(folder), "--search", "actors=1..2", "--trials", "1", *broken)
    assert result.returncode == 1, result.stderr
    (line,) = result.stderr.splitlines()
    assert re.match("error: all 1 trials .*losses / 0", line)
