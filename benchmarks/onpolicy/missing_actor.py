"""Environment steps per second of a synchronous run before and after one of its actors stops. `actorq train` runs PPO
on CartPole on this machine. SIGSTOP stops one actor, so that it is not restarted. After ten seconds the other actors
collect its share of each rollout. The figure is the median over repeats of the steps per second after that, relative to
those before the stop.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from actorq.client import LearnerClient
from actorq.errors import UnavailableError
from actorq.rundirectory import RunDirectory
from benchmarks.faults.chaos.fleet import until
from benchmarks.harness import Target, run_benchmark

_ENVIRONMENTS, _SEGMENT, _SEGMENTS = 8, 32, 2
_START_S, _END_S = 60.0, 60.0
# After this time the other actors collect the share of a missing actor.
_PATIENCE_S = 10.0


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="runs for each number of actors (default: 3)"
    )
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="of each measurement (default: 10)")
    parser.add_argument("--actors", type=int, nargs="+", default=[2, 4, 8], metavar="N", help="default: 2 4 8")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    rows = []
    for actors in arguments.actors:
        runs = [_rates(actors, seed, arguments.seconds) for seed in range(1, arguments.repeats + 1)]
        medians = {name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}
        rows.append({"actors": actors, **medians})
        print(
            f"{actors} actors: {', '.join(f'{name} {rate:,.0f}' for name, rate in medians.items())} steps/s", flush=True
        )
    figures = {"rows": rows}
    return figures, targets(figures)


def targets(figures: dict[str, Any]) -> list[Target]:
    """Targets: a missing actor costs at most its own share."""
    return [
        Target(
            f"{row['actors']} actors: steps/s without one of them over those before",
            row["without"] / row["all"],
            1 - 1 / row["actors"],
            at_most=False,
        )
        for row in figures["rows"]
    ]


def _rates(actors: int, seed: int, seconds: float) -> dict[str, float]:
    """Steps per second of all actors, and without one of them."""
    rollout = actors * _SEGMENTS * _SEGMENT * _ENVIRONMENTS
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder) / "run")
        command = [
            *(sys.executable, "-m", "actorq_apps.cli.main", "train", "--run-directory", str(run.root)),
            *("--algorithm", "ppo", "--environment", "CartPole-v1", "--seed", str(seed), "--queue.synchronous"),
            *("--ppo.rollout-size", str(rollout), "--ppo.batch-size", str(rollout // 4)),
            *("--actors", str(actors), "--environments-per-actor", str(_ENVIRONMENTS)),
            *("--actor.segment-length", str(_SEGMENT), "--replay.capacity", str(20 * rollout)),
            *("--max-environment-steps", str(10**9), "--target-return", "1e9", "--no-energy.enabled"),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if until(run.addresses.exists, _START_S) is None:
                raise SystemExit("actorq train did not start")
            with LearnerClient(json.loads(run.addresses.read_text(encoding="utf-8"))["learner"]) as client:

                def rate() -> float:
                    begun, before = time.monotonic(), client.status().environment_steps
                    threading.Event().wait(seconds)
                    return (client.status().environment_steps - before) / (time.monotonic() - begun)

                def has_all() -> bool:
                    try:
                        status = client.status()
                    except UnavailableError:
                        # The learner is still starting.
                        return False
                    connected = [actor for actor in status.actors if actor.connected and actor.role == "actor"]
                    return (
                        len(connected) == actors
                        and all(actor.report for actor in connected)
                        and status.environment_steps > rollout
                    )

                if until(has_all, _START_S) is None:
                    raise SystemExit("not all actors came")
                of_all = rate()
                reports = {actor.name: actor.report for actor in client.status().actors}
                report = reports["actor-0"]
                assert report is not None
                missing = psutil.Process(report.process.pid)
                missing.suspend()
                try:
                    threading.Event().wait(_PATIENCE_S)
                    return {"all": of_all, "without": rate()}
                finally:
                    missing.resume()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(_END_S)


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
