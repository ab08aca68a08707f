"""Writes scalars to an event file, which TensorBoard reads."""

import io
import os
import socket
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from actorq.statefiles.files import append_whole
from actorq.statefiles.tolerance import Tolerated


class EventFile:
    """A sink of scalars. On a full disk events are lost, but the file stays whole. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: io.FileIO | None = None
        self._lock = threading.Lock()
        self._writes = Tolerated(f"{directory.name}: the event file")

    def add(self, scalars: Mapping[str, float], step: int, wall_time: float) -> None:
        """Write scalars of an environment step. wall_time: unix seconds."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        event = Event(wall_time=wall_time, step=step, summary=Summary(value=values))
        with self._lock:
            self._writes.attempt(lambda: self._append(event))

    def close(self, summary: Mapping[str, Any] | None = None) -> None:
        """Close the file. Further scalars would begin another one."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _append(self, event: Event) -> None:
        if self._file is None:
            self._file = self._begin(event.wall_time)
        append_whole(self._file, _record(event))

    def _begin(self, wall_time: float) -> io.FileIO:
        self._directory.mkdir(parents=True, exist_ok=True)
        host, number = socket.gethostname(), uuid.uuid4().hex[:8]
        path = self._directory / f"events.out.tfevents.{int(wall_time):010d}.{host}.{os.getpid()}.{number}"
        file = io.FileIO(path, "ab")
        try:
            append_whole(file, _record(Event(wall_time=wall_time, file_version="brain.Event:2")))
        except OSError:
            file.close()
            path.unlink()
            raise
        return file


def _record(event: Event) -> bytes:
    """The event in the framing of TensorBoard's files: length, content, and checksums of both."""
    buffer = io.BytesIO()
    RecordWriter(buffer).write(event.SerializeToString())
    return buffer.getvalue()
