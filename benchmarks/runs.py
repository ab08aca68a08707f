"""Runs `actorq train` and `actorq evaluate` as a user does, for benchmarks of learning.

NAME.conditions.json, next to the folder of the run NAME, has the conditions at its start.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol, TypeVar

from actorq.errors import UserError
from actorq.rundirectory import RunDirectory
from actorq.statefiles.files import replace_file
from benchmarks.conditions import Conditions, conditions, refuse_mixed, without_verdict

T = TypeVar("T", bound="Named")
W = TypeVar("W")

_CONDITIONS = ".conditions.json"
# Seed of the episodes that confirm a policy.
CONFIRMATION_SEED = 1000
# The command, after the interpreter.
ACTORQ = ("-m", "actorq_apps.cli.main")
# Exit codes of a solved run and of a run that its budget ended.
_COMPLETE = (0, 3)


class Named(Protocol):
    """The part of a task that --task matches."""

    @property
    def name(self) -> str:
        """Usually ALGORITHM/ENVIRONMENT."""


@dataclass(frozen=True)
class LearningTask:
    """A task of a benchmark: an algorithm learns in an environment."""

    algorithm: str
    environment: str

    @property
    def name(self) -> str:
        """ALGORITHM/ENVIRONMENT, the name that the patterns of --task match."""
        return f"{self.algorithm}/{self.environment}"


@dataclass(frozen=True)
class Confirmation:
    """Returns of the run's last policy on new episodes."""

    mean_return: float
    episodes: int
    scheme: str


def train(directory: Path, flags: Sequence[str], variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The run's summary, with its `conditions` and `command_s`, the seconds from the command's start to its exit.

    variables: environment variables of the command, in addition to those of this process.

    A complete run in `directory` is not repeated. An interrupted run continues, unless `forget_incomplete` has removed
    it; command_s is then that of the last command. Raises SystemExit when the command fails, or when runs beside it
    have another commit or machine.
    """
    summary_file, seconds_file = directory / "summary.json", directory / "command_s.json"
    resume = ["--resume"] if (directory / "config.yaml").exists() else []
    if not seconds_file.exists():
        begin(directory)
        started = time.monotonic()
        command = [sys.executable, *ACTORQ, "train", "--run-directory", str(directory), *flags, *resume]
        process = subprocess.run(command, env=_with(variables), capture_output=True, text=True, check=False)
        if process.returncode not in _COMPLETE:
            raise SystemExit(f"actorq train failed with exit code {process.returncode}: {process.stderr.strip()}")
        seconds_file.write_text(json.dumps(round(time.monotonic() - started, 2)), encoding="utf-8")
    summary: dict[str, Any] = json.loads(summary_file.read_text(encoding="utf-8"))
    command_s = json.loads(seconds_file.read_text(encoding="utf-8"))
    return {**summary, "command_s": command_s, "conditions": recorded(directory)}


def begin(folder: Path) -> None:
    """Record the conditions at the start of the run in `folder`. A resumed run keeps its own.

    Raises SystemExit when the runs beside it, or its own earlier part, have another commit or machine.
    """
    beside = {path for path in folder.parent.glob("*/") if (path / "config.yaml").exists()}
    beside |= set(recorded_runs(folder.parent))
    now = conditions()
    for path in sorted(beside):
        refuse_mixed({path.name: recorded(path), "this one": now})
    if not conditions_file(folder).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        replace_file(conditions_file(folder), json.dumps(now) + "\n")


def recorded_runs(directory: Path) -> list[Path]:
    """The folders of the runs in `directory` with recorded conditions. A run may have a result and no folder."""
    files = sorted(directory.glob(f"*{_CONDITIONS}"))
    return [path.with_name(path.name.removesuffix(_CONDITIONS)) for path in files]


def conditions_file(folder: Path) -> Path:
    """The file with the conditions at the start of the run in `folder`."""
    return folder.with_name(folder.name + _CONDITIONS)


def recorded(folder: Path) -> Conditions | None:
    """The conditions at the start of the run in `folder`; None when they are not recorded."""
    file = conditions_file(folder)
    found: Conditions | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    return found


def refusal(runs: Iterable[dict[str, Any]]) -> str:
    """The reason why runs with `conditions` give no verdict; "" if they do. Raises SystemExit if their conditions
    differ.
    """
    return without_verdict({_named(number, run): run.get("conditions") for number, run in enumerate(runs, start=1)})


def _named(number: int, run: dict[str, Any]) -> str:
    parts = [str(run[key]) for key in ("task", "side", "method", "scheme") if key in run]
    return f"run {number} ({' '.join([*parts, 'seed', str(run.get('seed', '?'))])})"


def confirm(
    directory: Path,
    episodes: int,
    scheme: str = "",
    variables: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> Confirmation:
    """Evaluate the run's last policy on new episodes.

    scheme: its scheme; empty for the scheme of the actors. variables: see `train`. flags: more flags of `actorq
    evaluate`.
    """
    return _confirmation(_evaluated(directory, episodes, scheme, variables, flags), episodes)


def confirm_agents(
    directory: Path, episodes: int, variables: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> tuple[Confirmation, dict[str, float]]:
    """As `confirm`, and the mean return of each agent."""
    told = _evaluated(directory, episodes, "", variables, flags)
    agents = re.findall(r"^  (\S+) mean (-?[0-9.,]+)$", told, re.MULTILINE)
    return _confirmation(told, episodes), {agent: _number(mean) for agent, mean in agents}


def _evaluated(
    directory: Path, episodes: int, scheme: str, variables: Mapping[str, str] | None, flags: Sequence[str]
) -> str:
    """The output of `actorq evaluate`."""
    command = [sys.executable, *ACTORQ, "evaluate", str(directory)]
    command += ["--episodes", str(episodes), "--seed", str(CONFIRMATION_SEED), *flags]
    command += ["--scheme", scheme] if scheme else []
    return subprocess.run(command, env=_with(variables), capture_output=True, text=True, check=True).stdout


def _confirmation(told: str, episodes: int) -> Confirmation:
    mean = re.search(r"return mean (-?[0-9.,]+)", told)
    policy = re.search(r"^policy v\d+ ([\w-]+)(?:, in effect ([\w-]+))?", told, re.MULTILINE)
    assert mean is not None, told
    assert policy is not None, told
    return Confirmation(_number(mean.group(1)), episodes, policy.group(2) or policy.group(1))


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _with(variables: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, **(variables or {})}


def with_project() -> dict[str, str]:
    """Environment variables with which all processes of a run can import modules of this project's benchmarks."""
    root = str(Path(__file__).parents[1])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))}


