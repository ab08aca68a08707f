"""Runs each system of benchmarks.libraries.peers on a task, and reads the run's results."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from actorq.config.presets import AUTO
from benchmarks.libraries.peer_runs import rllib, stable_baselines3_settings
from benchmarks.libraries.peer_runs.telling import told
from benchmarks.libraries.peers.actorq import run_actorq
from benchmarks.libraries.peers.environments import pins, python_of
from benchmarks.libraries.peers.result import Evaluation, has_reached, measured, require_end, result
from benchmarks.libraries.peers.tasks import Task

ACTORQ, STABLE_BASELINES, RLLIB = "actorq", "stable-baselines3", "rllib"
# ActorQ with its small normalized SAC, on the tasks of SAC that measure the machine first.
ACTORQ_XQC = "actorq-xqc"
OURS = (ACTORQ, ACTORQ_XQC)
# Stable-Baselines3 with ActorQ's updates per step, and with returns of one and of three steps.
ONE_STEP, MULTI_STEP = "stable-baselines3-n1", "stable-baselines3-n3"
WITH_OUR_UPDATES = (ONE_STEP, MULTI_STEP)
CROSSQ = "crossq"
# Stable-Baselines3 in JAX, and its CrossQ.
SBX, SBX_CROSSQ = "sbx", "sbx-crossq"
# PPO with memory of sb3-contrib, on the tasks that need memory.
RECURRENT = "recurrent-ppo"
SYSTEMS = (ACTORQ, ACTORQ_XQC, STABLE_BASELINES, *WITH_OUR_UPDATES, CROSSQ, SBX, SBX_CROSSQ, RECURRENT, RLLIB)
_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Library:
    """How another library runs: its module, the name of its environment, and the tasks that it has settings for."""

    module: str
    environment: str
    tasks: Collection[str]


_STABLE_BASELINES_RUN = "benchmarks.libraries.peer_runs.stable_baselines3"
LIBRARIES = {
    **{
        system: Library(_STABLE_BASELINES_RUN, SBX if system in (SBX, SBX_CROSSQ) else STABLE_BASELINES, tasks)
        for system, tasks in stable_baselines3_settings.SETTINGS.items()
    },
    RLLIB: Library("benchmarks.libraries.peer_runs.rllib", RLLIB, rllib.SETTINGS),
}


def has_settings(system: str, task: Task) -> bool:
    """Whether a system has settings for a task. ActorQ has presets for all tasks."""
    if system == ACTORQ_XQC:
        return task.algorithm == "sac" and task.preset == AUTO
    return system == ACTORQ or task.name in LIBRARIES[system].tasks


def settings_of(system: str, task: Task, steps_per_update: int | None) -> dict[str, Any]:
    """What a stored run must have been made with."""
    found: dict[str, Any] = asdict(task)
    if system not in OURS:
        found["pins"] = pins(LIBRARIES[system].environment)
    if system in WITH_OUR_UPDATES:
        found["steps_per_update"] = steps_per_update
    return found


def run_system(
    system: str, task: Task, seed: int, folder: Path, environments: Path | None, steps_per_update: int | None = None
) -> dict[str, Any]:
    """Run until the target is reached or the time limit is over. Returns the results as `result` does.

    steps_per_update: of WITH_OUR_UPDATES.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if system in OURS:
        return run_actorq(task if system == ACTORQ else replace(task, algorithm="xqc"), seed, folder)
    assert environments is not None
    python = python_of(LIBRARIES[system].environment, environments)
    return _run_peer(system, task, seed, folder, python, steps_per_update)


def _run_peer(
    system: str, task: Task, seed: int, folder: Path, python: Path, steps_per_update: int | None
) -> dict[str, Any]:
    asked = asked_of(task, seed)
    library = LIBRARIES[system]
    if library.module == _STABLE_BASELINES_RUN:
        asked["system"] = system
    if system in WITH_OUR_UPDATES:
        asked["steps_per_update"] = steps_per_update
    return run_peer(system, task, folder, (str(python), "-m", library.module), asked)


def asked_of(task: Task, seed: int) -> dict[str, Any]:
    """What each library's run must know."""
    return {
        "task": task.name,
        "environment": task.environment,
        "seed": seed,
        "episodes": task.episodes,
        "period": task.period,
        "share": task.share,
    }


def run_peer(system: str, task: Task, folder: Path, command: Sequence[str], asked: dict[str, Any]) -> dict[str, Any]:
    """Run a command of benchmarks.libraries.peer_runs, with `asked` as JSON on its stdin. Returns as `run_system`."""
    evaluations: list[Evaluation] = []
    started: list[float] = []

    def on_line(seconds: float, line: str) -> bool:
        event = told(line)
        if event is not None and event["event"] == "started":
            started.append(seconds)
        elif event is not None:
            evaluations.append(Evaluation(seconds, event["environment_steps"], event["mean_return"], event["seconds"]))
        return has_reached(evaluations, task)

    # The import of dm_control searches for a display otherwise.
    variables = {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": str(task.threads), "MUJOCO_GL": "disabled"}
    outcome, energy = measured(command, json.dumps(asked), task, folder, on_line, variables)
    found = result(task, evaluations, started[0] if started else None, outcome, energy)
    require_end(found, system, task, folder, outcome)
    return found
