"""The files that identify a run: its id, its environment, and its time so far."""

import logging
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorq.config.run_config import RunConfig
from actorq.domain.environments import EnvironmentArguments
from actorq.domain.lineage import MAX_LINEAGE, UNCHECKED, Lineage, unique_number
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import InvalidInputError, UserError
from actorq.statefiles.documents import copy_of, read_document, read_either, write_document, write_twice
from actorq.statefiles.locks import WriterLock
from learner_service.sparsity import check_same_topology

# A gap up to this length is a restart and counts as the run's time. A longer gap is a pause.
_RESTART_S = 60.0
_OF_TRANSITIONS = ("first_transition_s", "last_transition_s")

_log = logging.getLogger(__name__)


def steady_clock() -> Callable[[], float]:
    """A clock of Unix seconds that continues evenly when the machine's clock is changed."""
    # Read here and not at import: a fork server imports this module long before, perhaps before a suspension.
    epoch = time.time() - time.monotonic()
    return lambda: epoch + time.monotonic()


@dataclass
class RunIdentity:
    """The run in a directory.

    lives: number of learner processes of the run, this one included. resets: number of resets of its environment.
    process: number of this learner process, higher than all earlier numbers, also after a restored snapshot.
    lineage: distinguishes this learner from learners of other copies of the folder.
    """

    directory: Path
    run_id: str
    lives: int
    resets: int = 0
    process: int = 0
    lineage: Lineage = UNCHECKED

    @classmethod
    def read(cls, directory: Path, resume: bool) -> "RunIdentity":
        """The identity of a learner of this directory. `write` stores it.

        Raises UserError when the directory holds a run and `resume` is false, or when its files are damaged.
        """
        path = directory / "run.json"
        directory.mkdir(parents=True, exist_ok=True)
        if not resume and (path.exists() or copy_of(path).exists()):
            raise UserError(
                f"--run-directory: {directory} holds a run already; add --resume to continue it, "
                "or choose another directory"
            )
        values = read_run_file(directory) or {"run_id": uuid.uuid4().hex, "lives": 0}
        processes = (*values.get("lineage", ()), secrets.randbits(64))[-MAX_LINEAGE:]
        # Older files lack the number of the process, which was equal to the life.
        process = unique_number(values.get("process", values["lives"]))
        return cls(
            *(directory, values["run_id"], values["lives"] + 1, values.get("resets", 0)),
            *(process, Lineage(values.get("epoch", 0), processes)),
        )

    def count_reset(self) -> None:
        """Count a reset, before files are set aside. Older copies of checkpoints are then no longer used."""
        self.resets += 1
        self.write()

    def write(self) -> None:
        """Write the identity, and block until it survives a power cut."""
        values = {name: getattr(self, name) for name in ("run_id", "lives", "resets", "process")}
        lineage = {"epoch": self.lineage.epoch, "lineage": self.lineage.processes}
        write_twice(self.directory / "run.json", values | lineage)

    def read_environment(self) -> EnvironmentSpec | None:
        """The environment's spec; None before the first actor, or when the files are damaged, which is logged."""
        try:
            values = read_either(self.directory / "environment.json")
        except InvalidInputError as error:
            _log.error("%s, and no copy of it is whole: the next actor provides the environment", error)
            return None
        return None if values is None else EnvironmentSpec.from_json(values)

    def write_environment(self, spec: EnvironmentSpec) -> None:
        """Write the environment's spec, so that a restarted learner does not wait for an actor."""
        write_twice(self.directory / "environment.json", spec.to_json())


def locked(directory: Path) -> WriterLock:
    """The right to continue the run in this folder. Raises UserError."""
    taken = UserError(
        f"--run-directory: {directory} is in use by another learner; stop it, or give this run its own folder"
    )
    try:
        return WriterLock(directory, "learner.lock", taken)
    except OSError as error:
        raise UserError(f"--run-directory: {directory} cannot be created or locked: {error.strerror}") from None


