"""Runs `actorq train` on a task of benchmarks.libraries.peers, as a user does."""

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import yaml

from actorq.config.algorithms import ON_POLICY
from benchmarks.libraries.peers.result import Evaluation, has_reached, measured, require_end, result
from benchmarks.libraries.peers.tasks import Task, TunedTask
from benchmarks.reached import DROP
from benchmarks.runs import confirm, forget_incomplete, with_project

# The benchmark ends a run, so there are always enough steps. Only tuned tasks have a budget.
_STEPS = 100_000_000
_BUDGET_ENDED = 3


def actorq_command(task: Task, seed: int, folder: Path) -> list[str]:
    """The README's command, with the task's preset, and the evaluations of all systems.

    Its own target is a tenth higher. A run that just reaches the target therefore continues to the next evaluation.
    """
    own_target = task.target + DROP * abs(task.target)
    return [
        *(sys.executable, "-m", "actorq_apps.cli.main", "train", "--run-directory", str(folder)),
        *("--algorithm", task.algorithm, "--environment", task.environment, "--scheme", "int8", "--seed", str(seed)),
        *("--preset", task.preset),
        *(f"--target-return={own_target:g}", "--evaluation.episodes", str(task.episodes)),
        *("--max-environment-steps", str(task.steps if isinstance(task, TunedTask) else _STEPS)),
        *(task.flags if isinstance(task, TunedTask) else ()),
    ]


def run_actorq(task: Task, seed: int, folder: Path) -> dict[str, Any]:
    """The results of a run, as `result` has them, and `steps_per_update`: environment steps for each update.

    steps_per_update is None for an on-policy run, and for a run that ended before its settings were written.
    """
    run = folder / "run"
    forget_incomplete(run)
    before_s = math.inf
    module, is_own, _ = task.environment.rpartition(":")
    # An environment of this project is imported by all processes of the run.
    variables = with_project() if is_own else None
    allowed = ("--allow-modules", module) if is_own else ()

    def on_line(seconds: float, line: str) -> bool:
        nonlocal before_s
        seen = actorq_evaluations(run, 0.0)
        if seen:
            before_s = min(before_s, seconds - seen[-1].seconds)
        return has_reached(seen, task)

    outcome, energy = measured(actorq_command(task, seed, run), "", task, folder, on_line, variables)
    summary_file = run / "summary.json"
    summary = json.loads(summary_file.read_text(encoding="utf-8")) if summary_file.exists() else {}
    # The run's clock starts with its processes. An evaluation is in its file before a line shows it, and the summary
    # before the command ends. So each difference overstates the seconds before this start, and the least does it least.
    if summary:
        before_s = min(before_s, outcome.seconds - summary["wall_clock_s"])
    before_s = max(0.0, before_s) if math.isfinite(before_s) else 0.0
    evaluations = actorq_evaluations(run, before_s)
    if summary.get("solved") and evaluations and not has_reached(evaluations, task):
        # The run has ended with this evaluation. New episodes of its last policy are the successor.
        last, confirmed = evaluations[-1], confirm(run, task.episodes, variables=variables, flags=allowed)
        evaluations.append(Evaluation(last.seconds, last.environment_steps, confirmed.mean_return))
    started_s = summary.get("first_transition_s")
    found = result(task, evaluations, None if started_s is None else started_s + before_s, outcome, energy)
    if not summary.get("solved") and outcome.returncode != _BUDGET_ENDED:
        require_end(found, "actorq", task, folder, outcome)
    return {**found, "steps_per_update": _steps_per_update(run, task)}


def _steps_per_update(run: Path, task: Task) -> float | None:
    file = run / "config.yaml"
    if task.algorithm in ON_POLICY or not file.exists():
        return None
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    return float(config[task.algorithm]["batch_size"] / config["rate_limiter"]["samples_per_insert"])


def actorq_evaluations(folder: Path, before_s: float) -> list[Evaluation]:
    """All evaluations in the folder of a run of `actorq train`."""
    file = folder / "evaluations.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    # The last line of an active run may be incomplete.
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return [
        Evaluation(
            entry["wall_clock_s"] + before_s,
            entry["environment_steps"],
            statistics.fmean(entry["evaluation"]["returns"]),
        )
        for entry in entries
    ]
