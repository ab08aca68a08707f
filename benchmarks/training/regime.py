"""Seconds to a target return by n-step and samples per insert, and the choice of `--preset auto` beside them.

Each run trains with `actorq train --preset auto` and int8 actors until its evaluation reaches the target, or until its
time limit. Only `n_step` and `rate_limiter.samples_per_insert` differ between the runs of a task. Networks, batch size
and step sizes are those of the preset. With few samples per insert the learner starves, and with many the actors wait:
between them lies the optimum (docs/concepts/performance-model.md). `auto` in place of a number leaves the choice to the
preset. Its seconds include the measurement. Target: its median is at most 1.25 times the best median of the numbers.

A run ends at its first evaluation with the target. New episodes of its last policy are the successor of this one
(benchmarks.reached), and their time does not count. A run that has not reached its target counts as its time limit.
Runs are kept in --directory, so that a sweep may continue later. All must come from one commit on one machine.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Target, run_benchmark, without_verdict
from benchmarks.reached import first_reached
from benchmarks.runs import LearningTask, add_task_flag, cached, chosen, confirm, forget_incomplete, refusal, train

Run = dict[str, Any]

SAMPLES_PER_INSERT = (4, 8, 16, 32, 64, 128, 256)
AUTO = "auto"
N_STEPS = (1, 3)
_EPISODES = 20
# Of the choice of `auto` over the best number.
_MOST = 1.25


@dataclass(frozen=True)
class Task(LearningTask):
    """A task to learn, its target return, and the time limit of a run."""

    target: float
    limit_s: float = 900.0


TASKS = tuple(
    Task(algorithm, environment, target)
    for algorithm in ("sac", "td3")
    for environment, target in (
        ("HalfCheetah-v5", 5_000.0),
        ("Walker2d-v5", 2_500.0),
        ("Ant-v5", 3_000.0),
        ("dm_control/walker-walk", 900.0),
    )
)


@dataclass(frozen=True)
class Cell:
    """One regime of a task."""

    task: Task
    n_step: int
    samples_per_insert: int | str


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser)
    parser.add_argument("--n-step", nargs="+", type=int, choices=N_STEPS, default=N_STEPS, help="default: all")
    parser.add_argument(
        "--samples-per-insert",
        nargs="+",
        type=_samples,
        choices=(*SAMPLES_PER_INSERT, AUTO),
        default=(*SAMPLES_PER_INSERT, AUTO),
        help="default: all",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 1 to N of each regime (default: 3)")
    parser.add_argument("--limit-s", type=float, metavar="S", help="time limit of a run (default: the task's own)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")


def _samples(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = chosen(TASKS, arguments.task)
    if arguments.limit_s is not None:
        tasks = [replace(task, limit_s=arguments.limit_s) for task in tasks]
    cells = [
        Cell(task, n_step, samples)
        for task in tasks
        for n_step in arguments.n_step
        for samples in arguments.samples_per_insert
    ]
    with tempfile.TemporaryDirectory() as nowhere:
        runs = list(make_runs(cells, arguments.seeds, arguments.directory or Path(nowhere)))
    refused = refusal(runs)
    found = summary(runs)
    for row in found:
        print(f"{row['task']:34} n = {row['n_step']}: best with {row['best']} samples per insert {row['seconds']}")
    return {"runs": runs, "summary": found}, without_verdict(targets(found), refused)


def make_runs(cells: Sequence[Cell], seeds: int, directory: Path) -> Iterator[Run]:
    """Runs of all cells, seed by seed. Every second seed reverses the order: a slower machine affects all cells."""
    for seed in range(1, seeds + 1):
        for cell in cells[:: 1 if seed % 2 else -1]:
            run = _run(cell, seed, directory)
            print(line(run), flush=True)
            yield run


def targets(rows: Sequence[dict[str, Any]]) -> list[Target]:
    """The median seconds of `auto` over those of the best number, for each row of `summary` that has both."""
    found = []
    for row in rows:
        numbers = [seconds for samples, seconds in row["seconds"].items() if samples != AUTO]
        if AUTO in row["seconds"] and numbers and row["best"] is not None:
            name = f"{row['task']}, n = {row['n_step']}: seconds of auto over the best samples per insert"
            found.append(Target(name, row["seconds"][AUTO] / min(numbers), _MOST))
    return found


def summary(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """For each task and n-step: the median seconds by samples per insert, and the number with the fewest (`best`).

    `best` is None if no run of the task with this n-step has reached the target.
    """
    by_regime: dict[tuple[str, int], dict[Any, list[Run]]] = {}
    for run in runs:
        cells = by_regime.setdefault((run["task"], run["n_step"]), {})
        cells.setdefault(run["samples_per_insert"], []).append(run)
    found = []
    for (task, n_step), cells in by_regime.items():
        ordered = sorted(cells.items(), key=lambda cell: (cell[0] == AUTO, cell[0]))
        seconds = {samples: statistics.median(run["seconds"] for run in own) for samples, own in ordered}
        reached = {samples for samples, own in cells.items() if samples != AUTO and any(run["reached"] for run in own)}
        best = min(reached, key=seconds.__getitem__, default=None)
        found.append({"task": task, "n_step": n_step, "best": best, "seconds": seconds})
    return found


def _run(cell: Cell, seed: int, directory: Path) -> Run:
    task, samples = cell.task, cell.samples_per_insert
    folder = directory / f"{task.name.replace('/', '-')}-n{cell.n_step}-{samples}-{seed}"

    def make() -> Run:
        forget_incomplete(folder)
        flags = {
            "algorithm": task.algorithm,
            "environment": task.environment,
            "preset": "auto",
            f"{task.algorithm}.n-step": cell.n_step,
            "evaluation.episodes": _EPISODES,
            "target-return": task.target,
            "max-seconds": task.limit_s,
            "max-environment-steps": 100_000_000,
            "seed": seed,
        }
        if samples != AUTO:
            # With both numbers given, the preset measures nothing.
            flags |= {"rate-limiter.samples-per-insert": samples, "actors": 1}
        made = train(folder, [f"--{name}={value}" for name, value in flags.items()])
        return {**made, "confirmed": asdict(confirm(folder, _EPISODES))}

    made = cached(folder.with_suffix(".json"), asdict(cell), make)
    reached = has_reached(made, task.target)
    # The run's clock begins after the measurement.
    seconds = made["command_s"] if samples == AUTO else made["wall_clock_s"]
    return {
        **made,
        "task": task.name,
        "n_step": cell.n_step,
        "samples_per_insert": samples,
        "seed": seed,
        "reached": reached,
        "seconds": seconds if reached else task.limit_s,
    }


def has_reached(made: Run, target: float) -> bool:
    """Whether a run has reached the target with its last evaluation, and new episodes of its last policy confirm it.

    made: summary of the run, with `confirmed`.
    """
    last = [made["evaluation"]] if made["evaluation"] else []
    returns = [each["mean_return"] for each in (*last, made["confirmed"])]
    return first_reached(returns, target) is not None


def line(run: Run) -> str:
    """A run in one line."""
    evaluation = run["evaluation"] or {"mean_return": float("nan")}
    return (
        f"{run['task']:34} n = {run['n_step']}, {run['samples_per_insert']:>4} samples per insert, seed {run['seed']}: "
        f"{run['seconds']:>6.0f} s, {run['environment_steps']:>9,} steps, {run['updates']:>7,} updates, return "
        f"{evaluation['mean_return']:,.0f}{'' if run['reached'] else ', target missed'}"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
