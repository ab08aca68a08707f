"""Compares runs with and without recorded transitions, and our offline algorithms with those of d3rlpy.

    python -m benchmarks.training.offline --task upright --parts rlpd --directory runs/recordings \\
        --json benchmarks/results/recordings.json
    python -m benchmarks.training.offline --task pendulum --parts offline --environments peers \\
        --directory runs/offline --json benchmarks/results/stored_data.json
    python -m benchmarks.training.offline --task pendulum --parts equal --environments peers \\
        --directory runs/offline --json benchmarks/results/equal_updates.json

First, our own runs of SAC train a medium policy and an expert, which record data sets. Then:

1. rlpd: SAC trains until it reaches the target, with and without 10,000 transitions of the medium policy (`--dataset`,
   RLPD). Both have as many updates for each environment step. A third side has the critics of RLPD, but no recordings.
   A run that does not reach the target counts with all its steps.
2. offline: TD3+BC and IQL train without actors on two data sets. d3rlpy trains the same algorithms on the same
   transitions, with the same settings, as many updates and one thread. Variants with 90% of the weights masked have no
   peer. The last policy of each of our runs plays new episodes in int8 and in FP32, and d3rlpy's from the same states.
3. equal: Both libraries make 50 updates from the same weights with the same batches.

d3rlpy has a virtual environment in --environments (benchmarks/libraries/peer_runs has its pinned versions). Without the
flag there are no runs of d3rlpy. Runs are kept in --directory, so that a measurement may continue later. Two
processes may each run one data set (--mixes). A third one without this flag then reads all runs.

Targets are older than the runs: half of the steps in the median of the seeds; the 95% interval of the difference to
d3rlpy lies above -5% of its gain over random actions; at least d3rlpy's updates per second; and equal updates end
within 0.1% of the distance that they move the weights.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from actor_service.environments import make_environments
from benchmarks.harness import Target, run_benchmark, without_verdict
from benchmarks.libraries.peers.environments import pins, python_of
from benchmarks.policy.bits.evaluation import random_return
from benchmarks.runs import (
    CONFIRMATION_SEED,
    add_task_flag,
    cached,
    chosen,
    confirm,
    forget_incomplete,
    refusal,
    train,
    with_project,
)
from benchmarks.training.offline.recording import imported, record, teachers
from benchmarks.training.offline.same_updates import compare
from benchmarks.training.offline.targets import (
    ALGORITHMS,
    D3RLPY,
    DENSE,
    MEANINGS,
    NORMALIZED,
    SCHEMES,
    SPARSE,
    WITH,
    WITHOUT,
    Run,
    targets,
)
from benchmarks.training.offline.tasks import MIXES, TASKS, Task

__all__ = ["MEANINGS", "targets"]

PARTS = RLPD, OFFLINE, EQUAL = "rlpd", "offline", "equal"
_EPISODES, _RANDOM_EPISODES, _BATCH = 20, 20, 256
_SPARSE = ("--sparsity.method", "rigl", "--sparsity.actor", "0.9", "--sparsity.critic", "0.9")
_VARIANTS: Mapping[str, tuple[str, ...]] = {DENSE: (), SPARSE: _SPARSE}
_TEACHER_SEED = 1_000
_ROOT = Path(__file__).parents[3]


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flag(parser, "TASK")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 1 to N (default: 5)")
    parser.add_argument("--transitions", type=int, default=10_000, metavar="N", help="recorded for RLPD")
    parser.add_argument(
        "--offline-transitions", type=int, default=50_000, metavar="N", help="recorded for each data set"
    )
    parser.add_argument("--updates", type=int, metavar="N", help="of an offline run (default: the task's own)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help="default: all")
    parser.add_argument("--mixes", nargs="+", choices=MIXES, default=tuple(MIXES), metavar="MIX", help="default: all")
    parser.add_argument("--environments", type=Path, metavar="DIR", help="folder for d3rlpy (default: without d3rlpy)")
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
        same = [found for task in tasks for found in _same_updates(task, arguments, directory)]
    figures = {"runs": runs, "same_updates": same, "random": {task.name: _random(task) for task in tasks}}
    return figures, without_verdict(targets(figures), refusal(runs) if runs else "")


def _runs(task: Task, arguments: argparse.Namespace, directory: Path) -> Iterator[Run]:
    if RLPD in arguments.parts:
        file = _recorded(task, "medium", arguments.transitions, 1, directory)
        dataset = imported(task, file)
        for seed in range(1, arguments.seeds + 1):
            sides = ((WITHOUT, ()), (NORMALIZED, ("--sac.layer-norm",)), (WITH, ("--dataset", str(dataset))))
            for name, flags in sides:
                yield _online(task, name, seed, directory, flags)
    if OFFLINE not in arguments.parts:
        return
    python, updates = _python(arguments), arguments.updates or task.updates
    for mix in arguments.mixes:
        file = _recorded(task, mix, arguments.offline_transitions, 2, directory)
        dataset = imported(task, file)
        for seed in range(1, arguments.seeds + 1):
            for algorithm in ALGORITHMS:
                for variant in _VARIANTS:
                    yield _offline(task, algorithm, variant, mix, seed, updates, dataset, directory)
                if python is not None:
                    yield _of_peer(python, task, algorithm, mix, seed, updates, file, directory)


def _recorded(task: Task, mix: str, transitions: int, seed: int, directory: Path) -> Path:
    """The file with a mix of recorded transitions, which is made if it does not exist."""
    file = directory / "recorded" / f"{task.name}-{mix}-{transitions}.npz"
    file.parent.mkdir(parents=True, exist_ok=True)
    record(task, teachers(task, _TEACHER_SEED, directory), mix, transitions, seed, file)
    return file


def _python(arguments: argparse.Namespace) -> Path | None:
    """d3rlpy's interpreter; None for runs without it."""
    return python_of(D3RLPY, arguments.environments.resolve()) if arguments.environments else None


