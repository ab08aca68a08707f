"""Runs of `actorq train` and `actorq evaluate` as a user makes them, for benchmarks of learning."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil

from actorq.errors import UserError
from actorq.files import replace_file
from actorq.rundirectory import RunDirectory

T = TypeVar("T", bound="Named")
W = TypeVar("W")

# Of the episodes that confirm a policy.
CONFIRMATION_SEED = 1000
_ACTORQ = (sys.executable, "-m", "actorq.cli.main")
# Solved, and ended by its budget.
_COMPLETE = (0, 3)


class Named(Protocol):
    """A task, as far as --task goes."""

    @property
    def name(self) -> str:
        """ALGORITHM/ENVIRONMENT."""


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
    command = [*_ACTORQ, "evaluate", str(directory), "--episodes", str(episodes), "--seed", str(CONFIRMATION_SEED)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    mean = re.search(r"return mean (-?[0-9.,]+)", process.stdout)
    policy = re.search(r"^policy v\d+ ([\w-]+)(?:, in effect ([\w-]+))?", process.stdout, re.MULTILINE)
    assert mean is not None, process.stdout
    assert policy is not None, process.stdout
    return Confirmation(float(mean.group(1).replace(",", "")), episodes, policy.group(2) or policy.group(1))


def actor_megabytes(summary: dict[str, Any]) -> list[float]:
    """The largest resident memory of each actor of a run."""
    return [mb for name, mb in summary["peak_memory_mb"].items() if name.startswith("actor")]


def kept(file: Path, settings: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `file` has, or else what `make` returns, which is written there: whole or not at all, `settings` beside it.

    Raises SystemExit when what is there was made with other settings.
    """
    # As JSON has them: lists where there were tuples.
    settings = json.loads(json.dumps(settings))
    if file.exists():
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if result["settings"] != settings:
            raise SystemExit(f"{file} was made with other settings: move it away, or take another folder")
        return result
    result = {**make(), "settings": settings}
    replace_file(file, json.dumps(result) + "\n")
    return result


def forget_incomplete(directory: Path) -> None:
    """Remove a run that was killed, so that `train` makes it anew; raises SystemExit while it is being made.

    What its launcher left running has ended before.
    """
    if not directory.exists() or (directory / "command_s.json").exists():
        return
    try:
        with RunDirectory(directory).locked(lambda: print(f"waiting for what was left running in {directory}")):
            shutil.rmtree(directory)
    except UserError as error:
        raise SystemExit(str(error)) from None


@contextmanager
def ending_children() -> Iterator[None]:
    """In here SIGTERM ends the runs that are being made, and this process after them; Ctrl-C reaches them anyway."""

    def end(*_: object) -> None:
        for child in psutil.Process().children():
            child.terminate()
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def chosen(tasks: Sequence[T], patterns: Sequence[str] | None) -> list[T]:
    """The tasks whose names fit a pattern of --task; all without one. Raises SystemExit when none does."""
    found = [task for task in tasks if any(fnmatchcase(task.name, pattern) for pattern in patterns or ["*"])]
    if not found:
        raise SystemExit(f"--task: expected a pattern of {', '.join(task.name for task in tasks)}, got {patterns}")
    return found


def in_order(make: Callable[[W], dict[str, Any]], wanted: Iterable[W], jobs: int) -> Iterator[dict[str, Any]]:
    """The runs that are wanted, `jobs` of them made at the same time, in the order in which they were asked for."""
    with ThreadPoolExecutor(jobs) as pool, ending_children():
        runs = [pool.submit(make, one) for one in wanted]
        try:
            for future in runs:
                yield future.result()
        finally:
            # When one has failed, or Ctrl-C was pressed, those that wait are not begun.
            pool.shutdown(wait=False, cancel_futures=True)
