"""Sparse training with int8 actors: return, bytes, microseconds and FLOPs of {dense, rlx2} x {fp32, int8}.

Each row is a method of rlx2.py with one actor scheme, over the task's seeds. structured is rlx2 with policies that
become narrower during training. Return is the mean of the last quarter of the runs; it has no target. The policies of
the last evaluations are then measured as they are in the quantizer's store:

bytes: size of the messages that send a policy to an actor. us:        microseconds per call of the actor's own session,
with one thread and the run's observations. All rows take turns. FLOPs:     of one action, and of all updates of a run
at the cost of its last update. From the run's summary, by the formula of RLx2 (arXiv 2205.15043, appendix). They do not
depend on the machine, unlike `us`.

Targets: the joint gain of sparsity and int8, and the gain of int8 for the same sparse network. Runs of
benchmarks.training.rlx2 in --directory are used again. The others are made. All must come from one commit on one
machine.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from actor_service.policies.policy import OnnxPolicy
from actorq.domain.policy import Policy
from actorq.domain.spaces import ArraySpec
from actorq.rundirectory import RunDirectory
from benchmarks.harness import ONE_SEED, Target, run_benchmark, without_verdict
from benchmarks.policies import stored_policy
from benchmarks.policy.inference_timing import tight
from benchmarks.runs import refusal
from benchmarks.training.rlx2 import add_task_flags, chosen_tasks, runs_of
from benchmarks.training.rlx2_tasks import Task
from quantizer_service.serving.policy_stream import policy_messages
from quantizer_service.store.reader import PolicyReader

ROWS = (("dense", "fp32"), ("dense", "int8"), ("rlx2", "fp32"), ("rlx2", "int8"), ("structured", "int8"))
_BASELINE, _NARROW = "dense/fp32", "structured/int8"
_SPARSE = ("rlx2/fp32", "rlx2/int8")
# Slightly below int8's own gain in the stored result: 1.34 in bytes, 1.04 in speed.
_FEWER_BYTES, _FASTER = 1.3, 1.0
_BATCHES = (1, 32)
_SLICE_S = 0.01


def _flags(parser: argparse.ArgumentParser) -> None:
    add_task_flags(parser)
    parser.add_argument("--row", action="append", metavar="PATTERN", help="METHOD/SCHEME, shell patterns (default: *)")
    parser.add_argument("--repeats", type=int, default=25, metavar="N", help="turns of each policy (default: 25)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    patterns = arguments.row or ["*"]
    rows = [row for row in ROWS if any(fnmatchcase("/".join(row), pattern) for pattern in patterns)]
    if not rows:
        raise SystemExit(f"--row: expected a pattern of {', '.join(map('/'.join, ROWS))}, got {patterns}")
    tables: dict[str, Any] = {}
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as nowhere:
        directory = arguments.directory or Path(nowhere)
        for task in chosen_tasks(arguments):
            wanted = [(task, *row, seed) for row in rows for seed in range(1, task.seeds + 1)]
            runs = list(runs_of(wanted, arguments.jobs, directory))
            tables[task.name] = table(runs, arguments.repeats)
            print(shown(task, tables[task.name]), flush=True)
            targets += without_verdict(bounds(task, tables[task.name]), refusal(runs))
    return {"tables": tables}, targets


def table(runs: Sequence[dict[str, Any]], repeats: int) -> dict[str, dict[str, Any]]:
    """Figures of each row, METHOD/SCHEME: means over its seeds; medians for times."""
    policies = [last_policy(Path(run["directory"])) for run in runs]
    times = {batch: _times(policies, batch, repeats) for batch in _BATCHES}
    by_row: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        by_row.setdefault(f"{run['method']}/{run['scheme']}", []).append(index)
    return {
        name: {
            "return": statistics.mean(runs[index]["settled"] for index in indices),
            "returns": [runs[index]["settled"] for index in indices],
            "conditions": [runs[index].get("conditions") for index in indices],
            "schemes": sorted({policies[index][0].descriptor.effective_scheme for index in indices}),
            "bytes": statistics.mean(sum(map(len, policy_messages(policies[index][0]))) for index in indices),
            "us": {batch: statistics.median(times[batch][index] for index in indices) for batch in _BATCHES},
            "training_flops": statistics.mean(runs[index]["flops"]["training"] for index in indices),
            "inference_flops": statistics.mean(runs[index]["flops"]["action"]["flops"] for index in indices),
        }
        for name, indices in by_row.items()
    }


def last_policy(run: Path) -> tuple[Policy, Any]:
    """The policy of a run's last evaluation, in the run's scheme, and its calibration observations."""
    evaluation = RunDirectory(run).read_summary()["evaluation"]
    reader = PolicyReader(RunDirectory(run).policies)
    policy = stored_policy(reader, evaluation["policy_version"], evaluation["scheme"])
    if policy is None:
        raise SystemExit(f"{run}: expected the policy of the last evaluation in its store, got none")
    return policy, next(iter(reader.checkpoint(evaluation["policy_version"]).calibration.values()))


def bounds(task: Task, figures: dict[str, dict[str, Any]]) -> list[Target]:
    """Targets: the gain of narrower policies for an actor with a batch of environments, and the gain of int8."""
    found = []

    def ask(name: str, slow: str, fast: str, share: float, figure: Callable[[dict[str, Any]], float]) -> None:
        if {slow, fast} <= figures.keys():
            refused = ONE_SEED if min(len(figures[row]["returns"]) for row in (slow, fast)) == 1 else ""
            ratio = figure(figures[slow]) / figure(figures[fast])
            found.append(Target(f"{task.name}: times that {name}", ratio, share, at_most=False, refused=refused))

    ask(f"{_NARROW} is faster than {_BASELINE}, batch 32", _BASELINE, _NARROW, 3.0, lambda row: row["us"][32])
    fp32, int8 = _SPARSE
    ask(f"{int8} has fewer bytes than {fp32}", fp32, int8, _FEWER_BYTES, lambda row: row["bytes"])
    ask(f"{int8} is faster than {fp32}, batch 32", fp32, int8, _FASTER, lambda row: row["us"][32])
    return found


def shown(task: Task, figures: dict[str, dict[str, Any]]) -> str:
    """A line for each row."""
    lines = [f"{task.name}, {task.seeds} seeds, {task.steps:,} steps"]
    for name, row in figures.items():
        microseconds = ", ".join(f"{us:.1f} us at batch {batch}" for batch, us in row["us"].items())
        lines.append(
            f"{name:>16} ({'/'.join(row['schemes'])}): return {row['return']:.1f}, {row['bytes']:,.0f} bytes, "
            f"{microseconds}, {row['training_flops']:.3g} FLOPs of training, {row['inference_flops']:,.0f} an action"
        )
    return "\n".join(lines)


def _times(policies: Sequence[tuple[Policy, Any]], batch: int, repeats: int) -> dict[int, float]:
    """Median microseconds per call, by the policy's index."""
    calls: dict[str, Callable[[], object]] = {}
    for place, (policy, observations) in enumerate(policies):
        spec = ArraySpec(tuple(observations.shape[1:]), str(observations.dtype))
        calls[str(place)] = partial(OnnxPolicy(policy, spec, batch), observations[:batch])
    return {int(place): timing.median for place, timing in tight(calls, repeats, _SLICE_S).items()}


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
