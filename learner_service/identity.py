"""What a run directory says of its run: whose it is, its environment, and how long it has run."""

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actorq.config import RunConfig
from actorq.errors import UserError
from actorq.files import replace_file
from actorq.trajectory import EnvironmentSpec
from learner_service.sparsity import check_same_topology

# A learner that is back within this time was restarted: the gap belongs to the run. A longer one was a pause.
_RESTART_S = 60.0


@dataclass(frozen=True)
class RunIdentity:
    """The run of a directory.

    lives: how many learners have worked on it, this one included.
    """

    directory: Path
    run_id: str
    lives: int

    @classmethod
    def claim(cls, directory: Path, resume: bool) -> "RunIdentity":
        """Take the directory for this learner; raises UserError rather than take over another run by accident."""
        path = directory / "run.json"
        run_id, lives = uuid.uuid4().hex, 0
        if path.exists():
            if not resume:
                raise UserError(
                    f"--run-directory: {directory} holds a run already; add --resume to go on with it, or name "
                    "another one"
                )
            values = json.loads(path.read_text(encoding="utf-8"))
            run_id, lives = values["run_id"], values["lives"]
        directory.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps({"run_id": run_id, "lives": lives + 1}))
        return cls(directory, run_id, lives + 1)

    def read_environment(self) -> EnvironmentSpec | None:
        """The environment's spec, None before the first actor has told it."""
        path = self.directory / "environment.json"
        return EnvironmentSpec.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def write_environment(self, spec: EnvironmentSpec) -> None:
        """Keep the environment's spec, so that a restarted learner need not wait for an actor."""
        replace_file(self.directory / "environment.json", json.dumps(spec.to_json()))


class RunClock:
    """Seconds of a run over all lives of its learner; `beat` about once a second keeps them on disk.

    started_at: when this learner's process started, in unix seconds: importing PyTorch is part of what a run costs.
    """

    def __init__(self, directory: Path, started_at: float, clock: Callable[[], float] = time.time) -> None:
        self._path = directory / "clock.json"
        self._clock = clock
        self._since = started_at
        self._before = 0.0
        self._stopped_at: float | None = None
        if self._path.exists():
            values = json.loads(self._path.read_text(encoding="utf-8"))
            self._before = values["elapsed_s"]
            gap = started_at - values["at"]
            if not values["ended"] and 0 <= gap < _RESTART_S:
                self._since = values["at"]

    @property
    def elapsed_s(self) -> float:
        """Seconds so far."""
        if self._stopped_at is not None:
            return self._stopped_at
        return self._before + self._clock() - self._since

    def stop(self, elapsed_s: float | None = None) -> None:
        """The run is over, after `elapsed_s` seconds or now: time passes on, but not the run's."""
        self._stopped_at = self.elapsed_s if elapsed_s is None else elapsed_s
        self.beat(ended=True)

    def beat(self, ended: bool = False) -> None:
        """Note the time on disk; `ended` when what follows is a pause and no restart."""
        ended = ended or self._stopped_at is not None
        replace_file(self._path, json.dumps({"elapsed_s": self.elapsed_s, "at": self._clock(), "ended": ended}))


def check_same_run(config: RunConfig, checkpoint: Mapping[str, Any], spec: EnvironmentSpec | None) -> None:
    """Raise UserError when what is on disk is of another environment, algorithm or sparsity than `config` says.

    checkpoint: the values of the newest one, empty when there is none. spec: of the run's environment if it is known.
    """
    of_run = {name: checkpoint[name] for name in ("environment", "algorithm") if name in checkpoint}
    if spec is not None:
        of_run["environment"] = spec.environment_id
    for name, value in of_run.items():
        configured = getattr(config, name)
        if value != configured:
            raise UserError(
                f"the run's checkpoint is of {name} {value!r}, the configuration says {configured!r}; resume with "
                f"--{name} {value}, or start a new run in another --run-directory"
            )
    if checkpoint:
        check_same_topology(config, checkpoint)
