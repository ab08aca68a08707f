"""Runs each system on a task with several agents, and reads the run's results."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.libraries.peers.actorq import run_actorq
from benchmarks.libraries.peers.environments import pins, python_of
from benchmarks.libraries.peers.systems import asked_of, run_peer
from benchmarks.runs import confirm_agents, with_project
from benchmarks.training.agents.tasks import AgentsTask

ACTORQ, JOINT, STABLE_BASELINES, RLLIB = "actorq", "actorq-joint", "stable-baselines3", "rllib"
OURS, OTHERS = (ACTORQ, JOINT), (STABLE_BASELINES, RLLIB)
SYSTEMS = (*OURS, *OTHERS)
# New episodes of each run's last policy.
CONFIRMED = 100
# By system: the module of its runs, and the name of its virtual environment.
_PEERS = {
    STABLE_BASELINES: ("benchmarks.libraries.peer_runs.stable_baselines3_agents", "stable-baselines3-agents"),
    RLLIB: ("benchmarks.libraries.peer_runs.rllib_agents", "rllib-agents"),
}


def fits(system: str, task: AgentsTask) -> bool:
    """Whether a system can run a task. Agents of Stable-Baselines3's rows cannot leave."""
    return system != STABLE_BASELINES or not task.leave


def task_of(system: str, task: AgentsTask) -> AgentsTask:
    """The task with the flags of this system of ActorQ."""
    return replace(task, flags=(*task.flags, "--agents.critic=joint")) if system == JOINT else task


def settings_of(system: str, task: AgentsTask) -> dict[str, Any]:
    """What a stored run must have been made with."""
    if system in OURS:
        return {**asdict(task_of(system, task)), "confirmed_episodes": CONFIRMED}
    return {**asdict(task), "pins": pins(_PEERS[system][1])}


def run_system(system: str, task: AgentsTask, seed: int, folder: Path, environments: Path | None) -> dict[str, Any]:
    """Run until the target is reached or the time limit is over. Returns as `benchmarks.libraries.peers.result` does.

    A run of ActorQ also has `confirmed`, the returns of its last policy on new episodes, `agent_returns`, those of each
    agent, and `transitions_by_scheme`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if system in OURS:
        return _run_actorq(task_of(system, task), seed, folder)
    assert environments is not None
    assert task.settings is not None
    asked = {**asked_of(task, seed), "lives": task.lives, "settings": asdict(task.settings)}
    module, environment = _PEERS[system]
    return run_peer(system, task, folder, (str(python_of(environment, environments)), "-m", module), asked)


def _run_actorq(task: AgentsTask, seed: int, folder: Path) -> dict[str, Any]:
    found = run_actorq(task, seed, folder)
    run = folder / "run"
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    module, is_own, _ = task.environment.rpartition(":")
    allowed = ("--allow-modules", module) if is_own else ()
    confirmed, agents = confirm_agents(run, CONFIRMED, with_project() if is_own else None, allowed)
    return {
        **found,
        "confirmed": asdict(confirmed),
        "agent_returns": agents,
        "transitions_by_scheme": summary["transitions_by_scheme"],
    }
