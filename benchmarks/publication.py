"""Time from a snapshot in the learner to the policy's first action in an actor, while training, on loopback.

It is what a run measures of itself: every policy carries the time of its snapshot, every actor notes when it first
acts with it. `emission` is the quantizer's part: quantizing, measuring fidelity, storing.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Target, run_benchmark


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs (default: 3)")
    parser.add_argument(
        "--steps", type=int, default=15_000, metavar="N", help="environment steps a run (default: 15000)"
    )


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    runs = []
    with tempfile.TemporaryDirectory() as directory:
        for repeat in range(arguments.repeats):
            summary = _train(Path(directory) / str(repeat), arguments.steps)
            runs.append({name: summary[name] for name in ("activation_ms", "emission_ms", "policy_versions")})
            print(
                f"run {repeat + 1}: {summary['activation_ms']:.1f} ms from snapshot to first action, of which "
                f"{summary['emission_ms']:.1f} ms in the quantizer (medians of {summary['policy_versions']} versions)",
                flush=True,
            )
    median = statistics.median(run["activation_ms"] for run in runs)
    return {"runs": runs, "median_ms": median}, [Target("median ms from snapshot to first action", median, 50.0)]


def _train(directory: Path, steps: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "actorq.cli.main", "train", "--run-directory", str(directory)]
    command += ["--target-return", "501", "--max-environment-steps", str(steps)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    return summary


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
