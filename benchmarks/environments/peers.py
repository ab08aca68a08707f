"""Seconds to a target with images and numbers, with masks and with goals: ActorQ and Stable-Baselines3.

Four tasks: a picture and a vector (PPO; MultiInputPolicy), masked actions (PPO; sb3-contrib's MaskablePPO), and two
with hindsight (HerReplayBuffer): a point that must reach another (SAC), and bit flipping (DQN). The environments are
coded (benchmarks.environments.coded and goals_coded). ActorQ runs `actorq train` with int8 actors. The other library
has a virtual environment in --environments. Both have the same settings: those of benchmarks/environments/peer_run.py.

A run ends when 20 greedy episodes reach the target, or at its time limit. Seconds are from the start of the command to
the end of that evaluation; imports count. The difference of scores is that of the evaluations that ended the runs.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.libraries.peer_runs.telling import told
from benchmarks.libraries.peers.environments import python_of
from benchmarks.libraries.peers.process import run_tree
from benchmarks.runs import ACTORQ

ROOT = Path(__file__).resolve().parents[2]
OURS, THEIRS = "actorq", "stable-baselines3"
EPISODES, SEEDS, LIMIT_S = 20, 5, 90.0
# Share of the range of scores by which ActorQ's score may be lower, and Student's t for 95% by the number of seeds.
_MARGIN, _STUDENT = 0.05, {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}


@dataclass(frozen=True)
class Task:
    """An environment with an algorithm of both libraries.

    kind: as in peer_run; those with goals begin with "goals". target, most: the score that ends a run, and the highest
    one. period: environment steps between two evaluations of the other library.
    """

    kind: str
    environment: str
    arguments: Mapping[str, Any]
    algorithm: str
    target: float
    most: float
    period: int


# The settings of peer_run.py: those of its zoo for CartPole-v1, whose episodes are as short, and of hindsight.
# Evaluations come as often as the other library's.
_PPO = (
    *("--environments-per-actor", "8", "--actor.segment-length", "32", "--ppo.rollout-size", "256"),
    *("--ppo.batch-size", "256", "--ppo.epochs", "20", "--ppo.discount", "0.98", "--ppo.gae-lambda", "0.8"),
    *("--ppo.learning-rate", "1e-3", "--ppo.learning-rate-end", "0", "--ppo.clip-end", "0"),
    *("--evaluation.period-updates", "160", "--max-environment-steps", "100000"),
)
_DQN = (
    *("--dqn.learning-rate", "1e-3", "--dqn.batch-size", "128", "--dqn.hidden-sizes", "256,256"),
    *("--dqn.n-step", "1", "--dqn.target-update-period", "20", "--replay.min-size", "500"),
    # The other library begins with random actions, and its share of them falls over 10,000 steps.
    *("--rate-limiter.samples-per-insert", "128", "--exploration.random-steps", "2000"),
    *("--evaluation.period-updates", "250", "--max-environment-steps", "100000000"),
)
_SAC = (
    *("--sac.learning-rate", "1e-3", "--sac.batch-size", "256", "--sac.hidden-sizes", "64,64"),
    *("--sac.discount", "0.95", "--replay.min-size", "1000", "--exploration.random-steps", "1000"),
    *("--rate-limiter.samples-per-insert", "256"),
    *("--evaluation.period-updates", "1000", "--max-environment-steps", "100000000"),
)
SETTINGS: Mapping[str, tuple[str, ...]] = {"ppo": _PPO, "dqn": _DQN, "sac": _SAC}

_CODED, _GOALS = "benchmarks.environments.coded:Parts-v0", "benchmarks.environments.goals_coded:"
TASKS = (
    Task("arrays", _CODED, {"kind": "image and vector", "pixels": 36}, "ppo", 18.0, 20.0, 2_048),
    Task("mask", _CODED, {"kind": "mask of each part"}, "ppo", 18.0, 20.0, 2_048),
    Task("goals, point", f"{_GOALS}Reach-v0", {}, "sac", 0.95, 1.0, 1_000),
    Task("goals, bits", f"{_GOALS}Bits-v0", {"bits": 10, "max_episode_steps": 10}, "dqn", 0.95, 1.0, 1_000),
)


def main() -> int:
    """Measure. Returns 1 with --check when ActorQ is slower, or its scores are lower."""
    return run_benchmark(str(__doc__), _flags, _measure)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--environments", type=Path, required=True, metavar="DIR", help="folder for the other library")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"seeds 1 to N (default: {SEEDS})")
    parser.add_argument("--only", action="append", choices=[task.kind for task in TASKS], help="only this task")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    python = python_of(THEIRS, arguments.environments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, 1 + arguments.seeds):
            for task in TASKS:
                if arguments.only and task.kind not in arguments.only:
                    continue
                # In turns, so that a slower machine affects both.
                for system in (OURS, THEIRS) if seed % 2 else (THEIRS, OURS):
                    own = Path(folder) / f"{task.kind.replace(', ', '-')}-{system}-{seed}"
                    own.mkdir()
                    found = _ours(task, seed, own) if system == OURS else _theirs(task, seed, own, python)
                    rows.append({"task": task.kind, "system": system, "seed": seed, **found})
                    print(f"{task.kind}, seed {seed}, {system}: {found['score']:.3g} after {found['seconds']:.1f} s")
                    sys.stdout.flush()
    figures = {"episodes": EPISODES, "limit_s": LIMIT_S, "runs": rows}
    return figures, targets(figures)


MEANINGS = (
    Meaning(
        r"(?P<task>.+): median seconds of (?P<library>.+) over those of ActorQ",
        "How many times sooner does ActorQ reach the target than Stable-Baselines3?",
        "Stable-Baselines3 is faster on tasks of a few seconds, because ActorQ's services need time to start.",
        unit=" times",
        case="{task}",
    ),
)


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """For each task: the ratio of median seconds, and the lower end of the interval of the difference of scores."""
    found = []
    for task in TASKS:
        by_system = {
            system: [row for row in figures["runs"] if (row["task"], row["system"]) == (task.kind, system)]
            for system in (OURS, THEIRS)
        }
        if not all(by_system.values()):
            continue
        ours, theirs = ([row["seconds"] for row in rows] for rows in by_system.values())
        ratio = statistics.median(theirs) / statistics.median(ours)
        name = f"{task.kind}: median seconds of {THEIRS} over those of ActorQ"
        found.append(Target(name, round(ratio, 2), 1.0, at_most=False))
        low = _lower_end(*([row["score"] for row in rows] for rows in by_system.values())) / task.most
        name = f"{task.kind}: lower end of the difference of scores, in shares of the range"
        found.append(Target(name, round(low, 3), -_MARGIN, at_most=False))
    return found


def _lower_end(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The lower end of the 95% interval of the mean difference over seeds."""
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    if len(differences) < 2:
        return differences[0]
    student = _STUDENT[min(len(differences), max(_STUDENT))]
    return statistics.fmean(differences) - student * statistics.stdev(differences) / math.sqrt(len(differences))


