"""Returns of int8 policies with memory and without it, on tasks that show only a part of their state.

CartPole without velocities, Pendulum without velocity, and a symbol that the policy must recall after 50 steps. Each
run is `actorq train` with int8 actors. It ends with an evaluation at the task's end, or after the task's steps. Its
last policy then plays new episodes, in int8. Policies with and without memory have the same number of steps.

Targets: with memory the lowest seed reaches the task's bound. Without memory the highest seed stays below another
bound, so the task needs memory. All bounds are in benchmarks.training.memory.tasks, and older than the runs.

Runs are kept in --directory, so that a measurement may continue later. All must come from one commit on one machine.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import Meaning, Target, run_benchmark, without_verdict
from benchmarks.runs import add_task_flag, cached, chosen, confirm, forget_incomplete, refusal, train, with_project
from benchmarks.training.memory.tasks import NONE, TASKS, Case, cases

Run = dict[str, Any]

LEAST_SEEDS = 3
_FEW_SEEDS = f"fewer than {LEAST_SEEDS} seeds give no verdict"
_KEPT = ("wall_clock_s", "environment_steps", "updates", "solved", "transitions_by_scheme")

MEANINGS = (
    Meaning(
        r"(?P<task>.+), (?P<algorithm>\w+), (?P<memory>gru|lstm): lowest return of a seed",
        "Do int8 policies with memory solve tasks that need it?",
        "Not every seed solves the task. Try another seed, more units or more steps.",
        case="{algorithm} on {task}",
    ),
    Meaning(
        r"(?P<task>.+), (?P<algorithm>\w+), none: highest return of a seed",
        "Do these tasks need memory?",
        "A policy without memory is good here. The task then shows nothing about memory.",
        case="{algorithm} on {task}",
    ),
    Meaning(
        r"runs whose transitions all came from int8 policies",
        "Do int8 policies collect all data?",
        "The gate kept a policy in another scheme. The table then does not show int8.",
    ),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser, "ENVIRONMENT")
    algorithms = sorted({case.algorithm for case in cases()})
    parser.add_argument("--algorithms", nargs="+", choices=algorithms, default=algorithms, help="default: all")
    parser.add_argument("--seeds", type=int, default=LEAST_SEEDS, metavar="N", help=f"seeds 1 to N ({LEAST_SEEDS})")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of each run, for a trial (default: the task's)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    wanted = [case for case in cases(chosen(TASKS, arguments.task)) if case.algorithm in arguments.algorithms]
    if not wanted:
        raise SystemExit(f"--algorithms: expected one that a task has, got {' '.join(arguments.algorithms)}")
    with tempfile.TemporaryDirectory() as nowhere:
        folder = arguments.directory or Path(nowhere)
        runs = list(make_runs(wanted, arguments.seeds, folder, arguments.steps))
    figures = {"runs": runs}
    return figures, targets(figures)


def make_runs(wanted: Sequence[Case], seeds: int, directory: Path, steps: int | None = None) -> Iterator[Run]:
    """The runs of all cases, case by case. steps: of each run, instead of the task's."""
    for case in wanted:
        for seed in range(1, seeds + 1):
            run = _run(case, seed, directory, steps)
            print(_line(run), flush=True)
            yield run


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """A target for each case with runs, and one for the scheme of all actors."""
    runs: list[Run] = figures["runs"]
    found, fewest = [], LEAST_SEEDS
    for case in cases():
        returns = [run["confirmed"]["mean_return"] for run in runs if run["task"] == case.name]
        if returns and case.memory == NONE:
            found.append(Target(f"{case.name}: highest return of a seed", max(returns), case.task.most))
        elif returns:
            found.append(Target(f"{case.name}: lowest return of a seed", min(returns), case.task.least, at_most=False))
        fewest = min([fewest, len(returns)]) if returns else fewest
    int8_only = sum({*run["transitions_by_scheme"]} == {"int8"} for run in runs)
    name = "runs whose transitions all came from int8 policies"
    found.append(Target(name, int8_only, len(runs), at_most=False))
    return without_verdict(found, _FEW_SEEDS if fewest < LEAST_SEEDS else refusal(runs))


def _run(case: Case, seed: int, directory: Path, steps: int | None) -> Run:
    folder = directory / f"{case.name.replace(', ', '-')}-{seed}"
    flags = [*case.flags(seed), *([f"--max-environment-steps={steps}"] if steps else [])]
    variables = with_project()

    def make() -> Run:
        forget_incomplete(folder)
        made = train(folder, flags, variables)
        allowed = ("--allow-modules", case.task.module)
        confirmed = confirm(folder, case.task.episodes, variables=variables, flags=allowed)
        return {**{name: made[name] for name in _KEPT}, "confirmed": asdict(confirmed)}

    made = cached(folder.with_suffix(".json"), {"flags": flags, "episodes": case.task.episodes}, make)
    own = {"environment": case.task.name, "algorithm": case.algorithm, "memory": case.memory}
    return {**made, **own, "task": case.name, "seed": seed}


def _line(run: Run) -> str:
    return (
        f"{run['task']:45} seed {run['seed']}: {run['confirmed']['scheme']} return "
        f"{run['confirmed']['mean_return']:8.2f}, {run['environment_steps']:>9,} steps, {run['wall_clock_s']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
