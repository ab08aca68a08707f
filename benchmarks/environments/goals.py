"""Trains in environments with goals and int8 actors, with hindsight and without it.

Two environments are coded (benchmarks.environments.goals_coded). The third is a robot arm of panda-gym, which is
installed into a separate folder with its simulator. A run is `actorq train` to a success rate, or to the end of its
budget of environment steps. Runs with hindsight and without it have the same budget. Then `actorq evaluate` plays the
last evaluated policy in new episodes. The target is a success rate of 0.95 in these episodes with hindsight.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorq.errors import UserError
from benchmarks.harness import Target, run_benchmark
from benchmarks.runs import ACTORQ

ROOT = Path(__file__).resolve().parents[2]
TARGET, EPISODES, SEEDS = 0.95, 200, 3
# Above the target, because new episodes differ.
_ENDS_AT, _EVALUATED = 1.0, 50
_COMPLETE = (0, 3)
# A line of `actorq evaluate`.
_SUCCESS = re.compile(r"^success in (\d+) of (\d+)", re.MULTILINE)
_CODED = "benchmarks.environments.goals_coded:"


@dataclass(frozen=True)
class Task:
    """An environment with an algorithm and a budget of environment steps.

    flags: settings of the run. requirements: packages of the environment, without their dependencies.
    """

    name: str
    environment: str
    algorithm: str
    environment_steps: int
    flags: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()


# Updates begin early, because a hundred episodes are enough with other goals. The other settings are those of
# Stable-Baselines3's zoo for FetchReach.
_REACH = (
    *("--replay.min-size", "1000", "--exploration.random-steps", "1000", "--evaluation.period-updates", "500"),
    *("--rate-limiter.samples-per-insert", "256", "--sac.learning-rate", "1e-3", "--sac.discount", "0.95"),
    *("--sac.hidden-sizes", "64,64"),
)
TASKS = (
    Task("12 bits", f"{_CODED}Bits-v0", "dqn", 30_000, ("--environment-args", "bits=12,max_episode_steps=12")),
    Task("point", f"{_CODED}Reach-v0", "sac", 10_000, _REACH),
    Task("PandaReach", "panda_gym:PandaReach-v3", "sac", 10_000, _REACH, ("panda-gym==3.0.7", "pybullet==3.2.7")),
)


def main() -> int:
    """Measure. Returns 1 with --check when a run with hindsight misses the target."""
    return run_benchmark(str(__doc__), _flags, _measure)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"runs of each kind (default: {SEEDS})")
    parser.add_argument("--only", action="append", metavar="TASK", help="only this task; repeatable")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    known = {task.name: task for task in TASKS}
    if unknown := sorted({*(arguments.only or ())} - known.keys()):
        raise UserError(f"--only: expected one of {', '.join(known)}, got {unknown[0]}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only or known:
            task, own = known[name], Path(folder) / name.replace(" ", "-")
            own.mkdir()
            environment = _installed(task, own / "modules")
            for seed in range(1, 1 + arguments.seeds):
                for copies in (4, 0):
                    row = _row(task, seed, copies, own / f"{seed}-{copies}", environment)
                    rows.append(row)
                    print(
                        f"{name}, seed {seed}, {copies} other goals: success {row['success_rate']:.3f} after "
                        f"{row['environment_steps']:,} environment steps and {row['wall_clock_s']:.0f} s",
                        flush=True,
                    )
    figures = {"runs": rows}
    return figures, targets(figures)


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """Whether each run with hindsight has the success rate. The name has the rate without hindsight."""
    rows = figures["runs"]
    without = {(row["task"], row["seed"]): row["success_rate"] for row in rows if not row["copies"]}
    return [
        Target(
            f"{row['task']}, {row['algorithm']}, seed {row['seed']}: success rate (without hindsight: "
            f"{without[row['task'], row['seed']]:.2f})",
            row["success_rate"],
            TARGET,
            at_most=False,
        )
        for row in rows
        if row["copies"]
    ]


def _installed(task: Task, modules: Path) -> dict[str, str]:
    """The environment variables of a task's processes, which find its packages."""
    if task.requirements:
        pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--target", str(modules))
        _python(modules.parent, os.environ, *pip, *task.requirements)
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(modules), str(ROOT)))}


def _row(task: Task, seed: int, copies: int, run: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """Train once, and play the policy in new episodes."""
    ends = ("--target-success", str(_ENDS_AT), "--max-environment-steps", str(task.environment_steps))
    flags = ("--environment", task.environment, "--algorithm", task.algorithm, "--scheme", "int8", *task.flags)
    more = ("--seed", str(seed), "--hindsight.copies", str(copies), "--evaluation.episodes", str(_EVALUATED))
    _python(run.parent, environment, *ACTORQ, "train", "--run-directory", str(run), *flags, *ends, *more)
    evaluate = ("evaluate", str(run), "--episodes", str(EPISODES), "--seed", "1000")
    evaluated = _python(run.parent, environment, *ACTORQ, *evaluate)
    found = _SUCCESS.search(evaluated)
    assert found is not None, evaluated
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {
        "task": task.name,
        "environment": task.environment,
        "requirements": task.requirements,
        "algorithm": task.algorithm,
        "flags": task.flags,
        "seed": seed,
        "copies": copies,
        "success_rate": int(found[1]) / int(found[2]),
        "episodes": int(found[2]),
        "reached": summary["solved"],
        "scheme": summary["evaluation"]["scheme"],
        "environment_steps": summary["environment_steps"],
        "updates": summary["updates"],
        "wall_clock_s": summary["wall_clock_s"],
        "evaluations": summary["evaluations"],
    }


def _python(folder: Path, environment: Mapping[str, str], *arguments: str, codes: Sequence[int] = _COMPLETE) -> str:
    """Standard output of a command of this interpreter. Raises UserError with its last line when it fails."""
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode not in codes:
        lines = [*ended.stdout.splitlines(), *ended.stderr.splitlines()] or [f"exit code {ended.returncode}"]
        raise UserError(f"{' '.join(arguments[:3])}: {lines[-1]}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
