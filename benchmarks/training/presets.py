"""Seconds until a target return with the presets `standard` and `data-rich`, over several seeds, with int8 actors.

Runs of both presets take turns. A run ends at its target, or at the budget of its preset. A run that ends below its
target counts as missed. Target of a task: data-rich reaches the return with every seed, and its median seconds are
fewer. The table also shows the steps, because data-rich needs more of them. Runs are kept in --directory. All must come
from one commit on one machine.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actorq.config.presets import DATA_RICH, STANDARD
from benchmarks.harness import ONE_SEED, Target, run_benchmark, without_verdict
from benchmarks.runs import LearningTask, add_task_flag, cached, chosen, confirm, forget_incomplete, refusal, train

PRESETS = (STANDARD, DATA_RICH)
Run = dict[str, Any]


@dataclass(frozen=True)
class Task(LearningTask):
    """A task to learn, and its target return. episodes: per evaluation during the run."""

    target: float
    episodes: int = 20


TASKS = (
    Task("dqn", "LunarLander-v3", 200.0),
    Task("d4pg", "dm_control/cartpole-balance", 900.0),
    Task("td3", "Pendulum-v1", -180.0),
    Task("sac", "Pendulum-v1", -180.0),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 1 to N of each task (default: 3)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    runs: list[Run] = []
    tasks = chosen(TASKS, arguments.task)
    with tempfile.TemporaryDirectory() as nowhere:
        directory = arguments.directory or Path(nowhere)
        for task in tasks:
            for seed in range(1, arguments.seeds + 1):
                # In turns, so that a slower machine affects both.
                for preset in PRESETS[:: 1 if seed % 2 else -1]:
                    runs.append(_run(task, preset, seed, directory))
                    print(row(runs[-1]), flush=True)
    own = {task: [run for run in runs if run["task"] == task.name] for task in tasks}
    return {"runs": runs}, [
        target for task, made in own.items() for target in without_verdict([verdict(task, made)], refusal(made))
    ]


def verdict(task: Task, runs: Sequence[Run]) -> Target:
    """Median seconds of standard over those of data-rich. 0 if a seed of data-rich missed the target."""
    seconds = {preset: [run["seconds"] for run in runs if run["preset"] == preset] for preset in PRESETS}
    missed = any(not run["reached"] for run in runs if run["preset"] == DATA_RICH)
    ratio = 0.0 if missed else statistics.median(seconds[STANDARD]) / statistics.median(seconds[DATA_RICH])
    refused = ONE_SEED if len(seconds[DATA_RICH]) == 1 else ""
    return Target(f"{task.name}: seconds of standard over data-rich", ratio, 1.0, at_most=False, refused=refused)


def _run(task: Task, preset: str, seed: int, directory: Path) -> Run:
    folder = directory / f"{task.name.replace('/', '-')}-{preset}-{seed}"

    def make() -> Run:
        forget_incomplete(folder)
        flags = ["--algorithm", task.algorithm, "--environment", task.environment, "--preset", preset]
        flags += ["--seed", str(seed), f"--target-return={task.target}", "--evaluation.episodes", str(task.episodes)]
        summary = train(folder, flags)
        return {**summary, "confirmed": asdict(confirm(folder, 100))}

    made = cached(folder.with_suffix(".json"), asdict(task), make)
    seconds = made["last_transition_s"] - made["first_transition_s"]
    return {**made, "task": task.name, "preset": preset, "reached": made["state"] == "solved", "seconds": seconds}


def row(run: Run) -> str:
    """A line of the table."""
    return (
        f"{run['task']:34} {run['preset']:9} seed {run['seed']}: {run['seconds']:>7.1f} s, "
        f"{run['environment_steps']:>10,} steps, {run['updates']:>7,} updates, "
        f"{run['confirmed']['mean_return']:>8.1f} on new episodes{'' if run['reached'] else ', target missed'}"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
