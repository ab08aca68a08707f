"""Wide policies, on-policy: whole runs with actors in PyTorch FP32, ONNX Runtime FP32, int8 and int4.

Each task is one comparison (`actorq compare`), as in benchmarks.speedup.actorq. The policy has three layers of 2048
units. The learner makes one pass over each rollout, in large minibatches.
The figure is the time to a target that is fixed in advance, from the first stored transition.

Runs are kept in --directory. Finished runs are not repeated. All must come from one commit on one machine.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import ONE_SEED, Meaning, Target, run_benchmark, without_verdict
from benchmarks.runs import chosen, refusal
from benchmarks.speedup.actorq import Task, compare, rows, value_of, variant_of
from benchmarks.speedup.actorq_plot import plot

_WIDE = 2048
_OVER_TORCH, _OVER_FP32 = 5.5, 2.5
# One actor with one environment: its policy computes one row at a time, as on a robot.
_ONE_BY_ONE = (
    *(
        "--actors",
        "1",
        "--environments-per-actor",
        "1",
        "--actor.segment-length",
        "256",
        "--queue.max-policy-lag",
        "16",
    ),
    *("--learner.precision", "auto", "--replay.capacity", "65536"),
    *("--evaluation.episodes", "5", "--evaluation.period-updates", "20", "--evaluation.share", "0.06"),
)


def _sizes(width: int) -> tuple[str, ...]:
    # The change of a network's outputs in one update grows with its width. The value network stays narrow, and needs
    # larger steps. Gradients of single weights in wide networks are smaller than PPO's usual epsilon of 1e-5.
    return (
        *("--ppo.hidden-sizes", ",".join([str(width)] * 3), "--ppo.value-sizes", "256,256", "--ppo.activation", "relu"),
        *("--ppo.learning-rate", f"{0.2048 / width:g}", "--ppo.value-learning-rate", "3e-3"),
        *("--ppo.adam-epsilon", "1e-8", "--ppo.max-gradient-norm", "10", "--normalize-observations"),
    )


def _ppo(environment: str, target: float, steps: int, *flags: str, width: int = _WIDE) -> Task:
    learning = ("--ppo.rollout-size", "1024", "--ppo.batch-size", "256", "--ppo.epochs", "1")
    flags = (*_ONE_BY_ONE, *_sizes(width), *learning, *flags)
    return Task(environment, "ppo", width, target, steps, flags)


# Width 256 is also reported, without targets.
TASKS = (
    _ppo("CartPole-v0", 195.0, 300_000, "--ppo.discount", "0.98", "--ppo.gae-lambda", "0.8"),
    _ppo("Pendulum-v1", -300.0, 500_000, "--ppo.discount", "0.9"),
    _ppo("CartPole-v0", 195.0, 300_000, "--ppo.discount", "0.98", "--ppo.gae-lambda", "0.8", width=256),
    _ppo("Pendulum-v1", -300.0, 500_000, "--ppo.discount", "0.9", width=256),
)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task", action="append", metavar="PATTERN", help="ALGORITHM/ENVIRONMENT/WIDTH, shell patterns (default: *)"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 1 to N of each task (default: 3)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="folder for the runs (default: not kept)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the table to FILE, such as a PNG")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    results, targets = [], []
    with tempfile.TemporaryDirectory() as nowhere:
        for task in chosen(TASKS, arguments.task):
            result = compare(task, arguments.seeds, "cpu", arguments.directory or Path(nowhere))
            results.append(result)
            print("\n".join(rows(result)), flush=True)
            targets += without_verdict(verdicts(task, result), refusal([result]))
    if arguments.plot:
        plot(results, arguments.plot)
    return {"tasks": results}, targets


MEANINGS = (
    Meaning(
        r"(?P<task>.+): (?P<scheme>\w+), time to the target over (?P<baseline>\w+) \(.+\)",
        "How many times sooner do on-policy runs with int8 actors reach the target return?",
        "Expect less gain on-policy. The learner becomes the limit, and its rollouts come from older policies.",
        unit=" times",
        case="{task}, {scheme} over {baseline}",
    ),
)


def verdicts(task: Task, result: dict[str, Any]) -> list[Target]:
    """Time to the target of int8 over both baselines; none for narrow policies."""
    if task.width < _WIDE:
        return []
    starved = statistics.median(run["starved_share"] for run in variant_of(result, "fp32")["runs"])
    found = [
        Target(
            f"{task.name}: int8, time to the target over {baseline} (learner of fp32 starved {starved:.0%})",
            value_of(result, "int8", baseline, "time_to_target"),
            bound,
            at_most=False,
        )
        for baseline, bound in (("torch", _OVER_TORCH), ("fp32", _OVER_FP32))
    ]
    return without_verdict(found, ONE_SEED if len(result["seeds"]) == 1 else "")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
