"""The replay store: a columnar ring of transitions in memory-mapped files that survives the death of its process.

An insert has three steps. (1) It evicts all segments whose rows it will overwrite. To do so, it advances the tail of
the segment directory past them and then clears their flags. `LiveSegments.drop_oldest` is this step alone. (2) It
writes the rows. (3) It appends the segment's record with its CRC to the directory. This is the commit.

SIGKILL is harmless at any instruction. The mappings are shared, so a later open sees every store instruction before the
kill in the kernel's page cache. After a kill in step 1, a segment is either live with its rows untouched, or evicted.
After a kill in step 2 or 3, the rows have no record with a right CRC. Reopening clears the flags of all rows without a
live record. No segment is stored twice, because the sequence numbers come from the same records and from
`sequences.json`. That file is replaced before a record that it does not cover could be overwritten. `recovery` covers
power cuts and damage.

Disk space is allocated before rows are written, so no store instruction can fail.
"""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from actorq.domain.columns import Array, columns_of, own_columns
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Segment
from actorq.errors import ConflictError, ExhaustedError, InvalidInputError, UnavailableError, UserError
from actorq.statefiles.locks import WriterLock
from learner_service.replay.storage.columns import MAX_AGE, Columns, open_columns
from learner_service.replay.storage.description import write_description
from learner_service.replay.storage.directory import Record, SegmentDirectory
from learner_service.replay.storage.durability import Durability
from learner_service.replay.storage.live_segments import LiveSegments
from learner_service.replay.storage.mapped_files import Machine, this_boot
from learner_service.replay.storage.recovery import CHECKED_AT_ONCE_BYTES, Recovered, recover
from learner_service.replay.storage.rows import RowWriter, segment_rows
from learner_service.replay.storage.sequences import LastSequences, SegmentSource

_log = logging.getLogger(__name__)

# Disk space is allocated in pieces of about this many bytes.
_AHEAD_BYTES = 2**24
_MIN_CAPACITY = 4
_MIN_SEGMENTS = 64
# The length has this upper bound, because some segments are shorter than planned, for example when an actor ends.
_MOST_ROWS_PER_SEGMENT = 16


@dataclass(frozen=True, slots=True)
class Inserted:
    """The result of an insert: the written rows [start, stop), and the evicted row ranges."""

    start: int
    stop: int
    evicted: tuple[tuple[int, int], ...]