def _online(task: Task, name: str, seed: int, directory: Path, flags: Sequence[str]) -> Run:
    folder = directory / f"{task.name}-{name.replace(', ', '-').replace(' ', '-')}-{seed}"
    common = [
        *("--environment", task.environment, "--algorithm", "sac", "--seed", str(seed)),
        *("--target-return", str(task.target), "--max-environment-steps", str(task.steps), *task.settings),
    ]
    made = train(folder, [*common, *flags], with_project())
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
            *(("--iql.inverse-temperature", str(task.inverse_temperature)) if algorithm == "iql" else ()),
        ]
        made = train(folder, flags, with_project())
        returns = {scheme: confirm(folder, _EPISODES, scheme).mean_return for scheme in SCHEMES}
        return {"returns": returns, "updates": made["updates"], "updates_per_s": made["updates_per_s"]}

    settings = {**asdict(task), "algorithm": algorithm, "variant": variant, "mix": mix, "updates": updates}
    made = cached(folder.with_suffix(".json"), settings, make)
    named = {"task": task.name, "part": "offline", "side": f"{algorithm} {variant}", "mix": mix, "seed": seed}
    return {**made, **named}


def _of_peer(
    python: Path, task: Task, algorithm: str, mix: str, seed: int, updates: int, file: Path, directory: Path
) -> Run:
    folder = directory / f"{task.name}-{mix}-{algorithm}-{D3RLPY}-{seed}"
    asked = {
        **{"function": "learn", "algorithm": algorithm, "environment": task.environment, "file": str(file.resolve())},
        **{"seed": seed, "updates": updates, "batch_size": _BATCH, "start": CONFIRMATION_SEED, "episodes": _EPISODES},
        "inverse_temperature": task.inverse_temperature,
    }
    settings = {**asked, "file": file.name, "pins": pins(D3RLPY)}
    made = cached(folder.with_suffix(".json"), settings, lambda: _ask(python, asked))
    named = {"task": task.name, "part": "offline", "side": f"{algorithm} {D3RLPY}", "mix": mix, "seed": seed}
    return {**made, **named}


def _ask(python: Path, asked: Mapping[str, Any]) -> Run:
    """The answer of d3rlpy's process."""
    variables = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
    command = [str(python), "-m", "benchmarks.training.offline.peer"]
    process = subprocess.run(
        command, input=json.dumps(asked), env=variables, capture_output=True, text=True, check=False
    )
    if process.returncode:
        last = process.stderr.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise SystemExit(f"{D3RLPY} has failed: {last[0]}")
    found: Run = json.loads(process.stdout.strip().splitlines()[-1])
    return found


def _same_updates(task: Task, arguments: argparse.Namespace, directory: Path) -> Iterator[Run]:
    """The distances of equal updates to d3rlpy's, if they are asked for."""
    python = _python(arguments)
    if EQUAL not in arguments.parts or python is None:
        return
    for mix in arguments.mixes:
        file = _recorded(task, mix, arguments.offline_transitions, 2, directory)
        for algorithm in ALGORITHMS:
            for found in compare(algorithm, task.environment, file, partial(_ask, python)):
                print(f"{task.name:10} {mix:8} {_sentence(found)}", flush=True)
                yield {"task": task.name, "mix": mix, **found}


def _sentence(found: Run) -> str:
    return (
        f"{found['algorithm']} {found['network']}: {found['updates']} equal updates move the weights by "
        f"{found['moved']:.3f} of their norm; ours and d3rlpy's differ by {found['distance']:.1e} of that"
    )


def _random(task: Task) -> float:
    with closing(make_environments(task.environment, _RANDOM_EPISODES)) as environments:
        return random_return(environments)


def _line(run: Run) -> str:
    head = f"{run['task']:10} {run['side']:14} {run.get('mix', ''):8} seed {run['seed']}"
    if run["part"] == "rlpd":
        solved = "" if run["solved"] else " NOT solved"
        return f"{head}: {run['environment_steps']:,} steps{solved}, {run['updates']:,} updates"
    returns = ", ".join(f"{value:,.1f} in {scheme}" for scheme, value in run["returns"].items())
    return f"{head}: return {returns}, {run['updates_per_s']:,.0f} updates/s"


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