def read_run_file(directory: Path) -> dict[str, Any] | None:
    """The values of a run's identity as written; None without a run. Raises UserError when its files are damaged."""
    try:
        return read_either(directory / "run.json")
    except InvalidInputError as error:
        raise UserError(
            f"--run-directory: {directory}: {error}, and no copy of it is whole; restore one of the two from a "
            "backup, or choose another folder to start a new run"
        ) from None


class RunClock:
    """Counts the seconds of a run over all lives of its learner. Thread-safe. Call `beat` about once a second.

    started_at: start of this learner's process in unix seconds, because the import of PyTorch is part of a run's time.
    known_s: known seconds of the run. The clock continues from there when its file is damaged or missing.
    """

    def __init__(
        self, directory: Path, started_at: float, clock: Callable[[], float] | None = None, known_s: float = 0.0
    ) -> None:
        self._path = directory / "clock.json"
        self._clock = clock or steady_clock()
        self._since = started_at
        self._before = known_s
        self._stopped_at: float | None = None
        self.first_transition_s: float | None = None
        self.last_transition_s: float | None = None
        """Seconds of the run when transitions were first and last stored; None before."""
        self._lock = threading.Lock()
        try:
            values = read_document(self._path)
        except FileNotFoundError:
            return
        except InvalidInputError as error:
            _log.warning("%s; the run's time continues at %.0f s, the newest known time", error, known_s)
            return
        self._before = values["elapsed_s"]
        # Older files lack these.
        self.first_transition_s, self.last_transition_s = map(values.get, _OF_TRANSITIONS)
        if not values["ended"] and 0 <= started_at - values["at"] < _RESTART_S:
            self._since = values["at"]

    @property
    def elapsed_s(self) -> float:
        """Seconds so far."""
        if self._stopped_at is not None:
            return self._stopped_at
        return self._before + self._clock() - self._since

    def record_transitions(self) -> None:
        """Record that transitions were stored now."""
        self.last_transition_s = self.elapsed_s
        if self.first_transition_s is None:
            self.first_transition_s = self.last_transition_s

    def stop(self, elapsed_s: float | None = None) -> None:
        """Stop the run's time, at `elapsed_s` seconds or now."""
        self._stopped_at = self.elapsed_s if elapsed_s is None else elapsed_s
        self.beat(ended=True)

    def beat(self, ended: bool = False) -> None:
        """Write the time, and block until it is on the disk. ended: whether a pause follows, not a restart."""
        with self._lock:
            ended = ended or self._stopped_at is not None
            values = {"elapsed_s": self.elapsed_s, "at": self._clock(), "ended": ended}
            write_document(self._path, values | {name: getattr(self, name) for name in _OF_TRANSITIONS})


def check_same_run(config: RunConfig, checkpoint: Mapping[str, Any], spec: EnvironmentSpec | None) -> None:
    """Raise UserError if `config` does not match a checkpoint's values (empty without one) or the run's known spec."""
    of_run = {name: checkpoint[name] for name in ("environment", "algorithm") if name in checkpoint}
    arguments = EnvironmentArguments.from_text(checkpoint.get("environment_arguments", "")) if checkpoint else None
    if spec is not None:
        of_run["environment"], arguments = spec.environment_id, spec.environment_arguments
    of_run |= checkpoint.get("horizon", {})
    settings = {"environment": config.environment, "algorithm": config.algorithm, **config.horizon}
    for name, value in of_run.items():
        if (configured := settings.get(name)) != value:
            raise UserError(
                f"the run's checkpoint has {name} {value!r}, but the configuration has {configured!r}; resume with "
                f"--{name.replace('_', '-')} {value}, or start a new run in another --run-directory"
            )
    if arguments not in (None, config.environment_arguments):
        raise UserError(
            f"the run's environment was made with {arguments}, the configuration says {config.environment_arguments}; "
            "resume with the same --environment-args, --environment-wrappers and --critic-leaves, or start a new run "
            "in another --run-directory"
        )
    if checkpoint:
        check_same_topology(config, checkpoint)
