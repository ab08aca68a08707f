"""Environment steps per second of an actor in the calling program's process, compared with one in its own process.

`actorq.train` trains the same class twice: by its path, so that an actor process makes it, and by a function that only
this process has. Pairs of runs alternate. The learner has little work, so that the actor's loop limits both. A
measurement is long enough for several evaluations, because evaluations slow an actor in the same process.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

import actorq
from benchmarks.harness import Meaning, Target, run_benchmark

_LEAST_RATIO = 0.95
_SETTINGS: dict[str, Any] = {
    "actors": 1,
    "target_return": 1e9,
    "max_environment_steps": 10**12,
    "energy": {"enabled": False},
}
# The class, its step limit, and the settings of a run that its actor limits.
_CASES: dict[str, tuple[type[gymnasium.Env[Any, Any]], int, dict[str, Any]]] = {
    "CartPole": (
        CartPoleEnv,
        500,
        {"like": "CartPole-v1", "environments_per_actor": 16, "rate_limiter__samples_per_insert": 0.2},
    ),
    "HalfCheetah": (
        HalfCheetahEnv,
        1000,
        {
            "like": "HalfCheetah-v5",
            "algorithm": "td3",
            "environments_per_actor": 4,
            "rate_limiter__samples_per_insert": 0.2,
        },
    ),
}

MEANINGS = (
    Meaning(
        r"(?P<task>.+): steps/s in the caller's process over those of an actor process",
        "How fast is an actor in the caller's process, compared with an actor process?",
        "Evaluations share Python's lock with the actor. Move the environment's class into a module for full speed.",
        unit="%",
        scale=100,
        case="{task}",
    ),
)


def _rate(environment: Any, limit: int, settings: dict[str, Any], warm_up_s: float, seconds: float) -> float:
    """Steps per second of one run, by the learner's clock and count."""
    with tempfile.TemporaryDirectory() as folder:
        arguments: dict[str, Any] = {
            "environment_args": {"max_episode_steps": limit},
            "directory": Path(folder) / "run",
        }
        with actorq.train(environment, progress=False, **arguments, **_SETTINGS, **settings) as run:
            began = since = None
            for event in run:
                if not isinstance(event, actorq.StatusEvent) or not event.status.environment_steps:
                    continue
                status = event.status
                began = began or status
                if status.elapsed_s - began.elapsed_s < warm_up_s:
                    continue
                since = since or status
                if (took_s := status.elapsed_s - since.elapsed_s) >= seconds:
                    return (status.environment_steps - since.environment_steps) / took_s
    raise SystemExit(f"the run of {environment} ended too early")


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=11, help="pairs of runs (default: 11)")
    parser.add_argument("--warm-up", type=float, default=4.0, help="seconds before each measurement (default: 4)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each measurement (default: 20)")
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=[*_CASES], help="default: all")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    figures: dict[str, Any] = {}
    targets = []
    for name in arguments.cases:
        kind, limit, settings = _CASES[name]
        given = {"own process": kind, "caller's process": lambda kind=kind, **keywords: kind(**keywords)}
        rates: dict[str, list[float]] = {place: [] for place in given}
        for repeat in range(arguments.repeats):
            for place in given if repeat % 2 == 0 else reversed(given):
                rate = _rate(given[place], limit, settings, arguments.warm_up, arguments.seconds)
                rates[place].append(round(rate, 1))
        ratios = [mine / theirs for theirs, mine in zip(*rates.values(), strict=True)]
        figures[name] = {**rates, "ratio": round(statistics.median(ratios), 4)}
        print(f"{name:12} steps/s: {rates}, ratios {[round(each, 3) for each in ratios]}", flush=True)
        what = f"{name}: steps/s in the caller's process over those of an actor process"
        targets.append(Target(what, statistics.median(ratios), _LEAST_RATIO, at_most=False))
    return figures, targets


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
