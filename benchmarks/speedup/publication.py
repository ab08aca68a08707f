"""Time from a snapshot in the learner to the policy's first action in an actor, during training on loopback.

The run itself measures it: every policy carries the time of its snapshot, and every actor records its first action with
the policy. `emission` is the quantizer's part: quantizing, measuring fidelity, storing.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Target, run_benchmark, without_verdict
from benchmarks.runs import refusal, train

_FIGURES = ("activation_ms", "emission_ms", "policy_versions", "conditions")


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="number of runs (default: 3)")
    parser.add_argument(
        "--steps", type=int, default=15_000, metavar="N", help="environment steps per run (default: 15000)"
    )


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    runs = []
    with tempfile.TemporaryDirectory() as directory:
        for repeat in range(arguments.repeats):
            flags = ["--target-return", "501", "--max-environment-steps", str(arguments.steps)]
            summary = train(Path(directory) / str(repeat), flags)
            runs.append({name: summary[name] for name in _FIGURES})
            print(
                f"run {repeat + 1}: {summary['activation_ms']:.1f} ms from snapshot to first action, of which "
                f"{summary['emission_ms']:.1f} ms in the quantizer (medians of {summary['policy_versions']} versions)",
                flush=True,
            )
    median = statistics.median(run["activation_ms"] for run in runs)
    target = Target("median ms from snapshot to first action", median, 50.0)
    return {"runs": runs, "median_ms": median}, without_verdict([target], refusal(runs))


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
