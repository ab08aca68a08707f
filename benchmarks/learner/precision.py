"""Returns of training in bf16 and in fp32, with the same tasks, settings, steps, seeds and int8 actors.

Runs of both precisions take turns. Each has a fixed number of environment steps. At its end the last policy plays new
episodes. Target of a task: the mean of the seeds in bf16 is at least that in fp32 minus its sample standard deviation
over seeds. Networks and batches are large enough for bf16 (learner_service/kernels/bfloat16.py). The table also shows
the updates per second. Runs are kept in --directory. All must come from one commit on one machine.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ONE_SEED, Meaning, Target, run_benchmark, without_verdict
from benchmarks.libraries.parity_settings import SAC, TD3
from benchmarks.runs import LearningTask, add_task_flag, cached, chosen, confirm, forget_incomplete, refusal, train

FP32, BF16 = PRECISIONS = ("fp32", "bf16")
Run = dict[str, Any]
_EPISODES = 50


@dataclass(frozen=True)
class Task(LearningTask):
    """A task to learn: environment steps and flags of `actorq train`."""

    steps: int
    flags: tuple[str, ...] = ()


# The tasks of libraries/parity.py, with fewer steps, and two tasks of training/returns.py with wider networks.
TASKS = (
    Task("sac", "Pendulum-v1", 15_000, tuple(SAC.actorq())),
    Task("td3", "Pendulum-v1", 15_000, tuple(TD3.actorq())),
    Task("sac", "HalfCheetah-v5", 30_000, tuple(SAC.actorq())),
    Task("td3", "HalfCheetah-v5", 30_000, tuple(TD3.actorq())),
    Task("d4pg", "dm_control/cartpole-balance", 60_000),
    Task("dqn", "CartPole-v1", 15_000, ("--dqn.hidden-sizes", "512,512")),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 1 to N of each task (default: 3)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = chosen(TASKS, arguments.task)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as nowhere:
        directory = arguments.directory or Path(nowhere)
        # Seed by seed, so that early results cover all tasks.
        for seed in range(1, arguments.seeds + 1):
            for task in tasks:
                for precision in PRECISIONS[:: 1 if seed % 2 else -1]:
                    runs.append(_run(task, precision, seed, directory))
                    print(row(runs[-1]), flush=True)
    targets: list[Target] = []
    for task in tasks:
        own = [run for run in runs if run["task"] == task.name]
        targets += without_verdict([verdict(task, own)], refusal(own))
    return {"runs": runs}, targets


MEANINGS = (
    Meaning(
        r"(?P<task>.+): mean of (?P<seeds>\d+) seeds in bf16 \(fp32: .+\)",
        "Is the mean return in bf16 as high as in fp32?",
        "On this task bf16 may cost return. Compare both precisions there.",
        case="{task}, seeds: {seeds}",
    ),
)


def verdict(task: Task, runs: Sequence[Run]) -> Target:
    """The mean return in bf16 against that in fp32 minus the sample standard deviation of fp32.

    Raises SystemExit if a run did not compute in the requested precision.
    """
    returns: dict[str, list[float]] = {precision: [] for precision in PRECISIONS}
    for run in runs:
        if run["precision"] != run["asked"]:
            raise SystemExit(f"{task.name}: expected a run in {run['asked']}, got one in {run['precision']}")
        returns[run["asked"]].append(run["confirmed"]["mean_return"])
    alone = len(returns[FP32]) == 1
    spread = 0.0 if alone else statistics.stdev(returns[FP32])
    mean = statistics.fmean(returns[FP32])
    return Target(
        f"{task.name}: mean of {len(returns[BF16])} seeds in bf16 (fp32: {mean:.1f}, standard deviation {spread:.1f})",
        statistics.fmean(returns[BF16]),
        mean - spread,
        at_most=False,
        refused=ONE_SEED if alone else "",
        baseline=mean,
    )


def _run(task: Task, precision: str, seed: int, directory: Path) -> Run:
    folder = directory / f"{task.name.replace('/', '-')}-{precision}-{seed}"

    def make() -> Run:
        forget_incomplete(folder)
        flags = ["--algorithm", task.algorithm, "--environment", task.environment, *task.flags]
        flags += ["--seed", str(seed), "--learner.precision", precision, "--max-environment-steps", str(task.steps)]
        # An unreachable return, so that the run does not end early.
        summary = train(folder, [*flags, "--target-return", "1e9", "--evaluation.period-updates", "5000"])
        return {**summary, "confirmed": asdict(confirm(folder, _EPISODES))}

    made = cached(folder.with_suffix(".json"), asdict(task), make)
    return {**made, "task": task.name, "asked": precision}


def row(run: Run) -> str:
    """A line of the table."""
    return (
        f"{run['task']:34} {run['asked']} seed {run['seed']}: {run['confirmed']['mean_return']:>8.1f} on new episodes, "
        f"{run['environment_steps']:>7,} steps, {run['updates']:>6,} updates, {run['updates_per_s']:>6.1f} a second"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
