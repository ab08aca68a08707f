"""A run on disk: which files it has, and that only one launcher works on it."""

import fcntl
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.trajectory import EnvironmentSpec
from actorq.errors import InvalidInputError, UserError
from actorq.statefiles.documents import copy_of, is_as_signed, read_document, read_either, sign_text, write_document
from actorq.statefiles.files import replace_file

RUNS = Path("runs")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Addresses:
    """Where the processes of a run serve, each "HOST:PORT"; actors are there once they are up."""

    learner: str
    quantizer: str
    actors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run. Services own what is in `policies` and in the learner's own folders."""

    root: Path

    @property
    def config(self) -> Path:
        """The whole resolved configuration."""
        return self.root / "config.yaml"

    @property
    def summary(self) -> Path:
        """What came of the run, written by the learner at its end."""
        return self.root / "summary.json"

    @property
    def policies(self) -> Path:
        """The quantizer's store."""
        return self.root / "policies"

    @property
    def evaluations(self) -> Path:
        """The learner's log of evaluations, one JSON object on each line."""
        return self.root / "evaluations.jsonl"

    @property
    def logs(self) -> Path:
        """One file per process, appended to in each of its lives."""
        return self.root / "logs"

    @property
    def addresses(self) -> Path:
        """Where the processes serve."""
        return self.root / "addresses.json"

    def log(self, name: str) -> Path:
        """The log of one process."""
        return self.logs / f"{name}.log"

    def announcement(self, name: str) -> Path:
        """The file in which a process tells its address once it is up."""
        return self.root / "announced" / f"{name}.json"

    def check_unused(self) -> None:
        """Raise UserError unless a new run may be created here; an empty folder is fine."""
        if self.root.is_dir() and not any(self.root.iterdir()):
            return
        if self.root.exists():
            raise UserError(
                f"run directory {self.root} exists: pass --resume to go on with its run, or another --run-directory"
            )

    def create(self, config: RunConfig) -> None:
        """Make the folders and write the configuration."""
        self.check_unused()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.write_config(config)
        except OSError as error:
            raise UserError(f"run directory {self.root} cannot be made ({error.strerror})") from None

    def write_config(self, config: RunConfig) -> None:
        """Write the configuration and a copy in place of what there is, each whole or not at all; make the folders."""
        for folder in (self.logs, self.announcement("").parent):
            folder.mkdir(exist_ok=True)
        for path in (self.config, copy_of(self.config)):
            replace_file(path, sign_text(settings.to_yaml(config)), sync=True)

    def config_tree(self) -> dict[str, Any]:
        """The configuration as it was written; raises UserError when there is none, or no whole one.

        A damaged config.yaml is told in one line; then the copy counts.
        """
        if not self.root.is_dir():
            raise UserError(f"run directory {self.root} does not exist")
        copy = copy_of(self.config)
        if not _is_whole(self.config) and _is_whole(copy):
            _log.warning(
                "%s is damaged or was edited by hand; its copy %s is used: give changed settings as flags",
                *(self.config, copy.name),
            )
            return settings.from_file(copy)
        if not self.config.is_file():
            raise UserError(f"run directory {self.root} has no {self.config.name}: it is no run")
        try:
            return settings.from_file(self.config)
        except UserError as error:
            raise UserError(str(error).removeprefix("--config: ")) from None

    def read_environment(self) -> EnvironmentSpec:
        """The spec of the run's environment; raises UserError before an actor has told it, and for a damaged file."""
        path = self.root / "environment.json"
        try:
            values = read_either(path)
        except InvalidInputError as error:
            raise UserError(f"{path}: {error}, and no copy of it is whole") from None
        if values is None:
            raise UserError(f"run directory {self.root} has no {path.name}: no actor has joined the run yet")
        return EnvironmentSpec.from_json(values)

    def write_addresses(self, addresses: Addresses) -> None:
        """Tell other programs where the run's processes are."""
        write_document(self.addresses, asdict(addresses), indent=2)

    def read_addresses(self) -> Addresses:
        """Where the run's processes are, or were; raises InvalidInputError when the file is not what was written."""
        try:
            return Addresses(**read_document(self.addresses))
        except (OSError, InvalidInputError, TypeError) as error:
            raise InvalidInputError(f"{self.addresses}: no addresses of a run can be read ({error})") from None

    def read_announcement(self, name: str) -> str | None:
        """The address that a process announced; None before it did."""
        try:
            return str(json.loads(self.announcement(name).read_text(encoding="utf-8"))["address"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def summary_written_ns(self) -> int:
        """When the summary was written; 0 when there is none."""
        try:
            return self.summary.stat().st_mtime_ns
        except OSError:
            return 0

    def read_summary(self) -> dict[str, Any]:
        """What the learner wrote at the end of the run; empty when there is no summary, or a damaged one."""
        try:
            return read_document(self.summary)
        except (OSError, InvalidInputError):
            return {}

    @property
    def is_in_use(self) -> bool:
        """Whether the launcher of the run or one of its processes lives."""
        try:
            shared = os.open(self.root / "processes.lock", os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(shared, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(shared)
        return False

    @contextmanager
    def locked(self, on_wait: Callable[[], None]) -> Iterator[int]:
        """Be the only launcher on this run; yields a descriptor that its processes inherit.

        The kernel lets go of both locks when their holders are gone, however they went. The first one is the
        launcher's own. The second is inherited: when a launcher was killed, the next waits here until the processes
        that it left have ended, so that two learners never write to one run; `on_wait` is called before that wait.
        """
        own, shared = (_open_lock(self.root / name) for name in ("launcher.lock", "processes.lock"))
        try:
            try:
                fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"run directory {self.root} is in use by another actorq train") from None
            try:
                fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(shared, fcntl.LOCK_EX)
            yield shared
        finally:
            os.close(own)
            os.close(shared)


def new_run_directory(environment: str, now: datetime, runs: Path = RUNS) -> RunDirectory:
    """An unused directory that is named after the environment and the time."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", environment).strip("-.") or "run"
    stem = f"{name}-{now:%Y%m%d-%H%M%S}"
    candidate, number = runs / stem, 1
    while candidate.exists():
        number += 1
        candidate = runs / f"{stem}-{number}"
    return RunDirectory(candidate)


def newest_run(runs: Path = RUNS) -> RunDirectory:
    """The run going on whose addresses were written last; raises UserError when there is none."""
    found = sorted(runs.glob("*/addresses.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UserError(f"no run is going on under {runs}/: pass --learner HOST:PORT for one elsewhere")
    return RunDirectory(found[-1].parent)


def _is_whole(path: Path) -> bool:
    return path.is_file() and is_as_signed(path.read_bytes())


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
