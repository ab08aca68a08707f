"""Return and time of SAC from pixels on cartpole-swingup, with int8-static actors.

A run is `actorq train` with the preset of DM Control from pixels, whose learner has one thread. It ends when its
evaluator sees the stopping return, or at its budget of environment steps. Then its last policy plays new episodes, in
int8-static.

Targets, older than the first run: the worst seed's return on new episodes is at least 600, and the slowest run takes at
most an hour. A balanced pole returns up to 880. A seed of DrQ's published curves (arXiv 2004.13649) returns 599 after
80,000 physical steps. It then has made 10,000 updates with a batch of 512.

Runs are kept in --directory, so that a measurement may continue later. Complete runs are not repeated. All must come
from one commit on one machine.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ONE_SEED, Meaning, Target, run_benchmark, without_verdict
from benchmarks.runs import add_task_flag, cached, chosen, confirm, forget_incomplete, refusal, train

Run = dict[str, Any]

SCHEME = "int8-static"
LEAST_SEEDS = 3
_KEPT = ("wall_clock_s", "environment_steps", "updates", "updates_per_s", "solved", "transitions_by_scheme")

MEANINGS = (
    Meaning(
        r"(?P<task>.+): worst seed of (?P<seeds>\d+)",
        "What return does the worst seed reach from pixels?",
        "A run from pixels can end below the target return. More environment steps may help.",
        case="{task}, seeds: {seeds}",
    ),
    Meaning(
        r"(?P<task>.+): slowest run of (?P<seeds>\d+)",
        "Does a run from pixels end within an hour?",
        "A run takes longer than planned. Use a GPU for the learner, or smaller pictures.",
        unit=" s",
        case="{task}, seeds: {seeds}",
    ),
    Meaning(
        r"runs whose transitions all came from int8-static policies",
        "Do int8-static policies collect all data?",
        "The gate kept a policy in another scheme. The table then does not show int8-static.",
    ),
)


@dataclass(frozen=True)
class Task:
    """A task of DM Control from pixels, and the bounds of the benchmark.

    least: return of every seed on new episodes. end: mean return of an evaluation that ends a run. It is above `least`,
        because the last evaluation of a run is a lucky one. seconds: the longest run. steps: environment steps that end
        a run. episodes: new ones.
    """

    environment: str
    least: float
    end: float
    seconds: float
    steps: int
    episodes: int = 30

    @property
    def name(self) -> str:
        """The name that the patterns of --task match."""
        return self.environment

    def flags(self, seed: int) -> list[str]:
        """The flags of actorq train."""
        return [
            f"--environment={self.environment}",
            "--algorithm=sac",
            f"--scheme={SCHEME}",
            f"--seed={seed}",
            f"--target-return={self.end:g}",
            f"--max-environment-steps={self.steps}",
        ]


TASKS = (Task("dm_control_pixels/cartpole-swingup", least=600.0, end=650.0, seconds=3_600.0, steps=60_000),)


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser, "ENVIRONMENT")
    parser.add_argument("--seeds", type=int, default=LEAST_SEEDS, metavar="N", help=f"seeds 1 to N ({LEAST_SEEDS})")
    parser.add_argument("--steps", type=int, metavar="N", help="steps of each run, for a trial (default: the task's)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    with tempfile.TemporaryDirectory() as nowhere:
        folder = arguments.directory or Path(nowhere)
        runs = list(make_runs(chosen(TASKS, arguments.task), arguments.seeds, folder, arguments.steps))
    figures = {"runs": runs}
    return figures, targets(figures)


def make_runs(tasks: Sequence[Task], seeds: int, directory: Path, steps: int | None = None) -> Iterator[Run]:
    """The runs of all tasks, task by task. steps: of each run, instead of the task's."""
    for task in tasks:
        for seed in range(1, seeds + 1):
            run = _run(task, seed, directory, steps)
            print(_line(run), flush=True)
            yield run


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """Two targets for each task with runs, and one for the scheme of all actors."""
    runs: list[Run] = figures["runs"]
    found, is_alone = [], False
    for task in TASKS:
        own = [run for run in runs if run["task"] == task.name]
        if not own:
            continue
        is_alone = is_alone or len(own) == 1
        worst = min(run["confirmed"]["mean_return"] for run in own)
        slowest = max(run["wall_clock_s"] for run in own)
        found.append(Target(f"{task.name}: worst seed of {len(own)}", worst, task.least, at_most=False))
        found.append(Target(f"{task.name}: slowest run of {len(own)}", slowest, task.seconds))
    static = sum({*run["transitions_by_scheme"]} == {SCHEME} for run in runs)
    name = f"runs whose transitions all came from {SCHEME} policies"
    found.append(Target(name, static, len(runs), at_most=False))
    return without_verdict(found, ONE_SEED if is_alone else refusal(runs))


def _run(task: Task, seed: int, directory: Path, steps: int | None) -> Run:
    folder = directory / f"{task.name.replace('/', '-')}-{seed}"
    flags = [*task.flags(seed), *([f"--max-environment-steps={steps}"] if steps else [])]

    def make() -> Run:
        forget_incomplete(folder)
        made = train(folder, flags)
        return {**{name: made[name] for name in _KEPT}, "confirmed": asdict(confirm(folder, task.episodes, SCHEME))}

    made = cached(folder.with_suffix(".json"), {"flags": flags, "episodes": task.episodes}, make)
    return {**made, "task": task.name, "seed": seed}


def _line(run: Run) -> str:
    return (
        f"{run['task']} seed {run['seed']}: return {run['confirmed']['mean_return']:.1f} on "
        f"{run['confirmed']['episodes']} new episodes ({run['confirmed']['scheme']}), {run['environment_steps']:,} "
        f"steps, {run['updates']:,} updates, {run['wall_clock_s']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
