"""The replay store: a columnar ring of transitions in memory-mapped files that survives the death of its process.

Rows. A segment [T, N] of frame stacks of K takes N * (K + T) rows, environment by environment: K - 1 rows of context,
which only stacks reach, T rows of steps, then one that holds only the bootstrap observation. So the observation after
any valid row i is the one in row i + 1, whatever row i + 1 is: the next step, a reset step (which holds the final
observation of the episode that ended in row i), or the bootstrap row. And the stack of any step or bootstrap row is
that row and the K - 1 before it, except that no stack reaches back beyond the row where its episode began, which the
row's age tells. A segment never wraps around the end of the ring; when it does not fit there, it goes to row 0.

A frame is thus stored once for each segment that needs it, and never once for each of the K stacks that it is in.

Commits. An insert (1) evicts: it advances the tail of the segment directory past every segment whose rows are about to
be overwritten and clears their flags; (2) writes the rows; (3) appends the segment's record with its CRC to the
directory. Step 3 is the commit.

`drop_oldest` is step 1 by itself: what it drops is behind the tail on disk before its rows are touched, and no kill
brings it back. A kill between two of its segments leaves the rest of them stored, each of them whole.

Why a SIGKILL at any instruction is harmless: the mappings are shared, so every store instruction changes the page
cache, which belongs to the kernel and outlives the process, and a later open sees all instructions before the kill and
none after. Killed in step 1, a segment is either still live with its rows untouched, or evicted, and rows that no live
record covers get their flags cleared on reopening. Killed in step 2, the rows belong to no record: the same. Killed in
step 3, the record fails its CRC and is no record. After step 3, it is there. Nothing is stored twice, because the
sequence numbers are read back from the same records, and from `sequences.json`, which is replaced before a record that
it does not cover could be overwritten.

Power. `flush` brings everything that was committed before the call to the disk, and then the watermark that says so.
After a power cut `recovery` keeps the whole segments before the watermark, and those behind it up to the first one that
is not whole (docs/decisions/0013-what-acknowledged-promises.md).

Damage. Each record has a checksum of its segment's rows. A segment that does not agree with it is given up: its rows
are never drawn. All live segments are compared when the store is opened; of a large store, the older ones when they
are first drawn.

Full disk. Disk space is taken for rows before anything is written to them, so no store instruction can fail. An insert
that gets no space raises UnavailableError and changes nothing.
"""

import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actorq.domain.trajectory import EnvironmentSpec, Segment
from actorq.errors import ExhaustedError, InvalidInputError, UserError
from learner_service.replay.storage.columns import MAX_AGE, Columns, open_columns
from learner_service.replay.storage.description import write_description
from learner_service.replay.storage.directory import Record, SegmentDirectory
from learner_service.replay.storage.durability import Durability, Mark
from learner_service.replay.storage.mapped_files import Machine, claim_directory, this_boot
from learner_service.replay.storage.recovery import CHECKED_AT_ONCE_BYTES, Recovered, recover
from learner_service.replay.storage.rows import RowWriter, segment_rows
from learner_service.replay.storage.sequences import LastSequences, SegmentSource
from learner_service.replay.storage.space import SpaceAhead

_log = logging.getLogger(__name__)

_MIN_CAPACITY = 4
_MIN_SEGMENTS = 64
# However long segments are meant to be, some are cut short, as when an actor ends.
_MOST_ROWS_PER_SEGMENT = 16


@dataclass(frozen=True, slots=True)
class Inserted:
    """What an insert did: rows [start, stop) were written, `evicted` row ranges were dropped for them."""

    start: int
    stop: int
    evicted: tuple[tuple[int, int], ...]
    transitions: int


