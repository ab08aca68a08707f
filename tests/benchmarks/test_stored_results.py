"""Stored results have the verdicts that the code of today gives on their figures."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.environments import goals, packages, structured
from benchmarks.environments import peers as structured_peers
from benchmarks.faults import copies, floods
from benchmarks.harness import Target, verdict
from benchmarks.learner import precision, sparse_learner
from benchmarks.libraries import parity
from benchmarks.onpolicy import layouts, missing_actor, ppo
from benchmarks.policy import fidelity, inference, sparse_policy, swap
from benchmarks.policy.bits import __main__ as bits
from benchmarks.policy.drift import __main__ as drift
from benchmarks.policy.encodings import __main__ as encodings
from benchmarks.policy.figures import Bytes, Calls, Cell, Errors, Figures
from benchmarks.policy.foreign import __main__ as foreign
from benchmarks.policy.inference_timing import Timing
from benchmarks.policy.sparse_policy import DenseCost
from benchmarks.processor import NO_DOT_PRODUCT
from benchmarks.quantize import __main__ as quantize
from benchmarks.scale.serving import __main__ as policy_server
from benchmarks.scale.simulators import __main__ as simulators
from benchmarks.speedup import actorq, start
from benchmarks.speedup import memory as memory_loop
from benchmarks.speedup import pixels as pixels_actor
from benchmarks.training import cartpole, joint, returns, rlx2, sweep, warmstart
from benchmarks.training.agents import __main__ as agents
from benchmarks.training.agents import groups
from benchmarks.training.memory import __main__ as memory
from benchmarks.training.normalized import __main__ as normalized
from benchmarks.training.offline import targets as stored_data
from benchmarks.training.pixels import __main__ as pixels
from benchmarks.training.rlx2_tasks import TASKS
from benchmarks.training.zoo import __main__ as zoo

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def _of_task(runs: list[dict[str, Any]], task: str, side: str | None = None) -> list[dict[str, Any]]:
    return [run for run in runs if run["task"] == task and run.get("side") == side]


def _returns(figures: dict[str, Any]) -> list[Target]:
    made = ((task, _of_task(figures["runs"], task.name)) for task in returns.TASKS)
    return [returns.verdict(task, runs) for task, runs in made if runs]


def _parity(figures: dict[str, Any]) -> list[Target]:
    sides = (
        (task, [_of_task(figures["runs"], task.name, each) for each in (parity.OURS, parity.THEIRS)])
        for task in parity.TASKS
    )
    return [parity.verdict(task.name, *found) for task, found in sides if all(found)]


def _ppo(figures: dict[str, Any]) -> list[Target]:
    tasks = dict.fromkeys(run["task"] for run in figures["runs"])
    return [
        found for name in tasks for found in ppo.verdicts(name, [run for run in figures["runs"] if run["task"] == name])
    ]


def _precision(figures: dict[str, Any]) -> list[Target]:
    of_tasks = ((task, [run for run in figures["runs"] if run["task"] == task.name]) for task in precision.TASKS)
    return [precision.verdict(task, runs) for task, runs in of_tasks if runs]


def _rlx2(figures: dict[str, Any]) -> list[Target]:
    return [found for task in TASKS for found in rlx2.targets(task, _of_task(figures["runs"], task.name))]


def _joint(figures: dict[str, Any]) -> list[Target]:
    found = []
    for task in TASKS:
        rows = {
            name: {**row, "us": {int(batch): us for batch, us in row["us"].items()}}
            for name, row in figures["tables"].get(task.name, {}).items()
        }
        found += joint.bounds(task, rows)
    return found


def _fidelity(figures: dict[str, Any]) -> list[Target]:
    return fidelity.targets(
        {
            name: {
                variant: Figures(**{**each, "errors": {int(b): Errors(**of) for b, of in each["errors"].items()}})
                for variant, each in variants.items()
            }
            for name, variants in figures["policies"].items()
        }
    )


def _sparse_policy(figures: dict[str, Any]) -> list[Target]:
    found = [Bytes(**{name: value for name, value in each.items() if name != "times"}) for each in figures["bytes"]]
    calls = [
        Calls(**{**each, "timings": {name: Timing(**timing) for name, timing in each["timings"].items()}})
        for each in figures["calls"]
    ]
    return sparse_policy.targets(found, calls, [DenseCost(**each) for each in figures["dense policies"]])


def _inference(figures: dict[str, Any]) -> list[Target]:
    def timings(of: dict[str, Any]) -> dict[str, Timing]:
        return {name: Timing(**timing) for name, timing in of.items()}

    cells = [
        Cell(**{**cell, "timings": timings(cell["timings"]), "cold": timings(cell["cold"])})
        for cell in figures["cells"]
    ]
    return inference.targets(cells)


def _drift(figures: dict[str, Any]) -> list[Target]:
    drifts = [
        drift.Drift(**{**each, "after": {int(step): value for step, value in each["after"].items()}})
        for each in figures["drift"]
    ]
    speeds = [
        drift.Speed(**{**each, "timings": {form: Timing(**timing) for form, timing in each["timings"].items()}})
        for each in figures["speed"]
    ]
    return drift.targets(drifts, speeds)


def _encodings(figures: dict[str, Any]) -> list[Target]:
    return encodings.targets({int(width): of for width, of in figures["widths"].items()})


def _speedup(form: str) -> Callable[[dict[str, Any]], list[Target]]:
    def verdicts(figures: dict[str, Any]) -> list[Target]:
        tasks = {task.name: task for task in actorq.TASKS}
        return [found for result in figures["tasks"] for found in actorq.verdicts(tasks[result["task"]], result, form)]

    return verdicts


VERDICTS: dict[str, Callable[[dict[str, Any]], list[Target]]] = {
    "actorq": _speedup("long"),
    "actorq_balance": _speedup("long"),
    "actorq_gpu": _speedup("short"),
    "actorq_gpu_to_target": _speedup("long"),
    "actorq_steps": _speedup("short"),
    "actorq_without_vnni": _speedup("short"),
    "agents": agents.targets,
    "bits": bits.targets,
    "bits_quantization_aware": bits.targets,
    "cartpole": lambda figures: cartpole.targets(figures["runs"]),
    "copies": copies.targets,
    "copies_before": copies.targets,
    "drift": _drift,
    "encodings": _encodings,
    "fidelity": _fidelity,
    "fidelity_without_vnni": _fidelity,
    "floods": floods.targets,
    "floods_before": floods.targets,
    "foreign": lambda figures: foreign.targets(figures["models"]),
    "inference": _inference,
    "groups": groups.targets,
    "inference_without_vnni": _inference,
    "joint": _joint,
    "memory": memory.targets,
    "memory_sac": memory.targets,
    "memory_actor": memory_loop.targets,
    "normalized": normalized.targets,
    "normalized_parts": normalized.targets,
    "on_policy_layouts": lambda figures: layouts.targets(figures["layouts"]),
    "on_policy_missing_actor": missing_actor.targets,
    "on_policy_pendulum": _ppo,
    "on_policy_ppo": _ppo,
    "packages": packages.targets,
    "packages_repeated": packages.targets,
    "goals": goals.targets,
    "structured": structured.targets,
    "structured_peers": structured_peers.targets,
    "parity": _parity,
    "parity_sac_pendulum": _parity,
    "pixels": pixels.targets,
    "pixels_actor": pixels_actor.targets,
    "precision": _precision,
    "precision_balance": _precision,
    "quantize": lambda figures: quantize.targets(figures["models"]),
    "returns": _returns,
    "returns_cheetah_run": _returns,
    "returns_finger_spin": _returns,
    "returns_mountain_car_continuous": _returns,
    "returns_pong": _returns,
    "returns_repeated": _returns,
    "rlx2": _rlx2,
    "rlx2_half_cheetah": _rlx2,
    "rlx2_hopper": _rlx2,
    "rlx2_inverted_pendulum": _rlx2,
    "rlx2_walker2d": _rlx2,
    "rlx2_ant": _rlx2,
    "rlx2_sac_half_cheetah": _rlx2,
    "rlx2_sac_hopper": _rlx2,
    "serving": policy_server.targets,
    "simulators": simulators.targets,
    "sparse_learner": lambda figures: sparse_learner.targets(figures["cells"]),
    "sparse_policy": _sparse_policy,
    "start": lambda figures: start.targets(figures["runs"]),
    "start_without_vnni": lambda figures: start.targets(figures["runs"]),
    "stored_data": stored_data.targets,
    "equal_updates": stored_data.targets,
    "recordings": stored_data.targets,
    "sweep": sweep.targets,
    "warmstart": warmstart.targets,
    "zoo": lambda figures: zoo.targets(figures["runs"]),
    "swap": lambda figures: swap.targets({int(width): of for width, of in figures["widths"].items()}),
}


@pytest.mark.parametrize("name", sorted(VERDICTS))
def test_targets_are_those_of_the_code(name: str) -> None:
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    targets, features = VERDICTS[name](result["figures"]), result["machine"].get("features")
    if features is None:
        # Results from before processors were recorded gave each target of their time a verdict.
        targets = [replace(target, needs="") for target in targets if target.needs != NO_DOT_PRODUCT]
    stored = [{"refused": "", "needs": "", "baseline": None, **target} for target in result["targets"]]
    assert stored == [{**asdict(target), "met": verdict(target, features or ())} for target in targets]
