"""Returns of the algorithms on their environments with int8 actors, over several seeds, each run from one command.

A run is `actorq train` with its preset. It ends when its evaluator (greedy episodes of the actors' policy) sees the
task's stopping return, or at its budget of environment steps. Then its last evaluated policy plays new episodes. The
target of a task is about their mean return. Targets are slightly below the stored results, and one seed gives no
verdict.

At the end the benchmark prints the interquartile mean of the scores of all runs, with its bootstrap interval. A score
is 0 for random actions, and 1 at the target of the task.

Runs are kept in --directory. Complete runs are not repeated and interrupted runs continue, so a benchmark of hours can
be made in parts. All must come from one commit on one machine.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.comparison import returns_by_task
from benchmarks.comparison import scores as comparable
from benchmarks.environments.random_returns import random_returns
from benchmarks.harness import ONE_SEED, Meaning, Target, run_benchmark, without_verdict
from benchmarks.runs import (
    LearningTask,
    actor_megabytes,
    add_task_flag,
    cached,
    chosen,
    confirm,
    in_order,
    refusal,
    train,
)
from benchmarks.statistics import estimate, interquartile_mean
from benchmarks.training.returns_plot import plot


@dataclass(frozen=True)
class Task(LearningTask):
    """A target return on an environment, and the number of environment steps after which a run ends."""

    target: float
    stop_at: float
    steps: int
    seeds: int
    episodes: int = 100
    flags: tuple[str, ...] = ()


# If returns vary much between episodes, the preset's five episodes could end a run by chance. They vary most in
# reacher-easy, whose episodes succeed or fail: a mean of 921 over 20 episodes was 775 over 50 new ones.
_MANY_EPISODES = ("--evaluation.episodes", "20")

# Runs stop slightly above their target, because the last evaluation of a run is a lucky one.
TASKS = (
    Task("dqn", "CartPole-v1", 485.0, 475.0, 100_000, 3),
    Task("dqn", "Acrobot-v1", -95.0, -90.0, 200_000, 3),
    Task("dqn", "MountainCar-v0", -120.0, -115.0, 500_000, 3),
    Task("dqn", "LunarLander-v3", 205.0, 240.0, 500_000, 3),
    # Mean returns of 90 solve it. With independent noise both returned 0: no exploring episode reached the goal.
    Task("sac", "MountainCarContinuous-v0", 90.0, 91.0, 100_000, 3),
    Task("td3", "MountainCarContinuous-v0", 90.0, 91.0, 100_000, 3),
    Task("d4pg", "dm_control/cartpole-balance", 960.0, 970.0, 300_000, 2, 50, _MANY_EPISODES),
    Task("d4pg", "dm_control/cartpole-swingup", 820.0, 830.0, 500_000, 2, 50, _MANY_EPISODES),
    Task("d4pg", "dm_control/walker-stand", 925.0, 940.0, 500_000, 2, 50, _MANY_EPISODES),
    Task("d4pg", "dm_control/reacher-easy", 930.0, 940.0, 500_000, 2, 100, ("--evaluation.episodes", "50")),
    Task("d4pg", "dm_control/finger-spin", 840.0, 850.0, 500_000, 2, 50, _MANY_EPISODES),
    # Random actions return 5.
    Task("d4pg", "dm_control/cheetah-run", 230.0, 900.0, 600_000, 2, 20),
    # -21 is the worst return, random actions return -20.7, and 0 is a draw. Stored results have one seed: no verdict.
    Task("dqn", "ALE/Pong-v5", -7.0, 0.0, 500_000, 2, 10),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser)
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 1 to N of each task (default: the task's own)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at the same time (default: 1)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw return against steps to FILE, such as a PNG")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = chosen(TASKS, arguments.task)
    with tempfile.TemporaryDirectory() as nowhere:
        runs = list(make_runs(tasks, arguments.seeds, arguments.jobs, arguments.directory or Path(nowhere)))
    if found := scores(runs):
        over_all = estimate(interquartile_mean, found)
        interval = f"{over_all.low:.3f} to {over_all.high:.3f}"
        print(f"{len(found)} tasks: interquartile mean of the scores {over_all.value:.3f} ({interval})")
    by_task = {task: [run for run in runs if run["task"] == task.name] for task in tasks}
    if arguments.plot:
        plot({task.name: own for task, own in by_task.items()}, arguments.plot)
    return {"runs": runs}, [
        target for task, own in by_task.items() for target in without_verdict([verdict(task, own)], refusal(own))
    ]


MEANINGS = (
    Meaning(
        r"(?P<task>.+): worst seed of (?P<seeds>\d+)",
        "What return does the worst seed reach?",
        "A run of this task can end below the target return. More environment steps may help.",
        case="{task}, seeds: {seeds}",
    ),
)


def verdict(task: Task, runs: Sequence[dict[str, Any]]) -> Target:
    """The worst seed's return on new episodes, against the task's target."""
    worst = min(run["confirmed"]["mean_return"] for run in runs)
    refused = ONE_SEED if len(runs) == 1 else ""
    return Target(f"{task.name}: worst seed of {len(runs)}", worst, task.target, at_most=False, refused=refused)


def scores(runs: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """The scores of all runs by task: 0 for random actions, and 1 at the target. Tasks with one seed are left out."""
    returns = {task: found for task, found in returns_by_task(runs).items() if len(found) > 1}
    known = {task.name: task for task in TASKS}
    floors = random_returns()
    targets = {task: [known[task].target] for task in returns}
    return comparable(returns, targets, {task: floors[known[task].environment] for task in returns})


def make_runs(tasks: Sequence[Task], seeds: int | None, jobs: int, directory: Path) -> Iterator[dict[str, Any]]:
    """Each task's runs, with seeds from 1 to `seeds`, or to the task's own number."""
    wanted = [(task, seed) for task in tasks for seed in range(1, (seeds or task.seeds) + 1)]
    for run in in_order(partial(_run, directory), wanted, jobs):
        print(_row(run), flush=True)
        yield run


def _run(directory: Path, wanted: tuple[Task, int]) -> dict[str, Any]:
    task, seed = wanted
    name = f"{task.name.replace('/', '-')}-{seed}"
    # The target and the number of seeds do not change a run.
    settings = {key: value for key, value in asdict(task).items() if key not in ("target", "seeds")}
    made = cached(directory / f"{name}.json", settings, lambda: _made(task, seed, directory / name))
    return {"task": task.name, **made}


def _made(task: Task, seed: int, folder: Path) -> dict[str, Any]:
    flags = ["--algorithm", task.algorithm, "--environment", task.environment, "--seed", str(seed), *task.flags]
    limits = [f"--target-return={task.stop_at}", "--max-environment-steps", str(task.steps)]
    summary = train(folder, [*flags, *limits])
    return {**summary, "confirmed": asdict(confirm(folder, task.episodes))}


def _row(run: dict[str, Any]) -> str:
    confirmed = run["confirmed"]
    return (
        f"{run['task']} seed {run['seed']}: {confirmed['mean_return']:.1f} on {confirmed['episodes']} new episodes "
        f"({confirmed['scheme']}), {run['environment_steps']:,} steps, {run['wall_clock_s']:.0f} s, "
        f"{run['environment_steps_per_s']:.0f} steps/s, {run['updates_per_s']:.0f} updates/s, actors "
        f"{max(actor_megabytes(run)):.0f} MB"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
