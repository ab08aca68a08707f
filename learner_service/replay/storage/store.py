"""The replay store: a columnar ring of transitions in memory-mapped files that survives the death of its process.

Rows. A segment [T, N] with stacks of K frames takes N * (K + T) rows, environment by environment. Each environment has
K - 1 context rows for stacks only, then T rows of steps, then one row with the bootstrap observation. So the
observation after a valid row i is always in row i + 1. That row is the next step, the bootstrap row, or a reset step,
which has the final observation of the ended episode. The stack of a step or bootstrap row is that row and the K - 1
rows before it. A stack never reaches back beyond the start of its episode, which follows from the row's age. A segment
never wraps around the end of the ring. A segment that does not fit there goes to row 0. Each segment stores a frame
once, not once for each stack.

Commits. An insert has three steps. (1) It evicts all segments whose rows it will overwrite. To do so, it advances the
tail of the segment directory past them and clears their flags. (2) It writes the rows. (3) It appends the segment's
record with its CRC to the directory. Step 3 is the commit.

`drop_oldest` is step 1 alone. The tail on disk passes a segment before its rows change, so no kill brings it back. A
kill between two segments leaves the second one stored and whole.

SIGKILL is harmless at any instruction. The mappings are shared, so every store instruction changes the page cache. The
page cache belongs to the kernel and outlives the process. A later open sees all instructions before the kill. After a
kill in step 1, a segment is either live with its rows untouched, or evicted. Reopening clears the flags of all rows
without a live record. After a kill in step 2, the rows have no record, so their flags are cleared too. After a kill in
step 3, the record fails its CRC and does not count. After step 3, the segment is stored. No segment is stored twice,
because the sequence numbers come from the same records and from `sequences.json`. That file is replaced before a record
that it does not cover could be overwritten.

Power cuts. `flush` writes everything that was committed before the call to the disk, and then the watermark. After a
power cut, `recovery` keeps the whole segments before the watermark. It also keeps later segments up to the first
damaged one (docs/decisions/0013-what-acknowledged-promises.md).

Damage. Each record has a checksum of its segment's rows. A segment that does not match its checksum is skipped: its
rows are never drawn. Live segments are checked when the store is opened. In a large store, the older ones are checked
when they are first drawn.

Full disk. Disk space is taken before rows are written, so no store instruction can fail. An insert without space raises
UnavailableError and changes nothing.
"""

import io
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actorq.domain.trajectory import EnvironmentSpec, Segment
from actorq.errors import ExhaustedError, InvalidInputError, UserError
from learner_service.replay.storage.columns import MAX_AGE, OPTIONAL, Columns, open_columns
from learner_service.replay.storage.description import write_description
from learner_service.replay.storage.directory import Record, SegmentDirectory
from learner_service.replay.storage.durability import Durability, Mark
from learner_service.replay.storage.mapped_files import Machine, claim_directory, this_boot
from learner_service.replay.storage.next_rows import NextRows
from learner_service.replay.storage.recovery import CHECKED_AT_ONCE_BYTES, Recovered, recover
from learner_service.replay.storage.rows import RowWriter, segment_rows
from learner_service.replay.storage.sequences import LastSequences, SegmentSource
from learner_service.replay.storage.space import SpaceAhead

_log = logging.getLogger(__name__)

_MIN_CAPACITY = 4
_MIN_SEGMENTS = 64
# A cap, because some segments are shorter than planned, for example when an actor ends.
_MOST_ROWS_PER_SEGMENT = 16


@dataclass(frozen=True, slots=True)
class Inserted:
    """The result of an insert: the written rows [start, stop), and the evicted row ranges."""

    start: int
    stop: int
    evicted: tuple[tuple[int, int], ...]
    transitions: int


