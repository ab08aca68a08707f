"""Runs of `actorq train` and `actorq evaluate` as a user makes them, for benchmarks of learning."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ACTORQ = (sys.executable, "-m", "actorq.cli.main")
# Solved, and ended by its budget.
_COMPLETE = (0, 3)


@dataclass(frozen=True)
class Confirmation:
    """Returns of the run's last policy on episodes that it was not chosen by."""

    mean_return: float
    episodes: int
    scheme: str


def train(directory: Path, flags: Sequence[str]) -> dict[str, Any]:
    """The run's summary, with `command_s`, the seconds from the command's start to its exit.

    A run that is complete in `directory` already is not made again. Raises SystemExit when the command fails.
    """
    summary_file, seconds_file = directory / "summary.json", directory / "command_s.json"
    if not seconds_file.exists():
        started = time.monotonic()
        command = [*_ACTORQ, "train", "--run-directory", str(directory), *flags]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode not in _COMPLETE:
            raise SystemExit(f"actorq train failed with exit code {process.returncode}: {process.stderr.strip()}")
        seconds_file.write_text(json.dumps(round(time.monotonic() - started, 2)), encoding="utf-8")
    summary: dict[str, Any] = json.loads(summary_file.read_text(encoding="utf-8"))
    return {**summary, "command_s": json.loads(seconds_file.read_text(encoding="utf-8"))}


def confirm(directory: Path, episodes: int) -> Confirmation:
    """Evaluate the run's last policy as it was emitted, on new episodes."""
    command = [*_ACTORQ, "evaluate", str(directory), "--episodes", str(episodes), "--seed", "1000"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    mean = re.search(r"return mean (-?[0-9.,]+)", process.stdout)
    policy = re.search(r"^policy v\d+ ([\w-]+)(?:, in effect ([\w-]+))?", process.stdout, re.MULTILINE)
    assert mean is not None, process.stdout
    assert policy is not None, process.stdout
    return Confirmation(float(mean.group(1).replace(",", "")), episodes, policy.group(2) or policy.group(1))


def actor_megabytes(summary: dict[str, Any]) -> list[float]:
    """The largest resident memory of each actor of a run."""
    return [mb for name, mb in summary["peak_memory_mb"].items() if name.startswith("actor")]
