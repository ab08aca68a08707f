"""How a run ended, on disk, so that a restarted learner neither trains it further nor forgets how long it took."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actorq.config import RunConfig
from actorq.errors import UserError
from actorq.files import replace_file
from actorq.status import RunState

_NAME = "outcome.json"


@dataclass(frozen=True)
class Outcome:
    """The final state of a run, its seconds, and the settings that decide when it ends, as they were configured."""

    state: RunState
    elapsed_s: float
    target_return: float | None
    max_environment_steps: int

    @classmethod
    def of(cls, state: RunState, elapsed_s: float, config: RunConfig) -> "Outcome":
        """The outcome of a run with this configuration."""
        return cls(state, elapsed_s, config.target_return, config.max_environment_steps)

    @classmethod
    def read(cls, directory: Path) -> "Outcome | None":
        """What the directory says, None when its run is not over; raises UserError when that cannot be told."""
        path = directory / _NAME
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**values, "state": RunState(values["state"])})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read ({error}); delete it to go on with the run") from None

    @staticmethod
    def forget(directory: Path) -> None:
        """The run goes on."""
        (directory / _NAME).unlink(missing_ok=True)

    def write(self, directory: Path) -> None:
        """Put it on the disk; returns when it would outlive a power failure."""
        replace_file(directory / _NAME, json.dumps({**asdict(self), "state": self.state.value}), sync=True)

    def holds_for(self, config: RunConfig) -> bool:
        """Whether a run with this configuration is over: not if the target or the budget was changed since."""
        return (self.target_return, self.max_environment_steps) == (config.target_return, config.max_environment_steps)
