"""ActorQ's table (arXiv 1910.01055), whole: eight tasks of DM Control and three of Gym, by the scheme of the actors.

Actors run in PyTorch (torch) or ONNX Runtime (fp32, fp16, int8, int4). The baseline is fp32. DQN learns the Gym tasks.
D4PG and XQC learn those of DM Control. The runs of a task differ only in their actors, and take turns. They have the
same number of environment steps, unless the time limit ends them sooner. At the end the last policy plays new episodes,
in the form that actors use.

Relative to fp32, the table has returns, seconds, energy and carbon:

- Returns count from those of random actions.
- Seconds go from the first stored transition to 95% of FP32's mean return. A run that does not reach it has none.
- Energy and carbon are those of all processes, for each environment step.

The target is about int8 with D4PG, and with XQC: the difference of interquartile means of scores, whose lower 90% bound
is above -0.05. A score is 1 at the paper's return with FP32 actors. Tasks with fewer than --seeds seeds, and tasks that
FP32 runs have not learned, do not count.

Runs are kept in --directory. Finished runs are not repeated and interrupted runs begin again, so the table can be made
in parts. All must come from one commit on one machine.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from actorq.errors import UserError
from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.policy.bits.summary import KEPT
from benchmarks.runs import add_task_flag, chosen
from benchmarks.speedup.paper.half import offered
from benchmarks.speedup.paper.making import Run, line, make_runs
from benchmarks.speedup.paper.summary import over_tasks, summarized, targets
from benchmarks.speedup.paper.tasks import SCHEMES, TASKS

MEANINGS = (
    Meaning(
        r"(?P<algorithm>\w+): int8 less fp32, interquartile means of scores, lower end "
        r"\((?P<tasks>\d+) of (?P<all>\d+) tasks(: .+)?\)",
        "Do runs with int8 actors return as much as runs with FP32 actors?",
        "int8 actors may cost return with this algorithm. Compare both on your task with `actorq compare`.",
        case="{algorithm}, {tasks} of {all} tasks",
    ),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser)
    parser.add_argument("--scheme", nargs="+", choices=SCHEMES, default=SCHEMES, help="kinds of actors (default: all)")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 1 to N of each task (default: 5)")
    parser.add_argument("--limit-s", type=float, metavar="S", help="time limit of a run (default: the task's own)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")
    parser.add_argument(
        "--finished-only", action="store_true", help="make no runs: report the finished ones of --directory"
    )


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    if arguments.finished_only and arguments.directory is None:
        raise UserError("--finished-only: expected --directory DIR, the folder of the runs, got none")
    tasks = chosen(TASKS, arguments.task)
    if arguments.limit_s is not None:
        tasks = [replace(task, limit_s=arguments.limit_s) for task in tasks]
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as nowhere, offered() as variables:
        directory = arguments.directory or Path(nowhere)
        schemes = [scheme for scheme in SCHEMES if scheme in arguments.scheme]
        for run in make_runs(tasks, schemes, arguments.seeds, directory, variables, arguments.finished_only):
            print(line(run), flush=True)
            runs.append(run)
    if not runs:
        raise UserError(f"--finished-only: expected finished runs of these tasks in {arguments.directory}, got none")
    found = summarized(runs)
    for row in found:
        print(_row(row))
    for each in over_tasks(runs):
        print(_over(each))
    figures = {"seeds": arguments.seeds, "runs": runs, "summary": found}
    return figures, targets(figures)


def _row(row: Mapping[str, Any]) -> str:
    seconds = "" if row["seconds"] is None else f" after {row['seconds']:.0f} s"
    ratios = row["ratios"] or {}
    against = ", ".join(f"{name} {each['value']:.2f}" for name, each in ratios.items() if each is not None)
    return (
        f"{row['task']:34} {row['scheme']:5} return {row['return']:>8.1f}, {row['reached']} of {row['seeds']} runs "
        f"reach {KEPT:.0%}{seconds}{'; times better than fp32: ' if against else ''}{against}"
    )


def _over(row: Mapping[str, Any]) -> str:
    score = row["score"]
    return (
        f"{row['algorithm']} {row['scheme']}: interquartile mean of the scores {score['value']:.3f} "
        f"({score['low']:.3f} to {score['high']:.3f}), {row['tasks']} tasks, {row['runs']} runs"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
