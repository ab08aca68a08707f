"""Keeps the outcome of a run and the operators' commands on disk, for a restarted learner."""

import logging
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actorq.config.run_config import RunConfig
from actorq.domain.status import RunState
from actorq.errors import InvalidInputError, UnavailableError
from actorq.statefiles.documents import read_either, remove_both, write_twice
from learner_service.files import COMMANDS

_NAME = "outcome.json"
# Settings that decide when a run is over.
_ENDS = ("target_return", "target_success", "max_environment_steps", "max_seconds", "max_updates")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """The final state of a run, its seconds, its exported policy's URL, and the settings that decided its end."""

    state: RunState
    elapsed_s: float
    target_return: float | None
    max_environment_steps: int
    policy: str = ""
    max_seconds: float | None = None
    target_success: float | None = None
    max_updates: int = RunConfig.model_fields["max_updates"].default

    @classmethod
    def of(cls, state: RunState, elapsed_s: float, config: RunConfig, policy: str = "") -> "Outcome":
        """The outcome of a run with this configuration."""
        ends = {name: getattr(config, name) for name in _ENDS}
        return cls(state=state, elapsed_s=elapsed_s, policy=policy, **ends)

    @classmethod
    def read(cls, directory: Path) -> "Outcome | None":
        """Read the outcome; None when the run is not over, or when the files are damaged, which is logged."""
        try:
            values: dict[str, Any] | None = read_either(directory / _NAME)
        except InvalidInputError as error:
            _log.error("%s, and no copy of it is whole: the run continues as if it were not over", error)
            return None
        return None if values is None else cls(**{**values, "state": RunState(values["state"])})

    @staticmethod
    def forget(directory: Path) -> None:
        """Remove the outcome, because the run continues."""
        remove_both(directory / _NAME)

    def write(self, directory: Path) -> None:
        """Write the outcome, and block until it survives a power cut."""
        values = {**asdict(self), "state": self.state.value}
        for name in ("max_seconds", "target_success"):
            if values[name] is None:
                # Outcomes written before this setting lack it.
                del values[name]
        write_twice(directory / _NAME, values)

    def holds_for(self, config: RunConfig) -> bool:
        """Whether a run with this configuration is over: its target and budget have not changed."""
        return all(getattr(self, name) == getattr(config, name) for name in _ENDS)


class Commands:
    """Whether a run is paused, and whether it should end. Thread-safe; writes wait for the disk."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / COMMANDS
        self._lock = threading.Lock()
        try:
            values = read_either(self._path) or {}
        except InvalidInputError as error:
            _log.error(
                "%s, and no copy of it is whole: the run continues as if no operator had paused or ended it", error
            )
            values = {}
        self.paused = values.get("paused") is True
        self.stopped = values.get("stopped") is True

    def write(self, *, paused: bool | None = None, stopped: bool | None = None) -> None:
        """Store a command. Raises UnavailableError, and changes nothing, when the disk refuses."""
        with self._lock:
            paused = self.paused if paused is None else paused
            stopped = self.stopped if stopped is None else stopped
            if (paused, stopped) == (self.paused, self.stopped):
                return
            try:
                write_twice(self._path, {"paused": paused, "stopped": stopped})
            except OSError as error:
                raise UnavailableError(f"the command cannot be written ({error.strerror}): try again") from error
            self.paused, self.stopped = paused, stopped
