"""Stores the evaluations of a run on the disk before they are acknowledged."""

import logging
import os
import threading
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from actorq.domain.trajectory import Evaluation
from actorq.errors import InvalidInputError
from actorq.statefiles.documents import read_document, write_document
from actorq.statefiles.files import append_whole, sync_folder
from actorq.statefiles.lines import encode_line, read_lines
from learner_service.actors.members import Member
from learner_service.replay import LastSequences, SegmentSource

_CURVE_POINTS = 10_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """An evaluation, with the progress of the run at its arrival. wall_clock_s: since the start of the run."""

    evaluator: str
    incarnation: int
    environment_steps: int
    wall_clock_s: float
    evaluation: Evaluation

    def point(self) -> dict[str, Any]:
        """One point of the learning curve, for the summary."""
        return {
            "environment_steps": self.environment_steps,
            "updates": self.evaluation.learner_step,
            "wall_clock_s": round(self.wall_clock_s, 3),
            "policy_version": self.evaluation.policy_version,
            "scheme": self.evaluation.scheme,
            "mean_return": self.evaluation.mean_return,
            **({} if self.evaluation.success_rate is None else {"success_rate": self.evaluation.success_rate}),
            **({"agent_returns": self.evaluation.mean_agent_returns} if self.evaluation.agents else {}),
        }


class EvaluationLog:
    """A file with one JSON object per line. It survives a killed process, and after `sync` also a power cut.

    When the log is opened, damaged lines move to the file NAME.damaged in the same folder. The other lines are used.
    Another file keeps the number of synced lines, to detect a log that was truncated between two lines.

    One thread appends. All other threads may read meanwhile, and never wait for the disk.
    count: evaluations so far. newest: None before the first.
    """

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._curve: deque[dict[str, Any]] = deque(maxlen=_CURVE_POINTS)
        self.newest: Evaluation | None = None
        self.sequences = LastSequences()
        """The last stored sequence of each evaluator."""
        self._path = path
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        damaged = self._read(path) if path.exists() else 0
        self._file = path.open("ab", buffering=0)
        os.fsync(self._file.fileno())
        sync_folder(path.parent)
        self._check_count(self.count + damaged)
        self._synced = self.count
        self.durable_sequences = self.sequences.as_dict()
        """`Member.source_key` -> last sequence that the last `sync` has flushed."""

    @property
    def curve(self) -> tuple[dict[str, Any], ...]:
        """One point for each of the last 10,000 evaluations."""
        with self._lock:
            return tuple(self._curve)

    def append(self, member: Member, evaluation: Evaluation, environment_steps: int, wall_clock_s: float) -> bool:
        """Write an evaluation; False for a duplicate. Raises OSError, and writes nothing, when the disk is full."""
        if evaluation.sequence <= self.sequences.last(*member.source_key):
            return False
        entry = Entry(member.name, member.incarnation, environment_steps, wall_clock_s, evaluation)
        with self._writing:
            append_whole(self._file, encode_line(asdict(entry)))
        self._record(entry)
        return True

    def sync(self) -> None:
        """Block until all evaluations are on the disk. Another thread may append meanwhile."""
        with self._writing:
            if self._synced != (count := self.count):
                last = self.sequences.as_dict()
                os.fsync(self._file.fileno())
                self._write_count(count)
                self._synced, self.durable_sequences = count, last

    def set_aside(self, folder: Path) -> None:
        """Move the file into `folder` and start a new file. Keeps only the sequences."""
        with self._writing:
            self._write_count(0)
            self._path.rename(folder / self._path.name)
            earlier, self._file = self._file, self._path.open("ab", buffering=0)
            earlier.close()
        with self._lock:
            self._curve.clear()
        self.count = self._synced = 0
        self.newest = None

    def close(self) -> None:
        """Sync and close the file. If the disk refuses, raises OSError after closing the file."""
        try:
            self.sync()
        finally:
            self._file.close()

    def _write_count(self, count: int) -> None:
        write_document(count_file(self._path), {"count": count})

    def _check_count(self, found: int) -> None:
        synced: int | None = None
        try:
            synced = synced_count(self._path)
        except InvalidInputError as error:
            _log.warning("%s; it is written again", error)
        if synced is not None and synced > found:
            _log.warning("%s: %d evaluations are missing at its end", self._path.name, synced - found)
        if synced != self.count:
            self._write_count(self.count)

    def _read(self, path: Path) -> int:
        """Read the undamaged lines. Returns the number of damaged lines."""
        whole, damaged = 0, 0
        for line, values in read_lines(path):
            if values is None:
                damaged += 1
            else:
                whole += len(line) + 1
                self._record(_from_json(values))
        if whole != path.stat().st_size:
            aside = _set_damaged_lines_aside(path)
            _log.warning("%s: %d damaged lines moved to %s, %d are whole", path.name, damaged, aside.name, self.count)
        return damaged

    def _record(self, entry: Entry) -> None:
        with self._lock:
            self._curve.append(entry.point())
        self.count += 1
        self.newest = entry.evaluation
        self.sequences.advance(SegmentSource.from_name(entry.evaluator, entry.incarnation, entry.evaluation.sequence))


def count_file(path: Path) -> Path:
    """The file with the number of synced lines of the log at `path`."""
    return path.with_name(f"{path.stem}.count.json")


def synced_count(path: Path) -> int:
    """Number of lines of the log at `path` at its last sync. Raises InvalidInputError when its file is damaged."""
    try:
        return int(read_document(count_file(path))["count"])
    except FileNotFoundError:
        return 0


def _set_damaged_lines_aside(path: Path) -> Path:
    """Move all damaged lines to the end of another file. Returns the path of the other file."""
    aside, partial = path.with_name(f"{path.name}.damaged"), path.with_name(f".{path.name}.partial")
    # The log is read line by line, because it may be larger than the memory.
    with aside.open("ab") as damaged, partial.open("wb") as whole:
        for line, values in read_lines(path):
            (damaged if values is None else whole).write(line + b"\n")
        for file in (damaged, whole):
            file.flush()
            os.fsync(file.fileno())
    partial.replace(path)
    sync_folder(path.parent)
    return aside


def _from_json(values: dict[str, Any]) -> Entry:
    evaluation = values["evaluation"]
    # Older lines have neither successes nor agents.
    sequences = {
        name: tuple(evaluation.get(name, ())) for name in ("returns", "lengths", "successes", "agents", "agent_returns")
    }
    return Entry(**{**values, "evaluation": Evaluation(**{**evaluation, **sequences})})
