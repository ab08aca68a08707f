"""How many environment steps do recordings save, and are our offline algorithms as good as d3rlpy's?

First, our own runs of SAC train a medium policy and an expert, which record data sets. Then:

1. SAC trains until it reaches the target, with and without 10,000 transitions of the medium policy (`--dataset`, RLPD).
   Both have as many updates for each environment step.
2. TD3+BC and IQL train without actors on two data sets. d3rlpy trains the same algorithms on the same transitions, with
   as many updates and its own Python (`--peer-python`, with d3rlpy and the environment installed). Variants with 90% of
   the weights masked have no peer. Policies are evaluated in int8.

Targets: half of the steps in the median of the seeds; and the 95% interval of the difference to d3rlpy lies above -5%
of its return over random actions.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from actor_service.environments import make_environments
from benchmarks.harness import ONE_SEED, Meaning, Target, run_benchmark, without_verdict
from benchmarks.policy.bits.evaluation import random_return
from benchmarks.runs import add_task_flag, cached, chosen, confirm, forget_incomplete, refusal, train
from benchmarks.statistics import estimate
from benchmarks.training.offline.recording import imported, record, teachers
from benchmarks.training.offline.tasks import MIXES, TASKS, Task

Run = dict[str, Any]

_EPISODES, _RANDOM_EPISODES, _BATCH = 20, 20, 256
_ALGORITHMS = ("td3bc", "iql")
_SPARSE = ("--sparsity.method", "rigl", "--sparsity.actor", "0.9", "--sparsity.critic", "0.9")
_VARIANTS: Mapping[str, tuple[str, ...]] = {"dense": (), "sparse": _SPARSE}
_PEER = "d3rlpy"
_LOWEST, _SHARE = -0.05, 0.5
_ROOT = Path(__file__).parents[3]

MEANINGS = (
    Meaning(
        r"(?P<task>.+): steps with recordings, as a share of those without",
        "Do 10,000 recorded transitions halve the steps to the target?",
        "Recordings save fewer steps here.",
        unit="%",
        scale=100,
        case="{task}",
    ),
    Meaning(
        r"(?P<case>.+): lower end of the difference to d3rlpy",
        "Does the algorithm return as much as d3rlpy's?",
        "The algorithm may return less than d3rlpy's on these data.",
        unit="%",
        scale=100,
        case="{case}",
    ),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser, "TASK")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 1 to N (default: 5)")
    parser.add_argument("--transitions", type=int, default=10_000, metavar="N", help="recorded for RLPD")
    parser.add_argument(
        "--offline-transitions", type=int, default=100_000, metavar="N", help="recorded for each data set"
    )
    parser.add_argument("--updates", type=int, metavar="N", help="of an offline run (default: the task's own)")
    parser.add_argument("--parts", nargs="+", choices=("rlpd", "offline"), default=["rlpd", "offline"], metavar="PART")
    parser.add_argument("--peer-python", type=Path, metavar="PYTHON", help="a Python with d3rlpy (default: no peer)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    runs: list[Run] = []
    tasks = chosen(TASKS, arguments.task)
    with tempfile.TemporaryDirectory() as nowhere:
        directory = arguments.directory or Path(nowhere)
        for task in tasks:
            for run in _runs(task, arguments, directory):
                print(_line(run), flush=True)
                runs.append(run)
    figures = {"runs": runs, "random": {task.name: _random(task) for task in tasks}}
    return figures, without_verdict(targets(figures), refusal(runs) or (ONE_SEED if arguments.seeds == 1 else ""))


def _runs(task: Task, arguments: argparse.Namespace, directory: Path) -> Iterator[Run]:
    recorded = directory / "recorded"
    recorded.mkdir(parents=True, exist_ok=True)
    policies = teachers(task, 1000, directory)
    if "rlpd" in arguments.parts:
        file = recorded / f"{task.name}-rlpd-{arguments.transitions}.npz"
        record(task, policies, "medium", arguments.transitions, 1, file)
        dataset = imported(task, file)
        for seed in range(1, arguments.seeds + 1):
            for name, flags in (("without", ()), ("with", ("--dataset", str(dataset)))):
                yield _online(task, name, seed, directory, flags)
    if "offline" not in arguments.parts:
        return
    updates = arguments.updates or task.updates
    for mix in MIXES:
        file = recorded / f"{task.name}-{mix}-{arguments.offline_transitions}.npz"
        record(task, policies, mix, arguments.offline_transitions, 2, file)
        dataset = imported(task, file)
        for seed in range(1, arguments.seeds + 1):
            for algorithm in _ALGORITHMS:
                for variant in _VARIANTS:
                    yield _offline(task, algorithm, variant, mix, seed, updates, dataset, directory)
                if arguments.peer_python is not None:
                    yield _of_peer(arguments.peer_python, task, algorithm, mix, seed, updates, file, directory)


def _online(task: Task, name: str, seed: int, directory: Path, flags: Sequence[str]) -> Run:
    folder = directory / f"{task.name}-{name}-{seed}"
    common = [
        *("--environment", task.environment, "--algorithm", "sac", "--seed", str(seed)),
        *("--target-return", str(task.target), "--max-environment-steps", str(task.steps), *task.settings),
    ]
    made = train(folder, [*common, *flags])
    kept = {each: made[each] for each in ("solved", "environment_steps", "updates", "wall_clock_s", "conditions")}
    return {"task": task.name, "part": "rlpd", "side": name, "seed": seed, **kept}


def _offline(
    task: Task, algorithm: str, variant: str, mix: str, seed: int, updates: int, dataset: Path, directory: Path
) -> Run:
    folder = directory / f"{task.name}-{mix}-{algorithm}-{variant}-{seed}"

    def make() -> Run:
        forget_incomplete(folder)
        flags = [
            *("--environment", task.environment, "--algorithm", algorithm, "--seed", str(seed), "--offline"),
            *("--dataset", str(dataset), "--max-updates", str(updates), "--target-return", "1e9"),
            *(f"--{algorithm}.batch-size", str(_BATCH), *_VARIANTS[variant], *task.settings),
            # A hundredth of the updates between two changes of masks.
            *("--sparsity.period-updates", str(max(10, updates // 100))),
        ]
        made = train(folder, flags)
        confirmed = confirm(folder, _EPISODES)
        speed = {name: made[name] for name in ("updates", "updates_per_s")}
        return {"mean_return": confirmed.mean_return, "scheme": confirmed.scheme, **speed}

    settings = {**asdict(task), "algorithm": algorithm, "variant": variant, "mix": mix, "updates": updates}
    made = cached(folder.with_suffix(".json"), settings, make)
    named = {"task": task.name, "part": "offline", "side": f"{algorithm} {variant}", "mix": mix, "seed": seed}
    return {**made, **named}


def _of_peer(
    python: Path, task: Task, algorithm: str, mix: str, seed: int, updates: int, file: Path, directory: Path
) -> Run:
    folder = directory / f"{task.name}-{mix}-{algorithm}-{_PEER}-{seed}"
    asked = {
        **{"algorithm": algorithm, "environment": task.environment, "file": str(file.resolve()), "seed": seed},
        **{"updates": updates, "batch_size": _BATCH, "episodes": _EPISODES},
    }

    def make() -> Run:
        variables = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
        command = [str(python), "-m", "benchmarks.training.offline.peer"]
        process = subprocess.run(
            command, input=json.dumps(asked), env=variables, capture_output=True, text=True, check=False
        )
        if process.returncode:
            raise SystemExit(f"{_PEER} has failed: {process.stderr.strip().splitlines()[-1:]}")
        found: Run = json.loads(process.stdout.strip().splitlines()[-1])
        return found

    made = cached(folder.with_suffix(".json"), {**asked, "file": file.name}, make)
    named = {"task": task.name, "part": "offline", "side": f"{algorithm} {_PEER}", "mix": mix, "seed": seed}
    return {**made, **named}


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """The targets of both parts, as far as they were measured."""
    found = []
    runs: Sequence[Run] = figures["runs"]
    for task in dict.fromkeys(run["task"] for run in runs):
        steps = {
            side: [run["environment_steps"] for run in runs if (run["task"], run["side"]) == (task, side)]
            for side in ("with", "without")
        }
        if all(steps.values()):
            share = statistics.median(steps["with"]) / statistics.median(steps["without"])
            found.append(Target(f"{task}: steps with recordings, as a share of those without", share, _SHARE))
        for mix in MIXES:
            for algorithm in _ALGORITHMS:
                found += _compared(runs, figures["random"][task], task, mix, algorithm)
    return found


def _compared(runs: Sequence[Run], random: float, task: str, mix: str, algorithm: str) -> Iterator[Target]:
    """The target of an algorithm on a data set; none without a peer."""
    returns = {
        side: [
            run["mean_return"]
            for run in runs
            if (run["task"], run.get("mix"), run["side"]) == (task, mix, f"{algorithm} {side}")
        ]
        for side in ("dense", _PEER)
    }
    if not all(returns.values()):
        return
    gained = statistics.fmean(returns[_PEER]) - random

    def difference(ours: Any, theirs: Any) -> Any:
        return (np.mean(ours[0], axis=-1) - np.mean(theirs[0], axis=-1)) / abs(gained)

    low = float(estimate(difference, {task: returns["dense"]}, {task: returns[_PEER]}).low)
    name = f"{task} {mix} {algorithm}: lower end of the difference to d3rlpy"
    refused = "" if gained > 0 else "a peer that is no better than random actions gives no verdict"
    yield Target(name, low, _LOWEST, at_most=False, refused=refused)


def _random(task: Task) -> float:
    with closing(make_environments(task.environment, _RANDOM_EPISODES)) as environments:
        return random_return(environments)


def _line(run: Run) -> str:
    head = f"{run['task']:10} {run['side']:14} {run.get('mix', ''):8} seed {run['seed']}"
    if run["part"] == "rlpd":
        solved = "" if run["solved"] else " NOT solved"
        return f"{head}: {run['environment_steps']:,} steps{solved}, {run['updates']:,} updates"
    return f"{head}: return {run['mean_return']:,.1f}, {run['updates_per_s']:,.0f} updates/s"


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
