"""Runs each system of peers.py on a task, and reads the run's results."""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.libraries.peer_runs.telling import told
from benchmarks.libraries.peers_environments import python_of
from benchmarks.libraries.peers_process import Outcome, run_tree
from benchmarks.runs import forget_incomplete

ACTORQ, STABLE_BASELINES, RLLIB = "actorq", "stable-baselines3", "rllib"
SYSTEMS = (ACTORQ, STABLE_BASELINES, RLLIB)
# Greedy episodes of an evaluation.
EPISODES = 20
_MODULES = {
    STABLE_BASELINES: "benchmarks.libraries.peer_runs.stable_baselines3",
    RLLIB: "benchmarks.libraries.peer_runs.rllib",
}
_ROOT = Path(__file__).parents[2]
# The target or the time limit ends a run, so there are always enough steps.
_STEPS = 100_000_000


@dataclass(frozen=True)
class Task:
    """A target return on an environment.

    target: mean return of `EPISODES` greedy episodes.
    period: environment steps between two evaluations of the other libraries. ActorQ has an evaluator process.
    limit_s: time limit of a run in seconds.
    threads: PyTorch threads of the other libraries (their default is one per core). DQN's networks are too small to
        gain from a second thread, which halves the speed when another program uses a core.
    preset: of ActorQ.
    """

    algorithm: str
    environment: str
    target: float
    period: int
    limit_s: float
    threads: int = 1
    preset: str = "standard"

    @property
    def name(self) -> str:
        """The name that the patterns of --tasks match."""
        return f"{self.algorithm}/{self.environment}"


@dataclass(frozen=True)
class Evaluation:
    """seconds: since the start of the command. took_s: how long learning stood still for the evaluation."""

    seconds: float
    environment_steps: int
    mean_return: float
    took_s: float = 0.0


def run_system(system: str, task: Task, seed: int, folder: Path, environments: Path | None) -> dict[str, Any]:
    """Run until the target or the time limit. Returns the results as `result` does."""
    folder.mkdir(parents=True, exist_ok=True)
    if system == ACTORQ:
        return _run_actorq(task, seed, folder)
    assert environments is not None
    return _run_peer(system, task, seed, folder, python_of(system, environments))


def result(task: Task, evaluations: Sequence[Evaluation], started_s: float | None, outcome: Outcome) -> dict[str, Any]:
    """The results of a run.

    reached: whether an evaluation reached the target. seconds: until that evaluation, else the time limit.
    start_s: seconds until learning began; None if it did not.
    steps_per_s: environment steps per second from then to the last counted evaluation; None without one.
    """
    evaluations = [one for one in evaluations if one.seconds < task.limit_s]
    first = next((number for number, one in enumerate(evaluations) if one.mean_return >= task.target), None)
    counted = evaluations if first is None else evaluations[: first + 1]
    last = counted[-1] if counted else Evaluation(task.limit_s, 0, 0.0)
    learning_s = last.seconds - (started_s or 0.0)
    return {
        "reached": first is not None,
        "seconds": round(task.limit_s if first is None else last.seconds, 2),
        "start_s": None if started_s is None else round(started_s, 2),
        "environment_steps": last.environment_steps,
        "steps_per_s": round(last.environment_steps / learning_s, 1) if counted else None,
        "evaluation_s": round(sum(one.took_s for one in counted), 2),
        "peak_memory_mb": round(outcome.peak_memory_mb, 1),
        "evaluations": [
            {"seconds": round(one.seconds, 2), "environment_steps": one.environment_steps, "return": one.mean_return}
            for one in counted
        ],
    }


def _run_peer(system: str, task: Task, seed: int, folder: Path, python: Path) -> dict[str, Any]:
    evaluations: list[Evaluation] = []
    started: list[float] = []

    def on_line(seconds: float, line: str) -> None:
        event = told(line)
        if event is not None and event["event"] == "started":
            started.append(seconds)
        elif event is not None:
            evaluations.append(Evaluation(seconds, event["environment_steps"], event["mean_return"], event["seconds"]))

    asked = {
        "task": task.name,
        "environment": task.environment,
        "seed": seed,
        "target": task.target,
        "episodes": EPISODES,
        "period": task.period,
    }
    errors = folder / "stderr.log"
    command = [str(python), "-m", _MODULES[system]]
    variables = {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": str(task.threads)}
    outcome = run_tree(command, json.dumps(asked), task.limit_s, errors, on_line, variables)
    found = result(task, evaluations, started[0] if started else None, outcome)
    if not found["reached"] and outcome.seconds < task.limit_s:
        raise SystemExit(f"{system} on {task.name} failed with exit code {outcome.returncode}: {_last_line(errors)}")
    return found


def actorq_command(task: Task, seed: int, folder: Path) -> list[str]:
    """The README's command, with the task's preset, and the target and evaluations of all systems."""
    return [
        *(sys.executable, "-m", "actorq_apps.cli.main", "train", "--run-directory", str(folder)),
        *("--algorithm", task.algorithm, "--environment", task.environment, "--scheme", "int8", "--seed", str(seed)),
        *("--preset", task.preset),
        *(f"--target-return={task.target}", "--evaluation.episodes", str(EPISODES)),
        *("--max-environment-steps", str(_STEPS)),
    ]


def _run_actorq(task: Task, seed: int, folder: Path) -> dict[str, Any]:
    run, errors = folder / "run", folder / "stderr.log"
    forget_incomplete(run)
    outcome = run_tree(actorq_command(task, seed, run), "", task.limit_s, errors, lambda *_: None)
    summary_file = run / "summary.json"
    summary = json.loads(summary_file.read_text(encoding="utf-8")) if summary_file.exists() else {}
    # The run's clock starts with its processes. Adding the command's start and end overstates the time at most.
    before_s = max(0.0, outcome.seconds - summary["wall_clock_s"]) if summary and not outcome.timed_out else 0.0
    started_s = summary.get("first_transition_s")
    found = result(
        task, actorq_evaluations(run, before_s), None if started_s is None else started_s + before_s, outcome
    )
    if not found["reached"] and outcome.seconds < task.limit_s:
        raise SystemExit(f"actorq on {task.name} failed with exit code {outcome.returncode}: {_last_line(errors)}")
    return found


def actorq_evaluations(folder: Path, before_s: float) -> list[Evaluation]:
    """All evaluations in the folder of a run of `actorq train`."""
    file = folder / "evaluations.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    entries = [json.loads(line) for line in lines]
    return [
        Evaluation(
            entry["wall_clock_s"] + before_s,
            entry["environment_steps"],
            statistics.fmean(entry["evaluation"]["returns"]),
        )
        for entry in entries
    ]


def _last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"
