"""Memory and open files of each process in a run of half an hour, sampled every few seconds.

The replay is small, so that it is full before the first counted sample. Memory is the unique set size (USS). A figure
is the median of the last fifth of the samples relative to that of the second fifth. The first fifth is the start.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from actorq.client import LearnerClient
from actorq.errors import UnavailableError
from benchmarks.faults.chaos.fleet import Fleet, free_addresses, until
from benchmarks.harness import Target, run_benchmark

_CONFIGURATION: dict[str, Any] = {
    "algorithm": "dqn",
    "environment": "CartPole-v1",
    "max_environment_steps": 10**10,
    "target_return": 1e9,
    "replay": {"capacity": 50_000},
    "evaluation": {"period_updates": 1_000},
}
_ACTORS = ("actor-0", "actor-1")
_START_S = 60.0
_PARTS = 5
_MOST_GROWTH = 1.05


def _sample(fleet: Fleet, name: str) -> tuple[float, int]:
    """Megabytes and open files of a process."""
    process = psutil.Process(fleet.pid(name))
    return process.memory_full_info().uss / 1e6, process.num_fds()


def _has_evaluated(client: LearnerClient) -> bool:
    try:
        return client.status().evaluation is not None
    except UnavailableError:
        return False


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=1_800.0, help="duration of the run (default: 1800)")
    parser.add_argument("--period", type=float, default=5.0, help="seconds between samples (default: 5)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(_CONFIGURATION), encoding="utf-8")
        learner, quantizer = free_addresses(2)
        given = ("--config", str(config))
        peers = ("--learner", learner, "--quantizer", quantizer)
        fleet = Fleet(folder, {})
        store, state = ("--store", str(folder / "policies")), ("--run-directory", str(folder / "run"))
        try:
            fleet.start("quantizer", "quantizer_service", *given, *store, "--listen", quantizer)
            fleet.start("learner", "learner_service", *given, *state, "--listen", learner, "--quantizer", quantizer)
            for actor in _ACTORS:
                fleet.start(actor, "actor_service", *given, *peers, "--name", actor)
            fleet.start("evaluator", "actor_service", *given, *peers, "--name", "evaluator", "--role", "evaluator")
            with LearnerClient(learner) as client:
                steps = _follow(fleet, client, arguments.seconds, arguments.period)
        finally:
            fleet.close()
    return steps


def _follow(
    fleet: Fleet, client: LearnerClient, seconds: float, period_s: float
) -> tuple[dict[str, Any], list[Target]]:
    names = ("learner", "quantizer", *_ACTORS, "evaluator")
    samples: dict[str, list[tuple[float, int]]] = {name: [] for name in names}
    if until(lambda: _has_evaluated(client), _START_S) is None:
        raise SystemExit(f"the run was not evaluated within {_START_S:.0f} s")
    begun, first = time.monotonic(), client.status().environment_steps
    pause = threading.Event()
    while time.monotonic() - begun < seconds:
        for name in names:
            samples[name].append(_sample(fleet, name))
        pause.wait(period_s)
    steps = client.status().environment_steps - first
    figures: dict[str, Any] = {"seconds": seconds, "environment_steps": steps, "processes": {}}
    targets = [Target("processes that ended", len(fleet.exits), 0)]
    for name, taken in samples.items():
        part = len(taken) // _PARTS
        early, late = taken[part : 2 * part], taken[-part:]
        memory = [statistics.median(megabytes for megabytes, _ in some) for some in (early, late)]
        files = [max(count for _, count in some) for some in (early, late)]
        growth = memory[1] / memory[0]
        figures["processes"][name] = {
            "megabytes": [round(value, 1) for value in memory],
            "growth": round(growth, 4),
            "open_files": files,
        }
        print(f"{name:10} {memory[0]:7.1f} -> {memory[1]:7.1f} MB  {files[0]} -> {files[1]} files")
        targets.append(Target(f"memory of {name}, late over early", growth, _MOST_GROWTH))
        targets.append(Target(f"open files of {name}, late less early", files[1] - files[0], 0))
    return figures, targets


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
