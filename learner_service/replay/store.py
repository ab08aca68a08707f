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
sequence numbers are read back from the same records, and from `sequences.json`, which is replaced atomically twice per
lap of the directory, before a record that it does not cover could be overwritten.

What it does not survive: a crash of the kernel or a loss of power between two calls of `flush`, because the kernel
writes pages back in any order. After `flush` returns, everything that was committed before the call is on the disk.
Nor does it survive a disk that others fill up: the files are sparse, and a write to a page for which there is no block
raises SIGBUS.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actorq.errors import ExhaustedError, InvalidInputError, UserError
from actorq.trajectory import Array, EnvironmentSpec, Segment
from learner_service.replay.columns import MAX_AGE, Columns, open_columns, seal_columns, segment_rows
from learner_service.replay.directory import Record, SegmentDirectory
from learner_service.replay.files import claim_directory
from learner_service.replay.sequences import LastSequences, SegmentSource

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

    The column properties are views of the files. Callers read them; only `priorities` may be written to.
    """

    def __init__(
        self, path: Path, spec: EnvironmentSpec, columns: Columns, directory: SegmentDirectory, lock: int
    ) -> None:
        """Wrap new or recovered files; use `open`."""
        self.spec = spec
        self.path = path
        """Where the files are."""
        self._columns = columns
        self._directory = directory
        self._lock = lock
        self._generations = np.full(len(columns.flags), -1, np.int64)
        self._sequences = LastSequences()
        self._sequences_saved = 0
        self._transitions = 0
        last = directory.last
        self._cursor = last.stop if last else 0

    @classmethod
    def open(
        cls,
        directory: Path,
        spec: EnvironmentSpec,
        capacity: int,
        greedy_actions: bool = False,
        rows_per_segment: int = _MOST_ROWS_PER_SEGMENT,
    ) -> "ReplayStore":
        """Create the store below `directory`, or reopen what is there; `capacity` is in rows.

        greedy_actions: whether it keeps what the policy would have done without noise, which all segments must tell
        then, and none otherwise.
        rows_per_segment: that a segment is expected to take; more than 16 count as 16. With shorter ones a new store is
        full before its rows are: it has room for capacity / rows_per_segment segments.

        Raises ConflictError when the directory belongs to another environment, capacity or format, keeps greedy actions
        where it is not to or the reverse, or is open elsewhere, UserError when the capacity is too small or larger than
        the free disk space, or the frame stack is none that ages can cut.
        """
        if not 1 <= spec.frame_stack <= MAX_AGE + 1:
            raise UserError(f"replay: the frame stack must be 1 to {MAX_AGE + 1}, got {spec.frame_stack}")
        if capacity < _MIN_CAPACITY:
            raise UserError(f"replay: capacity must be at least {_MIN_CAPACITY} rows, got {capacity}")
        lock = claim_directory(directory)
        try:
            columns, sealed_for = open_columns(directory, spec, capacity, greedy_actions)
            created = sealed_for is None
            segments = sealed_for or max(_MIN_SEGMENTS, capacity // min(rows_per_segment, _MOST_ROWS_PER_SEGMENT))
            log = SegmentDirectory(directory / "directory.bin", segments, created)
            if created:
                (directory / "sequences.json").unlink(missing_ok=True)
                seal_columns(directory, spec, capacity, greedy_actions, segments)
            store = cls(directory, spec, columns, log, lock)
            if not created:
                store._recover()
            return store
        except BaseException:
            os.close(lock)
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
    def total_transitions(self) -> int:
        """Transitions ever inserted, over all restarts."""
        last = self._directory.last
        return last.cumulative_transitions if last else 0

    @property
    def nbytes(self) -> int:
        """Bytes of address space and, once the ring is full, of disk and page cache."""
        return self._columns.nbytes + self._directory.nbytes

    @property
    def observations(self) -> Array:
        """[capacity, *observation], single frames."""
        return self._columns.observations

    @property
    def actions(self) -> Array:
        """[capacity, *action]."""
        return self._columns.actions

    @property
    def rewards(self) -> NDArray[np.float32]:
        """float32[capacity]."""
        return self._columns.rewards

    @property
    def flags(self) -> NDArray[np.uint8]:
        """uint8[capacity], bits VALID, TERMINATED and TRUNCATED; 0 in every row that is not live."""
        return self._columns.flags

    @property
    def policy_versions(self) -> NDArray[np.int64]:
        """int64[capacity], the policy that acted."""
        return self._columns.policy_versions

    @property
    def ages(self) -> NDArray[np.uint8]:
        """uint8[capacity], steps since the episode of the row's observation began, at most 255."""
        return self._columns.ages

    @property
    def priorities(self) -> NDArray[np.float32]:
        """float32[capacity], written by a prioritised sampler; 0 where none was given since the insert."""
        return self._columns.priorities

    @property
    def greedy_actions(self) -> Array | None:
        """[capacity, *action], what the policy would have done without noise; None in a store without them."""
        return self._columns.greedy_actions

    @property
    def generations(self) -> NDArray[np.int64]:
        """int64[capacity], global index of the segment last committed to the row; tells a row from its successor."""
        return self._generations

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
        """The segments that are stored now, oldest first; not to be read on after an insert."""
        return iter(self._directory.live)

    def newest_segments(self) -> Iterator[Record]:
        """The segments that are stored now, newest first; not to be read on after an insert."""
        return reversed(self._directory.live)

    def contains(self, source: SegmentSource) -> bool:
        """True when this segment, or a later one of the same incarnation, was ever inserted."""
        return self._sequences.contains(source)

    def last_sequences(self) -> dict[tuple[bytes, int], int]:
        """(actor key, incarnation) -> last sequence number inserted, also for segments evicted since."""
        return self._sequences.as_dict()

    def insert(self, segment: Segment, source: SegmentSource) -> Inserted | None:
        """Store `segment` and return where; None, and no change, when the store already contains `source`.

        Raises InvalidInputError when the segment does not fit the environment and ExhaustedError when it takes more
        than half of the ring; neither changes anything.
        """
        if self.contains(source):
            return None
        segment.check(self.spec)
        if (segment.greedy_actions is None) is not (self.greedy_actions is None):
            wanted, came = ("none", "some") if self.greedy_actions is None else ("some", "none")
            raise InvalidInputError(f"segment: greedy_actions: the run's replay keeps {wanted}, got {came}")
        rows = segment_rows(segment.steps, segment.environments, self.spec.frame_stack)
        if 2 * rows > self.capacity:
            raise ExhaustedError(
                f"replay: a segment may take at most half of {self.capacity} rows, got {rows}; "
                "send shorter segments or raise the replay capacity"
            )
        # First, because it can fail, and then nothing must have been evicted.
        self._save_sequences()
        start = self._cursor if self._cursor + rows <= self.capacity else 0
        evicted = self._make_room(start, start + rows)
        self._columns.write(segment, start, self.spec.frame_stack)
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

    def flush(self) -> None:
        """Block until everything committed before the call is on the disk; other calls may go on meanwhile."""
        self._columns.flush()
        self._directory.flush()

    def close(self) -> None:
        """Flush, and let others open the directory. The store must not be used afterwards."""
        if self._lock >= 0:
            self.flush()
            os.close(self._lock)
            self._lock = -1

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
        self._columns.flags[record.start : record.stop] = 0
        self._columns.priorities[record.start : record.stop] = 0
        self._transitions -= record.transitions
        return record.start, record.stop

    def _adopt(self, record: Record) -> None:
        self._generations[record.start : record.stop] = record.index
        self._transitions += record.transitions

    def _recover(self) -> None:
        covered = np.zeros(self.capacity, np.bool_)
        for record in self._directory.live:
            covered[record.start : record.stop] = True
            self._adopt(record)
        # Assigning only where something is left keeps the untouched part of a sparse file unallocated.
        leftover = np.flatnonzero(~covered & (self._columns.flags != 0))
        self._columns.flags[leftover] = 0
        saved = self._sequences.load(self.path / "sequences.json")
        # After a power failure the table may be ahead of the log; what follows the log's end is not in it.
        self._sequences_saved = min(saved, self._directory.head)
        for past in self._directory.history():
            self._sequences.advance(past.source)

    def _save_sequences(self) -> None:
        head = self._directory.head
        if head - self._sequences_saved >= self._directory.slots // 2:
            self._sequences.save(self.path / "sequences.json", head)
            self._sequences_saved = head
