"""Keeps the outcome of a run on disk, so that a restarted learner knows that the run is over, and its time."""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actorq.config.run_config import RunConfig
from actorq.domain.status import RunState
from actorq.errors import InvalidInputError
from actorq.statefiles.documents import read_either, remove_both, write_twice

_NAME = "outcome.json"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """The final state of a run, its seconds, and the settings that decided its end.

    policy: URL of the exported policy; empty without one.
    """

    state: RunState
    elapsed_s: float
    target_return: float | None
    max_environment_steps: int
    policy: str = ""

    @classmethod
    def of(cls, state: RunState, elapsed_s: float, config: RunConfig, policy: str = "") -> "Outcome":
        """The outcome of a run with this configuration."""
        return cls(state, elapsed_s, config.target_return, config.max_environment_steps, policy)

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
        write_twice(directory / _NAME, {**asdict(self), "state": self.state.value})

    def holds_for(self, config: RunConfig) -> bool:
        """Whether a run with this configuration is over: its target and budget have not changed."""
        return (self.target_return, self.max_environment_steps) == (config.target_return, config.max_environment_steps)
