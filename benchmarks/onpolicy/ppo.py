"""Compares PPO with int8 actors with Stable-Baselines3's PPO in float32: same hyperparameters, steps and seeds.

benchmarks/onpolicy/settings.py has the hyperparameters. At the end of a run the last policy plays the same 20 new
episodes on both sides, without noise. ActorQ's last policy is the last one that acted in int8.

Targets of a task. Returns: the mean of ActorQ's seeds is at least the mean of the other library's seeds minus their
sample standard deviation. Speed: ActorQ's median steps per second are at least twice the other library's. Its seconds
are those of `learn`, without imports. ActorQ's are from the first stored transition to the end of the run, with the
last evaluation. Both may use all cores. Sides take turns.

Runs are kept in --directory. Complete runs are not repeated. All must come from one commit on one machine.
Stable-Baselines3 must be installed: pip install stable-baselines3==2.9.2
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Meaning, Target, run_benchmark, without_verdict
from benchmarks.libraries import parity
from benchmarks.libraries.parity import FINAL_EPISODES, OURS, THEIRS, Run, baseline, final, verdict
from benchmarks.onpolicy.ppo_plot import plot
from benchmarks.onpolicy.settings import TASKS, Task
from benchmarks.runs import (
    CONFIRMATION_SEED,
    add_task_flag,
    cached,
    chosen,
    forget_incomplete,
    refusal,
    train,
)

_TIMES_THEIR_STEPS = 2.0


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 1 to N of each task (default: 3)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps per run (default: the task's)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw returns and steps/s to FILE, such as a PNG")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = chosen(TASKS, arguments.task)
    if arguments.steps:
        tasks = [replace(task, steps=arguments.steps) for task in tasks]
    with tempfile.TemporaryDirectory() as nowhere:
        runs = list(make_runs(tasks, arguments.seeds, arguments.directory or Path(nowhere)))
    if arguments.plot:
        plot(runs, arguments.plot)
    targets: list[Target] = []
    for task in tasks:
        own = [run for run in runs if run["task"] == task.name]
        targets += without_verdict(verdicts(task.name, own), refusal(own))
    return {"runs": runs}, targets


MEANINGS = (
    *parity.MEANINGS,
    Meaning(
        r"(?P<task>.+): steps/s over Stable-Baselines3's .+",
        "How many times more steps per second does PPO make than in Stable-Baselines3?",
        "Expect the measured gain. It is smaller where updates or environment steps are the limit.",
        unit=" times",
        case="{task}",
    ),
)


def verdicts(name: str, runs: Sequence[Run]) -> list[Target]:
    """Our mean final return against theirs minus their sample standard deviation; our steps per second over theirs."""
    ours, theirs = ([run for run in runs if run["side"] == side] for side in (OURS, THEIRS))
    our_rate, their_rate = (statistics.median(_rate(run) for run in side) for side in (ours, theirs))
    return [
        verdict(name, ours, theirs),
        Target(
            f"{name}: steps/s over Stable-Baselines3's {their_rate:,.0f}",
            our_rate / their_rate,
            _TIMES_THEIR_STEPS,
            at_most=False,
        ),
    ]


def make_runs(tasks: Sequence[Task], seeds: int, directory: Path) -> Iterator[Run]:
    """Runs of both sides, seed by seed, so that early results cover all tasks. Every second seed reverses the sides."""
    for seed in range(1, seeds + 1):
        for task in tasks:
            for side in sorted(_SIDES, reverse=seed % 2 == 0):
                # In one folder, so that a run of the other side on another commit is found before this run starts.
                folder = directory / f"{side}-{task.environment}-{seed}"
                made = cached(
                    folder.with_name(f"{folder.name}.json"),
                    asdict(task),
                    lambda: _SIDES[side](task, seed, folder),  # noqa: B023
                )
                run = {"task": task.name, "side": side, "seed": seed, **made}
                print(_row(run), flush=True)
                yield run


def _ours(task: Task, seed: int, folder: Path) -> Run:
    forget_incomplete(folder)
    summary = train(folder, [*task.actorq(), "--seed", str(seed)])
    names = ("environment_steps", "updates", "transitions_by_scheme", "starved_s", "rollout_queue", "evaluations")
    return {
        **{name: summary[name] for name in names},
        "seconds": round(summary["wall_clock_s"] - summary["first_transition_s"], 2),
        "final": final(folder, task.environment),
    }


def _theirs(task: Task, seed: int, folder: Path) -> Run:
    names = ("environment", "environments", "steps", "learning_rate", "anneal", "clip", "anneal_clip", "normalize")
    request = {
        **{name: getattr(task, name) for name in names},
        "seed": seed,
        "arguments": task.stable_baselines(),
        "threads": os.cpu_count() or 1,
        "final": {"episodes": FINAL_EPISODES, "seed": CONFIRMATION_SEED},
    }
    return baseline("benchmarks.onpolicy.baseline", request)


_SIDES: dict[str, Callable[[Task, int, Path], Run]] = {OURS: _ours, THEIRS: _theirs}


def _rate(run: Run) -> float:
    return float(run["environment_steps"] / run["seconds"])


def _row(run: Run) -> str:
    final = run["final"]
    return (
        f"{run['task']} seed {run['seed']}, {run['side']}: {final['mean_return']:.1f} on {final['episodes']} new "
        f"episodes ({final['scheme']}), {run['environment_steps']:,} steps in {run['seconds']:.0f} s, "
        f"{_rate(run):,.0f} steps/s"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
