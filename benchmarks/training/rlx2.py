"""Returns of sparse training with RLx2, of its baselines and of its control, all with int8 actors.

dense; tiny: a narrow dense network; static: fixed random masks; set: weights grow at random places; rigl: weights grow
where gradients are largest; rlx2: rigl with multi-step targets and a replay of dynamic capacity; control: dense with
the same targets and replay, which separates their effect from that of sparsity; structured: rlx2 that drops units of
little effect; static_actor: rlx2 with fixed masks in the policy. InvertedPendulum is RLx2's motivating example
(arXiv 2205.15043). On the other tasks the sparsities are the paper's.

All runs of a task have equal numbers of environment steps and updates. Schedules are shares of these (rlx2_tasks.py).
Targets of a task are about `confirmed`: the return of a run's last policy on new episodes, as the mean over the seeds.
One seed gives no verdict. `settled` is the mean return of the evaluations in the last quarter of a run, each with a few
greedy episodes of the actors' policy.

Targets over all tasks are about the lower ends of bootstrap intervals (benchmarks/comparison.py): of the interquartile
mean over the control's, and of the probability of improvement over simpler sparse methods. Fewer than five seeds of a
task give no verdict.

Runs are kept in --directory. Complete runs are not repeated, interrupted runs continue, and other settings make other
runs. All must come from one commit on one machine.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.comparison import Comparison, compare, returns_by_task
from benchmarks.harness import ONE_SEED, Meaning, Target, run_benchmark, without_verdict
from benchmarks.runs import add_task_flag, chosen, in_order, refusal
from benchmarks.training.rlx2_plot import plot
from benchmarks.training.rlx2_sparsities import Sparsity
from benchmarks.training.rlx2_tasks import METHODS, TASKS, Task, run_task

SCHEME = "int8"
CONTROL, RLX2 = "control", "rlx2"
# Bounds for the lower ends of the intervals over all tasks: of the return over the control's, and of the probability of
# improvement over these methods.
_SHARE_OF_CONTROL, _IMPROVEMENT, _SIMPLER = 0.85, 0.5, ("tiny", "static", "set")


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flags(parser)
    parser.add_argument("--method", action="append", choices=METHODS, help="methods (default: the task's own)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw return against steps to FILE, such as a PNG")


def add_task_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the tasks, their size and their folder."""
    add_task_flag(parser)
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 1 to N of each task (default: the task's own)")
    parser.add_argument("--steps", type=int, metavar="N", help="environment steps per run (default: the task's own)")
    parser.add_argument(
        "--updates-per-step", type=float, metavar="X", help="updates per step (default: the task's own)"
    )
    parser.add_argument(
        "--sparsity", type=float, nargs=2, metavar=("ACTOR", "CRITIC"), help="shares of zeros (default: the task's own)"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at the same time (default: 1)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")


def chosen_tasks(arguments: argparse.Namespace) -> list[Task]:
    """The tasks that the flags choose, with their settings. Raises SystemExit if there are none."""
    return [
        replace(
            task,
            seeds=arguments.seeds or task.seeds,
            steps=arguments.steps or task.steps,
            updates_per_step=arguments.updates_per_step or task.updates_per_step,
            sparsity=Sparsity(*arguments.sparsity) if arguments.sparsity else task.sparsity,
        )
        for task in chosen(TASKS, arguments.task)
    ]


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = [replace(task, methods=tuple(arguments.method or task.methods)) for task in chosen_tasks(arguments)]
    wanted = [
        (task, method, SCHEME, seed) for task in tasks for seed in range(1, task.seeds + 1) for method in task.methods
    ]
    runs = list(runs_of(wanted, arguments.jobs, arguments.directory))
    by_task = {task: [run for run in runs if run["task"] == task.name] for task in tasks}
    if arguments.plot:
        plot(by_task, arguments.plot)
    found = [target for task, own in by_task.items() for target in without_verdict(targets(task, own), refusal(own))]
    return {"runs": runs}, [*found, *without_verdict(targets_over_tasks(runs), refusal(runs))]


def runs_of(
    wanted: Sequence[tuple[Task, str, str, int]], jobs: int, directory: Path | None
) -> Iterator[dict[str, Any]]:
    """Make or find the runs (task, method, scheme, seed). Prints a line for each."""
    with tempfile.TemporaryDirectory() as nowhere:
        for run in in_order(lambda one: run_task(directory or Path(nowhere), *one), wanted, jobs):
            print(_row(run), flush=True)
            yield run


MEANINGS = (
    Meaning(
        r"(?P<task>.+): rlx2 over (control|dense), return on new episodes, (?P<seeds>\d+) seeds .*",
        "What share of a dense network's return does sparse training (RLx2) reach?",
        "Sparsity costs return on this task.",
        unit="%",
        scale=100,
        case="{task}, seeds: {seeds}",
    ),
    Meaning(
        r"(?P<task>.+): rlx2 over (?P<other>\w+), return on new episodes, (?P<seeds>\d+) seeds .*",
        "What share of a simpler sparse method's return does RLx2 reach?",
        "RLx2 gains less over simpler sparse training than planned.",
        unit="%",
        scale=100,
        case="{task}, over {other}, seeds: {seeds}",
    ),
    Meaning(
        r"(?P<tasks>\d+) tasks: rlx2 over control, interquartile mean, lower end .*",
        "What share of a dense network's return does sparse training (RLx2) reach over all tasks at least?",
        "Sparsity may cost more return than planned.",
        unit="%",
        scale=100,
        case="tasks: {tasks}",
    ),
    Meaning(
        r"(?P<tasks>\d+) tasks: rlx2 over (?P<other>\w+), probability of improvement, lower end .*",
        "How probable is it at least that RLx2 returns more than a simpler sparse method?",
        "RLx2 may not return more than simpler sparse training.",
        unit="%",
        scale=100,
        case="over {other}, tasks: {tasks}",
    ),
)


def targets(task: Task, runs: Sequence[dict[str, Any]]) -> list[Target]:
    """The task's bounds on ratios of confirmed returns, for methods that were run."""
    confirmed = mean_returns(runs, lambda run: run["confirmed"]["mean_return"])
    settled = mean_returns(runs, lambda run: run["settled"])
    seeds = len({run["seed"] for run in runs})
    return [
        Target(
            f"{task.name}: {bound.method} over {bound.of}, return on new episodes, {seeds} seeds (last quarter: "
            f"{settled[bound.method] / settled[bound.of]:.2f})",
            confirmed[bound.method] / confirmed[bound.of],
            bound.share,
            at_most=False,
            refused=ONE_SEED if seeds == 1 else "",
        )
        for bound in task.bounds
        if {bound.method, bound.of} <= confirmed.keys()
    ]


def comparisons(runs: Sequence[dict[str, Any]]) -> dict[str, Comparison]:
    """RLx2 compared with each other method over the tasks that have several seeds of both."""
    methods = [method for method in METHODS if method != RLX2]
    ours = returns_by_task(run for run in runs if run["method"] == RLX2)
    found = {other: compare(ours, returns_by_task(run for run in runs if run["method"] == other)) for other in methods}
    return {other: comparison for other, comparison in found.items() if comparison is not None}


def targets_over_tasks(runs: Sequence[dict[str, Any]]) -> list[Target]:
    """The bounds of all comparisons over several tasks."""
    return [
        target
        for other, comparison in comparisons(runs).items()
        if comparison.tasks > 1 and (target := target_over(other, comparison))
    ]


def target_over(other: str, comparison: Comparison) -> Target | None:
    """The bound of RLx2 over another method over several tasks. None for a method without a bound."""
    if other != CONTROL and other not in _SIMPLER:
        return None
    if other == CONTROL:
        what, found, bound = "interquartile mean", comparison.share, _SHARE_OF_CONTROL
    else:
        what, found, bound = "probability of improvement", comparison.improvement, _IMPROVEMENT
    return Target(
        f"{comparison.tasks} tasks: rlx2 over {other}, {what}, lower end ({comparison.runs} runs: {found.value:.2f})",
        float(found.low),
        bound,
        at_most=False,
        refused=comparison.refused,
    )


def mean_returns(runs: Sequence[dict[str, Any]], return_of: Callable[[dict[str, Any]], float]) -> dict[str, float]:
    """Mean return over the seeds of each method."""
    methods = dict.fromkeys(run["method"] for run in runs)
    returns = {method: [return_of(run) for run in runs if run["method"] == method] for method in methods}
    return {method: sum(values) / len(values) for method, values in returns.items()}


def _row(run: dict[str, Any]) -> str:
    confirmed = run["confirmed"]
    return (
        f"{run['task']} {run['method']} seed {run['seed']}: {confirmed['mean_return']:.1f} on {confirmed['episodes']} "
        f"new episodes ({confirmed['scheme']}), {run['settled']:.1f} settled, {run['mean']:.1f} on the way, "
        f"{run['environment_steps']:,} steps, {run['wall_clock_s']:.0f} s, {run['updates_per_s']:.0f} updates/s"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
