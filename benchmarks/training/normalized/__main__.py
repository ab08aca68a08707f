"""XQC beside SAC on the same seconds: returns over time, updates per second, and errors of quantized policies.

Each run is `actorq train --preset auto` with int8 actors for a fixed time. SAC and XQC have their own settings of the
preset. Each further system is XQC with one setting changed, which removes or resizes one of its parts. The batch
normalization, the joint batch and the cross entropy cannot be removed, because they have no setting.

Returns are those of the run's last policy on new episodes, in the scheme of its actors. Errors are those of the last
policy in each scheme, relative to the range of actions, on observations of its own episodes. No layer is in float
because of the fidelity gate. "xqc-policy-of-sac" and "sac" have policies of the same size.

Target: XQC is not clearly worse than SAC. The 95% interval of its share of SAC's return, with random actions as zero,
reaches 1. Runs are kept in --directory, so that a measurement may continue later. All must come from one commit on one
machine.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from actor_service.environments import make_environments
from benchmarks.harness import Meaning, Target, run_benchmark, without_verdict
from benchmarks.policy.bits.evaluation import random_return
from benchmarks.runs import add_task_flag, cached, chosen, confirm, forget_incomplete, refusal, train
from benchmarks.training.normalized.errors import errors_of
from benchmarks.training.normalized.summary import cells, compared, median_error
from benchmarks.training.normalized.systems import SAC, SCHEMES, SYSTEMS, TASKS, XQC, System, Task

Run = dict[str, Any]

_EPISODES = 20
_RANDOM_EPISODES = 20
_WITHOUT_TARGET = 1e9
_KEPT = ("evaluations", "environment_steps", "updates", "updates_per_s", "samples_per_insert", "precision")
_NO_COMPARISON = "one seed, or a SAC that is no better than random actions, gives no verdict"

MEANINGS = (
    Meaning(
        r"(?P<task>.+): upper end of XQC's share of SAC's return",
        "Does XQC return at least as much as SAC in the same time?",
        "XQC is clearly worse here. Use `sac` for this task.",
        unit="%",
        scale=100,
        case="{task}",
    ),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser, "ENVIRONMENT")
    names = [system.name for system in SYSTEMS]
    parser.add_argument("--systems", nargs="+", choices=names, default=names, metavar="NAME", help="default: all")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 1 to N of each system (default: 5)")
    parser.add_argument("--limit-s", type=float, metavar="S", help="seconds of each run (default: the task's own)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = chosen(TASKS, arguments.task)
    if arguments.limit_s is not None:
        tasks = [replace(task, limit_s=arguments.limit_s) for task in tasks]
    systems = [system for system in SYSTEMS if system.name in arguments.systems]
    with tempfile.TemporaryDirectory() as nowhere:
        runs = list(make_runs(tasks, systems, arguments.seeds, arguments.directory or Path(nowhere)))
    figures = {"runs": runs, "random": {task.name: _random(task) for task in tasks}}
    for task, system, own in cells(runs):
        errors = ", ".join(f"{scheme} {median_error(own, scheme, 'mean'):.2%}" for scheme in SCHEMES)
        print(f"{task:16} {system:18} median errors of actions: {errors}")
    return figures, targets(figures)


def make_runs(tasks: Sequence[Task], systems: Sequence[System], seeds: int, directory: Path) -> Iterator[Run]:
    """Runs of all systems, seed by seed. Every second seed reverses the order: a slower machine affects all systems."""
    for task in tasks:
        for seed in range(1, seeds + 1):
            for system in systems[:: 1 if seed % 2 else -1]:
                run = _run(task, system, seed, directory)
                print(_line(run), flush=True)
                yield run


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """One target for each task with runs of both algorithms."""
    runs, found = figures["runs"], []
    for task in dict.fromkeys(run["task"] for run in runs):
        if not {SAC, XQC} <= {run["system"] for run in runs if run["task"] == task}:
            continue
        comparison = compared(runs, figures["random"], task, XQC)
        high, refused = (0.0, _NO_COMPARISON) if comparison is None else (comparison.share.high, comparison.refused)
        name = f"{task}: upper end of XQC's share of SAC's return"
        found.append(Target(name, float(high), 1.0, at_most=False, refused=refused))
    return without_verdict(found, refusal(runs))


def _run(task: Task, system: System, seed: int, directory: Path) -> Run:
    folder = directory / f"{task.name}-{system.name}-{seed}"

    def make() -> Run:
        forget_incomplete(folder)
        flags = {
            "algorithm": system.algorithm,
            "environment": task.environment,
            "preset": "auto",
            "target-return": _WITHOUT_TARGET,
            "max-seconds": task.limit_s,
            "max-environment-steps": 100_000_000,
            "seed": seed,
        }
        made = train(folder, [*(f"--{name}={value}" for name, value in flags.items()), *system.flags])
        confirmed, errors = asdict(confirm(folder, _EPISODES)), errors_of(folder, task.environment)
        return {**{name: made[name] for name in _KEPT}, "confirmed": confirmed, "errors": errors}

    made = cached(folder.with_suffix(".json"), {**asdict(task), **asdict(system)}, make)
    return {**made, "task": task.name, "system": system.name, "seed": seed, "limit_s": task.limit_s}


def _random(task: Task) -> float:
    with closing(make_environments(task.environment, _RANDOM_EPISODES)) as environments:
        return random_return(environments)


def _line(run: Run) -> str:
    return (
        f"{run['task']:16} {run['system']:18} seed {run['seed']}: return {run['confirmed']['mean_return']:>8,.1f}, "
        f"{run['updates']:>7,} updates ({run['updates_per_s']:.0f}/s), {run['environment_steps']:>9,} steps"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
