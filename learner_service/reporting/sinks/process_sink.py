"""Sends a run's scalars to an experiment tracker without waiting for it."""

import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from actorq.config.algorithms import ALGORITHMS
from actorq.config.run_config import RunConfig
from actorq.extras import require
from learner_service.reporting.sinks.serving import Start, flat

# Maximum number of rows that wait for a slow tracker. A run has about three rows a second.
_WAITING_ROWS = 4_096
# Time for a tracker to receive the last rows when a run is over or its learner leaves.
_PATIENCE_S = 10.0
# Without these settings, MLflow sends usage data to its makers and refuses folders.
_DEFAULTS = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class ProcessSink:
    """A sink of scalars: a process that takes lines of JSON, a bounded queue, and a thread that writes.

    The process starts with the first scalars. It is a separate program and not a fork, because the learner has gRPC's
    threads. It ends when its standard input closes. When it fails, the reason is logged once, and the run continues.
    kind: mlflow or wandb. patience_s: longest duration of `close`.
    """

    kind: str
    first: Start
    patience_s: float

    def __post_init__(self) -> None:
        self._rows: queue.Queue[Mapping[str, Any] | None] = queue.Queue(_WAITING_ROWS)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = self._late = False
        self._thread = threading.Thread(target=self._write, name=f"sink-{self.kind}", daemon=True)
        self._thread.start()

    def add(self, scalars: Mapping[str, float], step: int, wall_time: float) -> None:
        """Queue the scalars of an environment step, or drop them when the queue is full. wall_time: unix seconds."""
        if self._ended:
            return
        try:
            self._rows.put_nowait({"scalars": scalars, "step": step, "wall_time": wall_time})
        except queue.Full:
            if not self._late:
                _log.warning("%s is slower than the run: some of its scalars are dropped", self.kind)
            self._late = True

    def close(self, summary: Mapping[str, Any] | None = None) -> None:
        """Send the summary, and end the process. summary: None if the run has failed."""
        if self._ended:
            return
        self._ended = True
        deadline = time.monotonic() + self.patience_s
        with suppress(queue.Full):
            for last in ({"summary": summary}, None) if summary else (None,):
                self._rows.put(last, timeout=max(0.0, deadline - time.monotonic()))
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive() and self._process is not None:
            _log.warning("%s did not accept the last scalars within %.0f s", self.kind, self.patience_s)
            self._process.kill()

    def _write(self) -> None:
        try:
            reason = self._serve()
        except OSError as error:
            reason = error.strerror or str(error)
        if reason:
            _log.warning("the run continues without %s: %s", self.kind, reason)
        self._ended = True

    def _serve(self) -> str:
        """Write rows until the end of the queue or of the process.

        Returns the reason of a failure, otherwise an empty text.
        """
        row = self._rows.get()
        if row is None:
            return ""
        command = [sys.executable, "-m", f"{__package__}.{self.kind}_sink"]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**_DEFAULTS, **os.environ},
        ) as process:
            self._process = process
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                with process.stdin:
                    self._send(process.stdin, asdict(self.first))
                    while row is not None:
                        self._send(process.stdin, row)
                        row = self._rows.get()
            except BrokenPipeError:
                pass
            reason = process.stdout.read().decode("utf-8", "replace").strip()
        return reason or (f"its process ended with {process.returncode}" if process.returncode else "")

    def _send(self, pipe: IO[bytes], row: Mapping[str, Any]) -> None:
        pipe.write(json.dumps(row, default=str).encode() + b"\n")
        pipe.flush()


def process_sinks(
    config: RunConfig, run_id: str, directory: Path, patience_s: float = _PATIENCE_S
) -> Iterator[ProcessSink]:
    """The sinks that the settings name. Raises UserError when a package is missing."""
    # Settings of other algorithms are left out. Trackers' addresses are also left out, because they may contain
    # passwords.
    others = {"telemetry", *ALGORITHMS} - {config.algorithm}
    settings = {name: value for name, value in config.model_dump(mode="json").items() if name not in others}
    parameters = dict(flat(settings, "."))
    for kind, target in (("mlflow", config.telemetry.mlflow), ("wandb", config.telemetry.wandb)):
        if target is None:
            continue
        require(f"--telemetry.{kind}", [kind])
        name = f"{config.environment} {config.algorithm} {run_id[:8]}"
        yield ProcessSink(kind, Start(target, run_id, name, str(directory), parameters), patience_s)