class ReplayStore:
    """The ring of transitions. Not thread-safe, except `sync`: `ReplayBuffer` holds a lock around every other call.

    The columns are views of the files. Callers may write to `priorities` only.
    """

    def __init__(
        self,
        path: Path,
        spec: EnvironmentSpec,
        columns: Columns,
        directory: SegmentDirectory,
        lock: io.FileIO,
        machine: Machine,
    ) -> None:
        """Wrap new or recovered files. Use `open` instead."""
        self.spec = spec
        self.path = path
        """Folder of the files."""
        self.machine = machine
        """Functions of the machine that the store uses."""
        self.damaged_segments = 0
        """Segments that this process skips because of their checksums."""
        self.dropped_segments = 0
        """Segments after the last flush that a power cut took."""
        self.observations = columns.observations
        """[capacity, *observation], single frames."""
        self.actions = columns.actions
        """[capacity, *action]."""
        self.rewards = columns.rewards
        """float32[capacity]."""
        self.flags = columns.flags
        """uint8[capacity], bits VALID, TERMINATED, TRUNCATED and FOLLOWS; 0 in every row that is not live."""
        self.policy_versions = columns.policy_versions
        """int64[capacity], version of the policy that acted."""
        self.ages = columns.ages
        """uint8[capacity], steps since the episode of the row's observation began, at most 255."""
        self.priorities = columns.priorities
        """float32[capacity], written by a prioritized sampler; 0 where none was given since the insert."""
        self.greedy_actions = columns.greedy_actions
        """[capacity, *action], the policy's actions without noise; None in a store without them."""
        self.log_probabilities = columns.log_probabilities
        """float32[capacity], with which the acting policy drew each action; None in a store without them."""
        self.generations = np.full(len(columns.flags), -1, np.int64)
        """int64[capacity], global index of the segment last committed to the row, to detect overwritten rows."""
        self._next_rows = NextRows(columns, spec.frame_stack)
        self.next_rows = self._next_rows.rows
        """int64[capacity], the row of the same environment's next step; see `NextRows`."""
        self._columns = columns
        self._writer = RowWriter(columns, spec.frame_stack)
        self._directory = directory
        self._lock = lock
        self._unchecked: dict[int, Record] = {}
        self._sequences = LastSequences()
        self._durability = Durability(columns, directory, path / "sequences.json", machine.boot_id)
        self._space = SpaceAhead(columns)
        self._transitions = 0
        self._cursor = 0

    @classmethod
    def open(
        cls,
        directory: Path,
        spec: EnvironmentSpec,
        capacity: int,
        optional: Sequence[str] = (),
        rows_per_segment: int = _MOST_ROWS_PER_SEGMENT,
        machine: Machine | None = None,
        checked_at_once: int = CHECKED_AT_ONCE_BYTES,
        earlier_transitions: int = 0,
    ) -> "ReplayStore":
        """Create the store below `directory`, or reopen it.

        capacity: in rows.
        optional: names of the optional columns, as in `Segment`, at most one. All segments have these, and no others.
        rows_per_segment: expected rows of a segment, at most 16. A new store has room for capacity / rows_per_segment
            segments. With shorter segments it is full before all its rows are used.
        checked_at_once: bytes of rows that are checked now. Older rows are checked when they are first drawn.
        earlier_transitions: total of the run before a new store, whose predecessor was lost.

        Raises ConflictError when the directory belongs to another environment, capacity or format, has other optional
        columns, or is open elsewhere. Raises UserError when the capacity is too small, does not fit on the disk,
        or the frame stack is too large for the ages.
        """
        if not 1 <= spec.frame_stack <= MAX_AGE + 1:
            raise UserError(f"replay: the frame stack must be 1 to {MAX_AGE + 1}, got {spec.frame_stack}")
        if capacity < _MIN_CAPACITY:
            raise UserError(f"replay: capacity must be at least {_MIN_CAPACITY} rows, got {capacity}")
        machine = machine or Machine(this_boot())
        lock = claim_directory(directory)
        try:
            columns, sealed_for = open_columns(directory, spec, capacity, optional, machine)
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
                write_description(directory, spec, capacity, optional, segments)
            else:
                store._take_over(recover(log, columns, machine.boot_id, checked_at_once))
            return store
        except OSError as error:
            lock.close()
            raise UserError(f"replay: {directory} cannot be opened: {error.strerror}; is its disk full?") from error
        except BaseException:
            lock.close()
            raise

    @property
    def capacity(self) -> int:
        """Rows of the ring. Bootstrap observations and resets take rows too."""
        return len(self._columns.flags)

    @property
    def transitions(self) -> int:
        """Valid rows that are live now."""
        return self._transitions

    @property
    def checked_transitions(self) -> int:
        """Live valid rows that this process has written or checked."""
        return self._transitions - sum(record.transitions for record in self._unchecked.values())

    @property
    def total_transitions(self) -> int:
        """Transitions ever inserted, over all restarts."""
        return self._directory.total_transitions

    @property
    def nbytes(self) -> int:
        """Bytes of address space. Once the ring is full, also bytes of disk and page cache."""
        return self._columns.nbytes + self._directory.nbytes

    @property
    def priority_ceiling(self) -> float | None:
        """The largest valid priority in the files; None if no sampler has set it."""
        return self._directory.ceiling

    def raise_priority_ceiling(self, priority: float) -> None:
        """Allow priorities up to this one. Call before such priorities are written."""
        if self._directory.ceiling is None or priority > self._directory.ceiling:
            self._directory.raise_ceiling(priority)

    @property
    def next_index(self) -> int:
        """Global index of the next segment."""
        return self._directory.head

    def extent(self) -> tuple[int, int]:
        """(first, length): all live rows are among first, first + 1, ..., first + length - 1 modulo capacity."""
        if not self._directory.live:
            return 0, 0
        first = self._directory.live[0].start
        lap = 0 if first < self._cursor else self.capacity
        return first, lap + self._cursor - first

    def live_segments(self) -> tuple[Record, ...]:
        """The stored segments, oldest first."""
        return tuple(self._directory.live)

    def oldest_segments(self) -> Iterator[Record]:
        """The stored segments, oldest first. An insert or a `check` invalidates the iterator."""
        return iter(self._directory.live)

    def newest_segments(self) -> Iterator[Record]:
        """The stored segments, newest first. An insert or a `check` invalidates the iterator."""
        return reversed(self._directory.live)

    def contains(self, source: SegmentSource) -> bool:
        """Whether this segment, or a later one of the same incarnation, was ever inserted."""
        return self._sequences.contains(source)

    def last_sequences(self) -> dict[tuple[bytes, int], int]:
        """(actor key, incarnation) -> last sequence number inserted, including evicted segments."""
        return self._sequences.as_dict()

    def insert(self, segment: Segment, source: SegmentSource) -> Inserted | None:
        """Store `segment`. Returns None, and changes nothing, when the store already contains `source`.

        Call `Segment.check` before. Raises InvalidInputError when segment and store differ in their optional columns,
        ExhaustedError when the segment needs more than half of the ring, and UnavailableError when the disk is full. An
        error changes nothing.
        """
        if self.contains(source):
            return None
        for name in OPTIONAL:
            kept = getattr(self, name) is not None
            if (getattr(segment, name) is not None) is not kept:
                wanted, came = ("some", "none") if kept else ("none", "some")
                raise InvalidInputError(f"segment: {name}: the run's replay keeps {wanted}, got {came}")
        rows = segment_rows(segment.steps, segment.environments, self.spec.frame_stack)
        if 2 * rows > self.capacity:
            raise ExhaustedError(
                f"replay: a segment may take at most half of {self.capacity} rows, got {rows}; "
                "send shorter segments or raise the replay capacity"
            )
        start = self._cursor if self._cursor + rows <= self.capacity else 0
        # First the steps that can fail, before anything is evicted.
        self._space.reserve(start + rows)
        if not self._durability.covers_next_record:
            self.flush()
        evicted = self._make_room(start, start + rows)
        checksum = self._writer.write(segment, start)
        transitions = segment.transitions
        record = Record(
            index=self._directory.head,
            start=start,
            rows=rows,
            steps=segment.steps,
            environments=segment.environments,
            transitions=transitions,
            cumulative_transitions=self.total_transitions + transitions,
            source=source,
            checksum=checksum,
        )
        self._directory.append(record)
        self._adopt(record)
        if segment.follows:
            self._next_rows.connect(record)
        self._cursor = record.stop
        self._sequences.advance(source)
        return Inserted(start, record.stop, evicted, transitions)

    def drop_oldest(self, transitions: int, keep: int) -> tuple[tuple[int, int], ...]:
        """Drop segments, oldest first, until at least `transitions` are gone. Keeps the last `keep` transitions.

        Returns the dropped row ranges, like `Inserted.evicted`.
        """
        dropped: list[tuple[int, int]] = []
        least = max(keep, self._transitions - transitions)
        live = self._directory.live
        while live and self._transitions > least and self._transitions - live[0].transitions >= keep:
            dropped.append(self._evict_oldest())
        return tuple(dropped)

    def check(self, rows: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
        """Compare the segments of `rows` with their checksums, once each. Removes damaged segments.

        Returns the removed row ranges, like `Inserted.evicted`.
        """
        if not self._unchecked:
            return ()
        candidates = {int(index) for index in np.unique(self.generations[rows])} & self._unchecked.keys()
        records = [self._unchecked.pop(index) for index in sorted(candidates)]
        removed = []
        for record in records:
            if self._is_whole(record):
                self._next_rows.reconnect(record)
            else:
                removed.append(self._give_up(record))
        return tuple(removed)

    def skip(self, source: SegmentSource) -> None:
        """Count this segment and all before it as inserted, because their actor no longer has them."""
        self._sequences.advance(source)

    def reserve_ahead(self) -> bool:
        """Take disk space for the next inserts if little is left. Returns False when the disk is full."""
        return self._space.reserve_ahead(self._cursor)

    def mark(self) -> Mark:
        """The present progress of the store, for `sync`."""
        return self._durability.mark(self._sequences)

    def sync(self, mark: Mark) -> None:
        """Block until everything before `mark` and the watermark are on the disk. Other calls may run meanwhile.

        Raises OSError; then `durable` does not change.
        """
        self._durability.sync(mark)

    @property
    def durable(self) -> Mark:
        """The progress that survives a power cut."""
        return self._durability.durable

    def flush(self) -> None:
        """Block until everything committed before the call is on the disk."""
        self.sync(self.mark())

    def close(self) -> None:
        """Flush, and unlock the directory. Do not use the store afterwards."""
        if self._lock.closed:
            return
        try:
            self.flush()
        finally:
            self._columns.close()
            self._directory.close()
            self._lock.close()

    def _make_room(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        # Segments of the previous lap begin at or after the cursor. Eviction is strictly oldest first, so going back
        # to row 0 evicts the segments between the cursor and the end.
        live = self._directory.live
        wraps = start < self._cursor
        evicted = []
        while live and (
            self._directory.full
            or (live[0].start < stop and start < live[0].stop)
            or (wraps and live[0].start >= self._cursor)
        ):
            evicted.append(self._evict_oldest())
        return tuple(evicted)

    def _evict_oldest(self) -> tuple[int, int]:
        record = self._directory.evict_oldest()
        self._unchecked.pop(record.index, None)
        self._next_rows.evict(record)
        return self._clear(record)

    def _give_up(self, record: Record) -> tuple[int, int]:
        self._directory.give_up(record.index, record)
        self._next_rows.give_up(record)
        self.damaged_segments += 1
        _log.warning("replay: segment %d is damaged and skipped; %d are kept", record.index, len(self._directory.live))
        return self._clear(record)

    def _clear(self, record: Record) -> tuple[int, int]:
        self._columns.flags[record.start : record.stop] = 0
        self._columns.priorities[record.start : record.stop] = 0
        self._transitions -= record.transitions
        return record.start, record.stop

    def _is_whole(self, record: Record) -> bool:
        return self._columns.checksum(record.start, record.stop) == record.checksum

    def _adopt(self, record: Record) -> None:
        self.generations[record.start : record.stop] = record.index
        self._transitions += record.transitions
        self._next_rows.add(record)

    def _take_over(self, recovered: Recovered) -> None:
        for record in self._directory.live:
            self._adopt(record)
        self._cursor = self._directory.live[-1].stop if self._directory.live else 0
        self._unchecked = {record.index: record for record in recovered.unchecked}
        for record in self._directory.live:
            if record.index not in self._unchecked:
                self._next_rows.reconnect(record)
        self.damaged_segments, self.dropped_segments = len(recovered.damaged), recovered.dropped
        self._durability.load(self._sequences)
        for record in recovered.records.values():
            if record.known_source:
                self._sequences.advance(record.source)
        if recovered.rebooted or self._directory.watermark is None:
            self.flush()
