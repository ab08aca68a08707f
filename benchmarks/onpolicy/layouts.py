"""Environment steps per second of synchronous and asynchronous PPO, by number of actors and of segments.

In a synchronous run each actor waits for the policy that learned from its last rollout. The benchmark runs both kinds
in turns on CartPole, with rollouts of some segments of each actor. The figure is the median over repeats of the steps
per second from the first stored transition to the last.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Target, run_benchmark
from benchmarks.runs import train

_ENVIRONMENTS, _SEGMENT = 8, 32
_LEAST_SHARE = 0.8
_KINDS = ("synchronous", "asynchronous")


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each kind and layout (default: 3)")
    parser.add_argument("--steps", type=int, default=60_000, metavar="N", help="steps per run (default: 60000)")
    parser.add_argument("--actors", type=int, nargs="+", default=[2, 4, 8], metavar="N", help="default: 2 4 8")
    parser.add_argument(
        "--segments", type=int, nargs="+", default=[1, 2, 4], metavar="N", help="of an actor in a rollout: 1 2 4"
    )


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    layouts = []
    with tempfile.TemporaryDirectory() as folder:
        for actors in arguments.actors:
            for segments in arguments.segments:
                rates: dict[str, list[float]] = {kind: [] for kind in _KINDS}
                for repeat in range(arguments.repeats):
                    for kind in _KINDS if repeat % 2 else reversed(_KINDS):
                        run = Path(folder) / f"{actors}-{segments}-{kind}-{repeat}"
                        rates[kind].append(_steps_per_s(run, actors, segments, kind, repeat, arguments.steps))
                medians = {kind: round(statistics.median(found), 1) for kind, found in rates.items()}
                layouts.append({"actors": actors, "segments": segments, "steps_per_s": medians})
                shown = ", ".join(f"{kind} {rate:,.0f}" for kind, rate in medians.items())
                print(f"{actors} actors, {segments} segments each: {shown} steps/s", flush=True)
    return {"layouts": layouts}, targets(layouts)


def targets(layouts: list[dict[str, Any]]) -> list[Target]:
    """The target of each layout."""
    return [
        Target(
            f"{each['actors']} actors, {each['segments']} segments each: steps/s over those of asynchronous runs",
            each["steps_per_s"]["synchronous"] / each["steps_per_s"]["asynchronous"],
            _LEAST_SHARE,
            at_most=False,
        )
        for each in layouts
    ]


def _steps_per_s(run: Path, actors: int, segments: int, kind: str, seed: int, steps: int) -> float:
    rollout = actors * segments * _SEGMENT * _ENVIRONMENTS
    flags = [
        *("--algorithm", "ppo", "--environment", "CartPole-v1", "--seed", str(seed + 1)),
        *("--ppo.rollout-size", str(rollout), "--ppo.batch-size", str(rollout // 4)),
        *("--actors", str(actors), "--environments-per-actor", str(_ENVIRONMENTS)),
        *("--actor.segment-length", str(_SEGMENT), "--replay.capacity", str(20 * rollout)),
        *("--max-environment-steps", str(steps), "--target-return", "1e9", "--no-energy.enabled"),
        *(("--queue.synchronous",) if kind == "synchronous" else ()),
    ]
    summary = train(run, flags)
    return float(summary["environment_steps"] / (summary["last_transition_s"] - summary["first_transition_s"]))


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
