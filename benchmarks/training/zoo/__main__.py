"""Trains the policies of the zoo, evaluates them, and stores them as `actorq export` writes them.

A run is `actorq train` with its preset, until its evaluator sees the task's stopping return. `actorq export` writes the
best version in the scheme of the actors. The exported file then plays new episodes, with the actor's own loader. The
targets are about their mean return, and about the sizes of the files.

Runs are kept in --directory. Complete runs are not repeated, and interrupted runs continue. All must come from one
commit on one machine. --policies benchmarks/results/policies stores the policies that the pages and the tests use.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from actorq.inference import description_file
from benchmarks.harness import Meaning, Target, run_benchmark, without_verdict
from benchmarks.runs import ACTORQ, CONFIRMATION_SEED, add_task_flag, chosen, in_order, refusal, train
from benchmarks.training.zoo.plot import plot
from benchmarks.training.zoo.policies import digests, evaluate
from benchmarks.training.zoo.settings import settings_of
from benchmarks.training.zoo.tasks import TASKS, Task

Run = dict[str, Any]
# Of one policy and of all of them, in kB with the descriptions.
_LARGEST_KB, _ALL_KB = 200.0, 2_000.0


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser)
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the runs (default: 1)")
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="new episodes (default: 100)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at the same time (default: 1)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")
    parser.add_argument(
        "--policies", type=Path, metavar="DIR", help="folder for the policies (default: that of the runs)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw return against seconds to FILE, such as a PNG")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    tasks = chosen(TASKS, arguments.task)
    with tempfile.TemporaryDirectory() as nowhere:
        directory: Path = arguments.directory or Path(nowhere)
        policies: Path = arguments.policies or directory
        policies.mkdir(parents=True, exist_ok=True)
        make = partial(_run, directory, policies, arguments.seed, arguments.episodes)
        runs = []
        for run in in_order(make, tasks, arguments.jobs):
            print(_row(run), flush=True)
            runs.append(run)
    if arguments.plot:
        plot(settings_of([runs]), arguments.plot)
    return {"runs": runs}, without_verdict(targets(runs), refusal(runs))


MEANINGS = (
    Meaning(
        r"(?P<task>.+): return of the stored policy on \d+ new episodes",
        "What return does the stored policy reach?",
        "The policy of the zoo is worse than planned. Train it again with another seed.",
        case="{task}",
    ),
    Meaning(
        r"kB of (?P<which>.+)",
        "How large are the files of the zoo?",
        "The zoo makes the repository larger than planned.",
        unit=" kB",
        case="{which}",
    ),
)


def targets(runs: Sequence[Run]) -> list[Target]:
    """Bounds for the returns of the policies and for the sizes of their files."""
    sizes = [run["policy"]["kilobytes"] for run in runs]
    returns = [
        Target(
            f"{run['task']}: return of the stored policy on {run['confirmed']['episodes']} new episodes",
            run["confirmed"]["mean_return"],
            run["policy"]["threshold"],
            at_most=False,
        )
        for run in runs
    ]
    largest, total = (
        Target("kB of the largest policy", max(sizes), _LARGEST_KB),
        Target("kB of all", sum(sizes), _ALL_KB),
    )
    return [*returns, largest, total]


def _run(directory: Path, policies: Path, seed: int, episodes: int, task: Task) -> Run:
    folder = directory / f"{task.name.replace('/', '-')}-{task.preset}-{seed}"
    summary = train(folder, [*task.flags, "--seed", str(seed)])
    file = policies / task.file
    _export(folder, file)
    played = evaluate(file, episodes, CONFIRMATION_SEED)
    kilobytes = sum(each.stat().st_size for each in (file, description_file(file))) / 1_000
    return {
        **summary,
        "task": task.name,
        "preset": task.preset,
        "command": " ".join(("actorq train", *task.flags, "--seed", str(seed))),
        "confirmed": {"mean_return": fmean(played.returns), "episodes": episodes, "scheme": played.scheme},
        "policy": {"file": task.file, "threshold": task.threshold, "kilobytes": kilobytes, **digests(file)},
    }


def _export(folder: Path, file: Path) -> None:
    """Write the best version of a run. Raises SystemExit if the fidelity gate refuses the scheme."""
    for old in (file, description_file(file)):
        old.unlink(missing_ok=True)
    # Signed weights are smaller. A processor that needs unsigned ones converts them.
    command = [sys.executable, *ACTORQ, "export", str(folder), "--weight-encoding", "signed", "-o", str(file)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"actorq export failed with exit code {process.returncode}: {process.stderr.strip()}")


def _row(run: Run) -> str:
    confirmed, policy = run["confirmed"], run["policy"]
    return (
        f"{run['task']}, {run['preset']}: {confirmed['mean_return']:.1f} on {confirmed['episodes']} new episodes "
        f"({confirmed['scheme']}), {run['environment_steps']:,} steps, {run['wall_clock_s']:.0f} s, "
        f"{policy['kilobytes']:.0f} kB in {policy['file']}"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
