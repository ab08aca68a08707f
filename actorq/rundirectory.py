"""The directory of a run: its files, and the lock that allows only one launcher."""

import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import InvalidInputError, UserError
from actorq.statefiles.documents import copy_of, is_as_signed, read_document, read_either, sign_text, write_document
from actorq.statefiles.files import is_unused, replace_file
from actorq.statefiles.locks import PROCESSES_LOCK, locked_folder

RUNS = Path("runs")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Addresses:
    """The addresses of a run's processes, each "HOST:PORT". Actors appear once they are up."""

    learner: str
    quantizer: str
    actors: dict[str, str] = field(default_factory=dict)


class RunDirectory:
    """The files of one run. Services own the contents of `policies` and of the learner's folders."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.yaml"
        """The complete resolved configuration."""
        self.summary = root / "summary.json"
        """The outcome of the run. The learner writes it at the end."""
        self.policies = root / "policies"
        """The quantizer's store."""
        self.evaluations = root / "evaluations.jsonl"
        """The learner's log of evaluations, one JSON object on each line."""
        self.logs = root / "logs"
        """One file for each process. A restarted process appends to its file."""
        self.addresses = root / "addresses.json"

    @property
    def has_policies(self) -> bool:
        """Whether the quantizer has stored a version of the policy."""
        return self.policies.is_dir() and any(path.name.isdecimal() for path in self.policies.iterdir())

    def log(self, name: str) -> Path:
        """The log of one process."""
        return self.logs / f"{name}.log"

    def announcement(self, name: str) -> Path:
        """The file in which a process announces its address once it is up."""
        return self.root / "announced" / f"{name}.json"

    def check_unused(self) -> None:
        """Raise UserError unless a new run may be created here. A folder that contains only logs is allowed."""
        if self.root.exists() and not (self.root.is_dir() and is_unused(self.root, self.config, self.logs)):
            raise UserError(
                f"run directory {self.root} exists: give --resume to continue its run, or another --run-directory"
            )

    def create(self, config: RunConfig) -> None:
        """Create the folders and write the configuration."""
        self.check_unused()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.write_config(config)
        except OSError as error:
            raise UserError(f"run directory {self.root} cannot be created ({error.strerror})") from None

    def write_config(self, config: RunConfig) -> None:
        """Create the folders and replace the configuration and its copy. Each replacement is atomic."""
        for folder in (self.logs, self.announcement("").parent):
            folder.mkdir(exist_ok=True)
        self.record_config(config)

    def record_config(self, config: RunConfig) -> None:
        """Replace the configuration and its copy where they differ. Each replacement is atomic.

        A learner without `actorq train` does this too, so that other commands can read its run.
        """
        text = sign_text(settings.to_yaml(config))
        for path in (self.config, copy_of(self.config)):
            if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text:
                replace_file(path, text, sync=True)

    def discard(self, keep_logs: bool) -> None:
        """Remove a run that never began, so that another run can use this directory."""
        for path in self.root.iterdir():
            if path.is_dir() and not (keep_logs and path == self.logs):
                shutil.rmtree(path, ignore_errors=True)
            elif not path.is_dir():
                path.unlink(missing_ok=True)
        # The folder stays if it has logs, or is a mounted volume.
        with suppress(OSError):
            self.root.rmdir()

    def require_folder(self) -> None:
        """Raise UserError when the folder does not exist."""
        if not self.root.is_dir():
            raise UserError(f"run directory {self.root} {'is a file' if self.root.exists() else 'does not exist'}")

    def config_tree(self) -> dict[str, Any]:
        """The configuration as written. Raises UserError when the file and its copy are both damaged.

        For a damaged config.yaml, one line is logged and the copy is used.
        """
        self.require_folder()
        copy = copy_of(self.config)
        if not _is_whole(self.config) and _is_whole(copy):
            _log.warning(
                "%s is damaged or was edited by hand; its copy %s is used: pass changed settings as flags",
                *(self.config, copy.name),
            )
            return settings.from_file(copy)
        if not self.config.is_file():
            raise UserError(f"run directory {self.root} has no {self.config.name}: it is not a run")
        return settings.from_file(self.config, flag="")

    def read_environment(self) -> EnvironmentSpec:
        """The spec of the run's environment. Raises UserError if it is damaged or not yet reported by an actor."""
        path = self.root / "environment.json"
        try:
            values = read_either(path)
        except InvalidInputError as error:
            raise UserError(f"{path}: {error}, and no copy of it is whole") from None
        if values is None:
            raise UserError(f"run directory {self.root} has no {path.name}: no actor has joined the run yet")
        return EnvironmentSpec.from_json(values)

    def write_addresses(self, addresses: Addresses) -> None:
        """Publish the addresses of the run's processes for other programs."""
        write_document(self.addresses, asdict(addresses), indent=2)

    def read_addresses(self) -> Addresses:
        """The last addresses of the run's processes. Raises InvalidInputError when the file is damaged."""
        try:
            return Addresses(**read_document(self.addresses))
        except (OSError, InvalidInputError, TypeError) as error:
            raise InvalidInputError(f"{self.addresses}: expected addresses of a run ({error})") from None

    def read_announcement(self, name: str) -> str | None:
        """The address that a process announced; None before its announcement."""
        try:
            return str(json.loads(self.announcement(name).read_text(encoding="utf-8"))["address"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def summary_written_ns(self) -> int:
        """Time of the summary's last write in ns; 0 when there is no summary."""
        return _written_at(self.summary)

    def read_summary(self) -> dict[str, Any]:
        """The learner's summary at the end of the run; empty when it is missing or damaged."""
        try:
            return read_document(self.summary)
        except (OSError, InvalidInputError):
            return {}

    @property
    def is_in_use(self) -> bool:
        """Whether the run's launcher or one of its processes is alive."""
        try:
            shared = os.open(self.root / PROCESSES_LOCK, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(shared, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(shared)
        return False

    def locked(self, on_wait: Callable[[], None]) -> AbstractContextManager[int]:
        """Hold the lock of this run's only launcher. Yields a descriptor that the run's processes inherit.

        After a launcher was killed, this waits until its processes have ended. Two learners therefore never write to
        one run. Raises UserError while another launcher is alive.
        """
        return locked_folder(self.root, on_wait, f"run directory {self.root} is in use by another actorq train")


def new_run_directory(environment: str, now: datetime, runs: Path = RUNS) -> RunDirectory:
    """An unused directory that is named after the environment and the time."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", environment).strip("-.") or "run"
    stem = f"{name}-{now:%Y%m%d-%H%M%S}"
    candidates = chain([runs / stem], (runs / f"{stem}-{number}" for number in count(2)))
    return RunDirectory(next(candidate for candidate in candidates if not candidate.exists()))


def newest_run(runs: Path = RUNS) -> RunDirectory:
    """The active run with the newest addresses. Raises UserError when no run is active.

    The addresses of a killed launcher remain. Another run may use those ports by now.
    """
    written = {run: _written_at(run.addresses) for run in map(RunDirectory, runs.glob("*")) if run.is_in_use}
    found = max((run for run in written if written[run]), key=written.__getitem__, default=None)
    if found is None:
        raise UserError(f"no run is active under {runs}/: give --learner HOST:PORT for a run elsewhere")
    return found


def _written_at(path: Path) -> int:
    """Time of a file's last write in ns; 0 when there is no such file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _is_whole(path: Path) -> bool:
    return path.is_file() and is_as_signed(path.read_bytes())