class ReplayStore:
    """The ring of transitions. Not thread-safe: `ReplayBuffer` holds a lock around every call except `durability.sync`.

    The columns are views of the files; see `Columns`. Callers may write to `priorities` only.

    segments: the segments that are stored now. directory: their records. sequences: the last sequence of each actor.
    durability: flushes the files. machine: functions of the machine that the store uses.
    capacity: rows of the ring. Bootstrap observations and resets use rows too.
    nbytes: bytes of address space. Once the ring is full, also bytes of disk and page cache.
    """

    def __init__(
        self,
        path: Path,
        spec: EnvironmentSpec,
        columns: Columns,
        directory: SegmentDirectory,
        lock: WriterLock | None,
        machine: Machine,
    ) -> None:
        self.spec = spec
        self.path = path
        self.machine = machine
        self.observations = columns.observations
        self.actions = columns.actions
        self.rewards = columns.rewards
        self.flags = columns.flags
        self.policy_versions = columns.policy_versions
        self.ages = columns.ages
        self.priorities = columns.priorities
        self.further, self.of_segments = columns.further, columns.of_segments
        self.capacity = len(columns.flags)
        self.nbytes = columns.nbytes + len(directory.file)
        self.segments = LiveSegments(columns, directory, spec.frame_stack)
        self.generations = self.segments.generations
        self.next_rows = self.segments.next_rows
        self.directory = directory
        self.sequences = LastSequences()
        self.durability = Durability(columns, directory, self.sequences, path / "sequences.json", machine.boot_id)
        self._columns = columns
        sent = columns_of(spec, columns.further)
        self._sent = {column.name for column in sent}
        self.batched = tuple(column for column in sent if column.name in columns.further and column.batched)
        # The writer for segments with the shape of the last segment.
        self._writer: RowWriter | None = None
        self._lock = lock
        self._rows_ahead = max(1, _AHEAD_BYTES // columns.row_nbytes)
        # Allocating disk space that a file already has is cheap.
        self._rows_reserved = 0

    @classmethod
    def open(
        cls,
        directory: Path,
        spec: EnvironmentSpec,
        capacity: int,
        further: Sequence[str] = (),
        rows_per_segment: int = _MOST_ROWS_PER_SEGMENT,
        machine: Machine | None = None,
        checked_at_once: int = CHECKED_AT_ONCE_BYTES,
        earlier_transitions: int = 0,
    ) -> "ReplayStore":
        """Create the store below `directory`, or reopen it.

        further: names of the run's further columns. All segments have those of these columns that the environment has,
            and no others.
        rows_per_segment: expected rows of a segment, at most 16. A new store has room for capacity / rows_per_segment
            segments. With shorter segments it is full before all its rows are used.
        checked_at_once: bytes of rows that are checked now. Older rows are checked when they are first drawn.
        earlier_transitions: total of the run before this new store, if the previous store was lost.

        Raises ConflictError when the directory belongs to another environment, capacity or format, has other columns,
        or is open elsewhere. Raises UserError when the capacity is too small, does not fit on the disk, or the frame
        stack is too large for the ages.
        """
        if not 1 <= spec.frame_stack <= MAX_AGE + 1:
            raise UserError(f"replay: the frame stack must be 1 to {MAX_AGE + 1}, got {spec.frame_stack}")
        if capacity < _MIN_CAPACITY:
            raise UserError(f"replay: capacity must be at least {_MIN_CAPACITY} rows, got {capacity}")
        machine = machine or Machine(this_boot())
        own = own_columns(spec, further)
        lock = _lock(directory)
        try:
            columns, sealed_for = open_columns(directory, spec, capacity, own, machine)
            created = sealed_for is None
            segments = sealed_for or max(_MIN_SEGMENTS, capacity // min(rows_per_segment, _MOST_ROWS_PER_SEGMENT))
            log = SegmentDirectory(directory / "directory.bin", segments, created, machine)
            store = cls(directory, spec, columns, log, lock, machine)
            if created:
                for leftover in directory.glob("sequences*.json"):
                    leftover.unlink()
                if earlier_transitions:
                    _log.warning("replay: the run's earlier %d transitions are lost", earlier_transitions)
                log.begin(machine.boot_id, earlier_transitions)
                store.flush()
                write_description(directory, spec, capacity, own, segments)
            else:
                store._add_recovered(recover(log, columns, machine.boot_id, checked_at_once))
            return store
        except OSError as error:
            lock.close()
            raise UserError(f"replay: {directory} cannot be opened: {error.strerror}; is its disk full?") from error
        except BaseException:
            lock.close()
            raise

    @property
    def transitions(self) -> int:
        """Transitions that are live now. Those of the agents of one environment step count once."""
        return self.segments.transitions

    @property
    def total_transitions(self) -> int:
        """Transitions ever inserted, over all restarts."""
        return self.directory.total_transitions

    def insert(self, segment: Segment, source: SegmentSource) -> Inserted | None:
        """Store `segment`. Returns None, and changes nothing, when the store already contains `source`.

        Call `Segment.check` before. Raises InvalidInputError when segment and store differ in their columns,
        ExhaustedError when the segment needs more than half of the ring, and UnavailableError when the disk is full or
        fails. An error changes nothing.
        """
        if self.sequences.contains(source):
            return None
        for name in sorted(self._sent ^ segment.columns.keys()):
            wanted, came = ("some", "none") if name in self._sent else ("none", "some")
            raise InvalidInputError(f"segment: {name}: the run's replay keeps {wanted}, got {came}")
        rows = segment_rows(segment.steps, segment.environments, self.spec.frame_stack)
        self._require_room(rows)
        start = self.segments.place(rows)
        # The steps that can fail come first, before anything is evicted.
        self._reserve(start + rows)
        self._cover_next_record()
        evicted = self.segments.make_room(start, start + rows)
        if self._writer is None or self._writer.shape != segment.rewards.shape:
            self._writer = RowWriter(self._columns, self.spec.frame_stack, *segment.rewards.shape)
        checksum = self._writer.write(segment, start)
        transitions = segment.environment_steps(self.spec.agent_count)
        record = Record(
            index=self.directory.head,
            start=start,
            rows=rows,
            steps=segment.steps,
            environments=segment.environments,
            transitions=transitions,
            cumulative_transitions=self.total_transitions + transitions,
            source=source,
            checksum=checksum,
        )
        self.segments.commit(record, segment.follows)
        self.sequences.advance(source)
        return Inserted(start, record.stop, evicted)

    def adopt(self, record: Record, rows: Sequence[Array], follows: bool) -> None:
        """Store a segment of another run. Its transitions do not count for this run, and belong to no version of it.

        record: of the other run, with the source that the segment has here. rows: of `Columns.checksummed`, in its
            order. follows: as in `Segment`.
        Raises ExhaustedError and UnavailableError as `insert` does.
        """
        self._require_room(record.rows)
        start = self.segments.place(record.rows)
        stop = start + record.rows
        self._reserve(stop)
        self._cover_next_record()
        self.segments.make_room(start, stop)
        for (_, column), values in zip(self._columns.checksummed, rows, strict=True):
            column[start:stop] = values
        self.policy_versions[start:stop] = 0
        self.priorities[start:stop] = 0
        record = replace(
            record,
            index=self.directory.head,
            start=start,
            cumulative_transitions=self.total_transitions,
            checksum=self._columns.checksum(start, stop),
        )
        self.segments.commit(record, follows)
        self.sequences.advance(record.source)

    def reserve_ahead(self) -> bool:
        """Allocate disk space for the next inserts if little is left. Returns False when the disk is full."""
        with contextlib.suppress(UnavailableError):
            self._reserve(min(self.capacity, self.segments.cursor + self._rows_ahead // 2))
            return True
        return False

    def flush(self) -> None:
        """Block until everything committed before the call is on the disk."""
        self.durability.sync(self.durability.mark())

    def close(self) -> None:
        """Flush, and unlock the directory. Do not use the store afterwards."""
        if self._lock is None or self._lock.closed:
            return
        try:
            self.flush()
        finally:
            self._columns.close()
            self.directory.file.close()
            self._lock.close()

    def _require_room(self, rows: int) -> None:
        if 2 * rows > self.capacity:
            raise ExhaustedError(
                f"replay: a segment may take at most half of {self.capacity} rows, got {rows}; "
                "send shorter segments or raise the replay capacity"
            )

    def _reserve(self, rows: int) -> None:
        """Allocate disk space for the first `rows` rows, and more if possible. Raises UnavailableError."""
        if rows <= self._rows_reserved:
            return
        for wanted in (min(self.capacity, rows + self._rows_ahead), rows):
            try:
                self._columns.allocate(wanted)
                self._rows_reserved = wanted
                return
            except OSError as error:
                reason = error.strerror
        raise UnavailableError(f"replay: the disk has no room for more transitions: {reason}")

    def _cover_next_record(self) -> None:
        """Flush if the next record would overwrite one whose sequence is in no table. Raises UnavailableError."""
        try:
            if not self.durability.covers_next_record:
                self.flush()
        except OSError as error:
            raise UnavailableError(f"replay: the disk takes no more segments: {error.strerror or error}") from error

    def _add_recovered(self, recovered: Recovered) -> None:
        self.segments.add_recovered(recovered)
        self.durability.load()
        for record in recovered.records.values():
            if record.known_source:
                self.sequences.advance(record.source)
        if recovered.rebooted or self.directory.watermark is None:
            self.flush()


def _lock(directory: Path) -> WriterLock:
    where = f"replay: {directory} is open in another learner; stop it, or give this run a directory of its own"
    try:
        return WriterLock(directory, "lock", ConflictError(where))
    except OSError as error:
        raise UserError(f"replay: {directory} cannot be locked ({error.strerror})") from None