def _ours(task: Task, seed: int, folder: Path) -> dict[str, Any]:
    has_goals = task.kind.startswith("goals")
    goal = "--target-success" if has_goals else "--target-return"
    arguments = json.dumps(task.arguments)
    command = [
        *(sys.executable, *ACTORQ, "train", "--run-directory", str(folder / "run"), "--algorithm", task.algorithm),
        *("--environment", task.environment, "--environment-args", arguments, "--scheme", "int8"),
        *("--seed", str(seed), goal, str(task.target), "--evaluation.episodes", str(EPISODES)),
        *("--max-seconds", str(LIMIT_S), *SETTINGS[task.algorithm]),
    ]
    outcome = run_tree(command, "", 2 * LIMIT_S, folder / "log", lambda *_: None, {"PYTHONPATH": str(ROOT)})
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    evaluation = summary["evaluation"]
    score = evaluation["success_rate" if has_goals else "mean_return"]
    seconds = summary["wall_clock_s"] if summary["solved"] else LIMIT_S
    # The seconds before the run's clock count too.
    before = max(0.0, outcome.seconds - summary["wall_clock_s"]) if summary["solved"] else 0.0
    return {
        "score": score,
        "seconds": round(min(LIMIT_S, seconds + before), 2),
        "environment_steps": summary["environment_steps"],
        "scheme": evaluation["scheme"],
    }


def _theirs(task: Task, seed: int, folder: Path, python: Path) -> dict[str, Any]:
    evaluations: list[tuple[float, Mapping[str, Any]]] = []

    def on_line(seconds: float, line: str) -> None:
        event = told(line)
        if event is not None and event["event"] == "evaluated":
            evaluations.append((seconds, event))

    asked = {
        **{"environment": task.environment, "arguments": dict(task.arguments), "kind": task.kind, "seed": seed},
        **{"target": task.target, "episodes": EPISODES, "period": task.period},
    }
    command = [str(python), "-m", "benchmarks.environments.peer_run"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    errors = folder / "log"
    run_tree(command, json.dumps(asked), LIMIT_S, errors, on_line, variables)
    if not evaluations:
        lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise SystemExit(f"{THEIRS} on {task.kind} failed: {lines[-1] if lines else 'no message'}")
    seconds, last = evaluations[-1]
    reached = last["mean_return"] >= task.target
    return {
        "score": last["mean_return"],
        "seconds": round(seconds if reached else LIMIT_S, 2),
        "environment_steps": last["environment_steps"],
    }


if __name__ == "__main__":
    sys.exit(main())
