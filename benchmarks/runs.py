"""Runs of `actorq train` and `actorq evaluate` as a user makes them, for benchmarks of learning.

The conditions under which a run began lie beside it, in NAME.conditions.json.
"""

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
from actorq.rundirectory import RunDirectory
from actorq.statefiles.files import replace_file
from benchmarks.conditions import Conditions, conditions, refuse_mixed, without_verdict

T = TypeVar("T", bound="Named")
W = TypeVar("W")

_CONDITIONS = ".conditions.json"
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
    """The run's summary, with its `conditions` and `command_s`, the seconds from the command's start to its exit.

    A run that is complete in `directory` already is not made again. Raises SystemExit when the command fails, or when
    runs beside it have another commit or machine.
    """
    summary_file, seconds_file = directory / "summary.json", directory / "command_s.json"
    if not seconds_file.exists():
        begin(directory)
        started = time.monotonic()
        command = [*_ACTORQ, "train", "--run-directory", str(directory), *flags]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode not in _COMPLETE:
            raise SystemExit(f"actorq train failed with exit code {process.returncode}: {process.stderr.strip()}")
        seconds_file.write_text(json.dumps(round(time.monotonic() - started, 2)), encoding="utf-8")
    summary: dict[str, Any] = json.loads(summary_file.read_text(encoding="utf-8"))
    command_s = json.loads(seconds_file.read_text(encoding="utf-8"))
    return {**summary, "command_s": command_s, "conditions": recorded(directory)}


def begin(folder: Path) -> None:
    """Write down under which conditions the run in `folder` begins; those of a run that goes on stay.

    Raises SystemExit when the runs beside it, or what is there of itself, have another commit or machine.
    """
    beside = {path for path in folder.parent.glob("*/") if (path / "config.yaml").exists()}
    files = folder.parent.glob(f"*{_CONDITIONS}")
    beside |= {path.with_name(path.name.removesuffix(_CONDITIONS)) for path in files}
    now = conditions()
    for path in sorted(beside):
        refuse_mixed({path.name: recorded(path), "this one": now})
    if not _conditions_file(folder).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        replace_file(_conditions_file(folder), json.dumps(now) + "\n")


def recorded(folder: Path) -> Conditions | None:
    """The conditions under which the run in `folder` began; None when they are not recorded."""
    file = _conditions_file(folder)
    found: Conditions | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    return found


def refusal(runs: Iterable[dict[str, Any]]) -> str:
    """Why runs with `conditions` give no verdict, "" when they do; raises SystemExit when they are mixed."""
    return without_verdict({_named(number, run): run.get("conditions") for number, run in enumerate(runs, start=1)})


def _named(number: int, run: dict[str, Any]) -> str:
    parts = [str(run[key]) for key in ("task", "side", "method", "scheme") if key in run]
    return f"run {number} ({' '.join([*parts, 'seed', str(run.get('seed', '?'))])})"


def _conditions_file(folder: Path) -> Path:
    return folder.with_name(folder.name + _CONDITIONS)


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

    The result has the `conditions` under which the run began. Raises SystemExit when what is there was made with other
    settings, and when it has to be made beside runs of another commit or machine.
    """
    # As JSON has them: lists where there were tuples.
    settings, folder = json.loads(json.dumps(settings)), file.with_suffix("")
    if file.exists():
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if {name: result["settings"].get(name) for name in settings} != settings:
            raise SystemExit(f"{file} was made with other settings: move it away, or take another folder")
    else:
        begin(folder)
        result = {**make(), "settings": settings}
        replace_file(file, json.dumps(result) + "\n")
    return {**result, "conditions": recorded(folder)}


def forget_incomplete(directory: Path) -> None:
    """Remove a run that was killed, so that `train` makes it anew; raises SystemExit while it is being made.

    What its launcher left running has ended before.
    """
    if not directory.exists() or (directory / "command_s.json").exists():
        return
    try:
        with RunDirectory(directory).locked(lambda: print(f"waiting for what was left running in {directory}")):
            shutil.rmtree(directory)
            _conditions_file(directory).unlink(missing_ok=True)
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


def chosen(tasks: Sequence[T], patterns: Sequence[str] | None, flag: str = "--task") -> list[T]:
    """The tasks whose names fit a pattern of the flag; all without one. Raises SystemExit when none does."""
    found = [task for task in tasks if any(fnmatchcase(task.name, pattern) for pattern in patterns or ["*"])]
    if not found:
        raise SystemExit(f"{flag}: expected a pattern of {', '.join(task.name for task in tasks)}, got {patterns}")
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
