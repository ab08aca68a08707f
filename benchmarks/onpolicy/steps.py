"""Environment steps per second of a whole on-policy run: actor, messages, queue and learner on this machine.

The run trains PPO on CartPole with one epoch in large minibatches, without a target, for a fixed number of environment
steps. The figure is the median over runs of the steps per second from the first stored transition to the last. The
shares show the limit: the learner if actors waited, or the actors if the learner starved.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Target, run_benchmark
from benchmarks.runs import train

_STEPS_PER_S = 60_000.0


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="number of runs (default: 3)")
    parser.add_argument("--steps", type=int, default=2_000_000, metavar="N", help="steps per run (default: 2000000)")
    parser.add_argument("--environments", type=int, default=256, metavar="N", help="environments (default: 256)")
    parser.add_argument("--backend", choices=("python", "envpool"), default="envpool", help="default: envpool")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    count, runs = arguments.environments, []
    rollout = 64 * count
    flags = [
        *("--algorithm", "ppo", "--environment", "CartPole-v1", "--environment-backend", arguments.backend),
        *("--ppo.epochs", "1", "--ppo.rollout-size", str(rollout), "--ppo.batch-size", str(rollout // 4)),
        *("--actors", "1", "--environments-per-actor", str(count), "--actor.segment-length", "32"),
        *("--replay.capacity", str(8 * rollout), "--queue.max-policy-lag", "64"),
        *("--max-environment-steps", str(arguments.steps), "--target-return", "1e9", "--no-energy.enabled"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(arguments.repeats):
            summary = train(Path(folder) / str(repeat), [*flags, "--seed", str(repeat + 1)])
            seconds = summary["last_transition_s"] - summary["first_transition_s"]
            run = {
                "steps_per_s": round(summary["environment_steps"] / seconds, 1),
                "starved_share": round(summary["starved_s"] / seconds, 3),
                "updates": summary["updates"],
            }
            runs.append(run)
            print(f"run {repeat + 1}: {run['steps_per_s']:,.0f} steps/s, learner starved {run['starved_share']:.0%}")
    rate = statistics.median(run["steps_per_s"] for run in runs)
    return {"flags": flags, "runs": runs}, [Target("environment steps per second", rate, _STEPS_PER_S, at_most=False)]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