def actor_megabytes(summary: dict[str, Any]) -> list[float]:
    """The largest resident memory of each actor of a run."""
    return [mb for name, mb in summary["peak_memory_mb"].items() if name.startswith("actor")]


def cached(file: Path, settings: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The content of `file`, or else the result of `make`, which is written there atomically with its `settings`.

    The result has the `conditions` at the run's start. Raises SystemExit when the file has other settings, or when runs
    beside it have another commit or machine.
    """
    # In the form of JSON: lists instead of tuples.
    settings, folder = json.loads(json.dumps(settings)), file.with_suffix("")
    if file.exists():
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if {name: result["settings"].get(name) for name in settings} != settings:
            raise SystemExit(f"{file} was made with other settings: move it, or use another folder")
    else:
        begin(folder)
        result = {**make(), "settings": settings}
        replace_file(file, json.dumps(result) + "\n")
    return {**result, "conditions": recorded(folder)}


def forget_incomplete(directory: Path) -> None:
    """Remove a killed run, so that `train` repeats it. Raises SystemExit while the run is active.

    Waits for processes that the run's launcher has left behind.
    """
    if not directory.exists() or (directory / "command_s.json").exists():
        return
    try:
        with RunDirectory(directory).locked(lambda: print(f"waiting for remaining processes in {directory}")):
            shutil.rmtree(directory)
            conditions_file(directory).unlink(missing_ok=True)
    except UserError as error:
        raise SystemExit(str(error)) from None


def add_task_flag(parser: argparse.ArgumentParser, form: str = "ALGORITHM/ENVIRONMENT") -> None:
    """Add --task, with patterns for `chosen`. form: of the names."""
    parser.add_argument("--task", action="append", metavar="PATTERN", help=f"{form}, shell patterns (default: *)")


def chosen(tasks: Sequence[T], patterns: Sequence[str] | None, flag: str = "--task") -> list[T]:
    """The tasks whose names match a pattern; all tasks without patterns. Raises SystemExit without a match."""
    found = [task for task in tasks if any(fnmatchcase(task.name, pattern) for pattern in patterns or ["*"])]
    if not found:
        raise SystemExit(f"{flag}: expected a pattern of {', '.join(task.name for task in tasks)}, got {patterns}")
    return found


def in_order(make: Callable[[W], dict[str, Any]], wanted: Iterable[W], jobs: int) -> Iterator[dict[str, Any]]:
    """Make the runs, `jobs` at a time, and return their results in the given order."""
    with ThreadPoolExecutor(jobs) as pool:
        runs = [pool.submit(make, one) for one in wanted]
        try:
            for future in runs:
                yield future.result()
        finally:
            # After a failure or Ctrl-C, no waiting run begins.
            pool.shutdown(wait=False, cancel_futures=True)
