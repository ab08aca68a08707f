"""Time of a sweep of CartPole-v1 on one machine. It runs `actorq sweep` as a user does, with all of its processes.

The sweep looks for the settings with the fewest environment steps until 20 greedy episodes of the int8 policy have a
mean return of at least 475. It is killed once in the middle with SIGKILL, and started again. Both parts count.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Target, run_benchmark

_SEARCH = (
    *("--search", "dqn.learning_rate=log:3e-4..1e-2", "dqn.n_step=1..8", "dqn.hidden_sizes=64,64|128,128"),
    "rate_limiter.samples_per_insert=4|8|16",
)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=16, metavar="N", help="trials (default: 16)")
    parser.add_argument("--jobs", type=int, default=1, metavar="K", help="runs at a time (default: 1)")
    parser.add_argument("--pruner", default="median", help="pruner (default: median)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "sweep"
        command = [sys.executable, "-m", "actorq_apps.cli.main", "sweep", "--directory", str(folder), *_SEARCH]
        command += ["--environment", "CartPole-v1", "--max-environment-steps", "50000", "--objective", "steps"]
        command += ["--trials", str(arguments.trials), "--jobs", str(arguments.jobs), "--pruner", arguments.pruner]
        started = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                if line.startswith(f"trial {arguments.trials // 2}: return"):
                    process.kill()
                    break
        killed_s = time.monotonic() - started
        print(f"killed after {killed_s:.1f} s", flush=True)
        subprocess.run(command, check=True)
        seconds = time.monotonic() - started
        found = json.loads((folder / "trials.json").read_text(encoding="utf-8"))
        has_policy = (folder / "best" / "policy.onnx").exists()
    figures = {
        "trials": found["trials"],
        "wanted": arguments.trials,
        "best": found["best"],
        "seconds": round(seconds, 1),
        "killed_s": round(killed_s, 1),
        "has_policy": has_policy,
    }
    return figures, targets(figures)


def targets(figures: dict[str, Any]) -> list[Target]:
    """Bounds of the time and of the trials."""
    states = [trial["state"] for trial in figures["trials"]]
    return [
        Target("seconds of the whole sweep", figures["seconds"], 360.0),
        Target("trials with a result", len(states) - states.count("running"), figures["wanted"], at_most=False),
        Target("failed trials", states.count("failed"), 0),
        Target("trials that solved the task", states.count("complete"), 4, at_most=False),
        Target("exported policies of the best run", int(figures["has_policy"]), 1, at_most=False),
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