class ReplayStore:
    """The ring. Not thread-safe: whoever shares it holds one lock around every call (`ReplayBuffer` does).

    Only `sync` may be called beside others. The columns are views of the files. Callers read them; only
    `priorities` may be written to.
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
        """Wrap new or recovered files; use `open`."""
        self.spec = spec
        self.path = path
        """Where the files are."""
        self.machine = machine
        """Where they live."""
        self.damaged_segments = 0
        """Segments that this process has given up because of their checksums."""
        self.dropped_segments = 0
        """Segments of after the last flush that a power cut took."""
        self.observations = columns.observations
        """[capacity, *observation], single frames."""
        self.actions = columns.actions
        """[capacity, *action]."""
        self.rewards = columns.rewards
        """float32[capacity]."""
        self.flags = columns.flags
        """uint8[capacity], bits VALID, TERMINATED and TRUNCATED; 0 in every row that is not live."""
        self.policy_versions = columns.policy_versions
        """int64[capacity], the policy that acted."""
        self.ages = columns.ages
        """uint8[capacity], steps since the episode of the row's observation began, at most 255."""
        self.priorities = columns.priorities
        """float32[capacity], written by a prioritised sampler; 0 where none was given since the insert."""
        self.greedy_actions = columns.greedy_actions
        """[capacity, *action], what the policy would have done without noise; None in a store without them."""
        self.generations = np.full(len(columns.flags), -1, np.int64)
        """int64[capacity], global index of the segment last committed to the row; tells a row from its successor."""
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
        greedy_actions: bool = False,
        rows_per_segment: int = _MOST_ROWS_PER_SEGMENT,
        machine: Machine | None = None,
        checked_at_once: int = CHECKED_AT_ONCE_BYTES,
    ) -> "ReplayStore":
        """Create the store below `directory`, or reopen what is there; `capacity` is in rows.

        greedy_actions: whether it keeps what the policy would have done without noise, which all segments must tell
        then, and none otherwise.
        rows_per_segment: that a segment is expected to take; more than 16 count as 16. With shorter ones a new store is
        full before its rows are: it has room for capacity / rows_per_segment segments.
        checked_at_once: bytes of rows that are compared with their checksums here, and not when they are first drawn.

        Raises ConflictError when the directory belongs to another environment, capacity or format, keeps greedy actions
        where it is not to or the reverse, or is open elsewhere, UserError when the capacity is too small or larger than
        the free disk space, or the frame stack is none that ages can cut.
        """
        if not 1 <= spec.frame_stack <= MAX_AGE + 1:
            raise UserError(f"replay: the frame stack must be 1 to {MAX_AGE + 1}, got {spec.frame_stack}")
        if capacity < _MIN_CAPACITY:
            raise UserError(f"replay: capacity must be at least {_MIN_CAPACITY} rows, got {capacity}")
        machine = machine or Machine(this_boot())
        lock = claim_directory(directory)
        try:
            columns, sealed_for = open_columns(directory, spec, capacity, greedy_actions, machine)
            created = sealed_for is None
            segments = sealed_for or max(_MIN_SEGMENTS, capacity // min(rows_per_segment, _MOST_ROWS_PER_SEGMENT))
            log = SegmentDirectory(directory / "directory.bin", segments, created, machine)
            store = cls(directory, spec, columns, log, lock, machine)
            if created:
                for leftover in directory.glob("sequences*.json"):
                    leftover.unlink()
                log.begin(machine.boot_id)
                store.flush()
                write_description(directory, spec, capacity, greedy_actions, segments)
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
        """Rows of the ring; bootstrap rows and resets take rows too."""
        return len(self._columns.flags)

    @property
    def transitions(self) -> int:
        """Valid rows that are live now."""
        return self._transitions

    @property
    def checked_transitions(self) -> int:
        """Those of them whose rows were written or compared with their checksums by this process."""
        return self._transitions - sum(record.transitions for record in self._unchecked.values())

    @property
    def total_transitions(self) -> int:
        """Transitions ever inserted, over all restarts."""
        return self._directory.total_transitions

    @property
    def nbytes(self) -> int:
        """Bytes of address space and, once the ring is full, of disk and page cache."""
        return self._columns.nbytes + self._directory.nbytes

    @property
    def priority_ceiling(self) -> float | None:
        """Above it a priority in the files is damaged; None where no sampler has said."""
        return self._directory.ceiling

    def raise_priority_ceiling(self, priority: float) -> None:
        """Allow priorities up to this one; comes before they are written."""
        if self._directory.ceiling is None or priority > self._directory.ceiling:
            self._directory.raise_ceiling(priority)

    def extent(self) -> tuple[int, int]:
        """(first, length): every live row is one of first, first + 1, ..., first + length - 1 modulo capacity."""
        if not self._directory.live:
            return 0, 0
        first = self._directory.live[0].start
        lap = 0 if first < self._cursor else self.capacity
        return first, lap + self._cursor - first

    def live_segments(self) -> tuple[Record, ...]:
        """The segments that are stored now, oldest first."""
        return tuple(self._directory.live)

    def oldest_segments(self) -> Iterator[Record]:
        """The segments that are stored now, oldest first; not to be read on after an insert or a `check`."""
        return iter(self._directory.live)

    def newest_segments(self) -> Iterator[Record]:
        """The segments that are stored now, newest first; not to be read on after an insert or a `check`."""
        return reversed(self._directory.live)

    def contains(self, source: SegmentSource) -> bool:
        """True when this segment, or a later one of the same incarnation, was ever inserted."""
        return self._sequences.contains(source)

    def last_sequences(self) -> dict[tuple[bytes, int], int]:
        """(actor key, incarnation) -> last sequence number inserted, also for segments evicted since."""
        return self._sequences.as_dict()

    def insert(self, segment: Segment, source: SegmentSource) -> Inserted | None:
        """Store `segment` and return where; None, and no change, when the store already contains `source`.

        The caller has checked that the segment fits the environment (`Segment.check`). Raises InvalidInputError when
        it tells greedy actions and the store keeps none or the reverse, ExhaustedError when it takes more than half of
        the ring, and UnavailableError when the disk is full; none of them changes anything.
        """
        if self.contains(source):
            return None
        if (segment.greedy_actions is None) is not (self.greedy_actions is None):
            wanted, came = ("none", "some") if self.greedy_actions is None else ("some", "none")
            raise InvalidInputError(f"segment: greedy_actions: the run's replay keeps {wanted}, got {came}")
        rows = segment_rows(segment.steps, segment.environments, self.spec.frame_stack)
        if 2 * rows > self.capacity:
            raise ExhaustedError(
                f"replay: a segment may take at most half of {self.capacity} rows, got {rows}; "
                "send shorter segments or raise the replay capacity"
            )
        start = self._cursor if self._cursor + rows <= self.capacity else 0
        # First, because these can fail, and then nothing must have been evicted.
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
        self._cursor = record.stop
        self._sequences.advance(source)
        return Inserted(start, record.stop, evicted, transitions)

    def drop_oldest(self, transitions: int, keep: int) -> tuple[tuple[int, int], ...]:
        """Drop segments, oldest first, until at least so many transitions are gone, but none of the last `keep`.

        Returns the row ranges that were dropped, as `Inserted.evicted` has them.
        """
        dropped: list[tuple[int, int]] = []
        least = max(keep, self._transitions - transitions)
        live = self._directory.live
        while live and self._transitions > least and self._transitions - live[0].transitions >= keep:
            dropped.append(self._evict_oldest())
        return tuple(dropped)

    def check(self, rows: NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
        """Compare the segments of `rows` with their checksums, unless that was done before.

        Returns the row ranges of those that were damaged and are given up, as `Inserted.evicted` has them.
        """
        if not self._unchecked:
            return ()
        candidates = {int(index) for index in np.unique(self.generations[rows])} & self._unchecked.keys()
        records = [self._unchecked.pop(index) for index in sorted(candidates)]
        return tuple(self._give_up(record) for record in records if not self._is_whole(record))

    def skip(self, source: SegmentSource) -> None:
        """Count this segment and those before it as inserted: their actor has them no more."""
        self._sequences.advance(source)

    def reserve_ahead(self) -> bool:
        """Take disk space for what comes next, if there is little left of it; False when the disk is full."""
        return self._space.reserve_ahead(self._cursor)

    def mark(self) -> Mark:
        """How far the store has come, for `sync`."""
        return self._durability.mark(self._sequences)

    def sync(self, mark: Mark) -> None:
        """Block until everything before `mark` is on the disk and the watermark says so; other calls may go on.

        Raises OSError; then `durable` is as it was.
        """
        self._durability.sync(mark)

    @property
    def durable(self) -> Mark:
        """What survives a power cut."""
        return self._durability.durable

    def flush(self) -> None:
        """Block until everything committed before the call is on the disk."""
        self.sync(self.mark())

    def close(self) -> None:
        """Flush, and let others open the directory. The store must not be used afterwards."""
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
        # to row 0 gives up those that are left between the cursor and the end.
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
        return self._clear(record)

    def _give_up(self, record: Record) -> tuple[int, int]:
        self._directory.give_up(record.index, record)
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

    def _take_over(self, recovered: Recovered) -> None:
        for record in self._directory.live:
            self._adopt(record)
        self._cursor = self._directory.live[-1].stop if self._directory.live else 0
        self._unchecked = {record.index: record for record in recovered.unchecked}
        self.damaged_segments, self.dropped_segments = len(recovered.damaged), recovered.dropped
        self._durability.load(self._sequences)
        for record in recovered.records.values():
            if record.known_source:
                self._sequences.advance(record.source)
        if recovered.rebooted or self._directory.watermark is None:
            self.flush()
