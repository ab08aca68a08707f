"""Copies the segments of another run's replay into a store, without changing the other run's files."""

import hashlib
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from actorq.domain.columns import Array
from actorq.domain.contract import check_written
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import ConflictError, UserError
from actorq.statefiles.crc import crc32
from learner_service.replay.storage.columns import FOLLOWS, Columns, open_columns
from learner_service.replay.storage.description import (
    FORMAT_VERSION,
    described,
    description_files,
    needed_by,
    read_description,
)
from learner_service.replay.storage.directory import Record, SegmentDirectory
from learner_service.replay.storage.mapped_files import Machine, this_boot
from learner_service.replay.storage.recovery import recover
from learner_service.replay.storage.sequences import KEY_BYTES, SegmentSource
from learner_service.replay.storage.store import ReplayStore

_log = logging.getLogger(__name__)

_LEAVE_OUT = "leave --init-replay out"


def adoptable(directory: Path, further: Sequence[str]) -> EnvironmentSpec:
    """The spaces of the replay in this folder, if a store with these further columns can adopt its segments.

    Raises UserError when the folder has no replay, an unreadable replay, or a replay without some of the columns.
    """
    if not any(path.exists() for path in description_files(directory)):
        raise UserError(
            f"init_replay: {directory} has no replay, which object storage has only with "
            f"checkpoint.object_storage_replay; {_LEAVE_OUT}"
        )
    try:
        found = read_description(directory)
    except ConflictError:
        raise UserError(f"init_replay: {directory}: meta.json and its copy are damaged; {_LEAVE_OUT}") from None
    check_written(f"init_replay: {directory}", found.get("contract", 1))
    if found.get("format_version") != FORMAT_VERSION:
        version = found.get("format_version")
        raise UserError(
            f"init_replay: {directory}: expected a replay of format {FORMAT_VERSION}, got {version}; {_LEAVE_OUT}"
        )
    spec, _, own, _ = described(found)
    for name in further:
        if name not in {column.name for column in own}:
            user, _, without = needed_by(name, "this run")
            flag = f"give {without}, or " if without else ""
            raise UserError(
                f"init_replay: expected the column {name}, which {user} needs, got a replay without it in {directory}; "
                f"{flag}{_LEAVE_OUT}"
            )
    return spec


def adopt(directory: Path, store: ReplayStore) -> int:
    """Copy the newest segments of the replay in this folder, as many as fit. Returns the number of transitions.

    The other run may be in progress. Segments that change meanwhile, and damaged segments, are left out, because their
    checksums are wrong. Raises UserError when a file is missing or no transition is whole, and the errors of
    `ReplayStore.adopt`.
    """
    machine = Machine(this_boot(), read_only=True)
    spec, capacity, further, segments = described(read_description(directory))
    try:
        columns, _ = open_columns(directory, spec, capacity, further, machine)
        log = SegmentDirectory(directory / "directory.bin", segments, False, machine)
    except ConflictError as error:
        raise UserError(f"init_replay: {str(error).partition(';')[0]}; {_LEAVE_OUT}") from None
    # Each segment is checked when it is copied.
    recover(log, columns, machine.boot_id, checked_at_once=0)
    chosen, left_out = _newest(log, store.capacity), 0
    # The further columns come after the columns of every run. The other run may have more further columns.
    common, names = len(columns.checksummed) - len(columns.further), [*columns.further]
    places = [*range(common), *(common + names.index(name) for name in store.further)]
    for record in chosen:
        rows = _whole_rows(record, columns)
        if rows is None:
            left_out += 1
            continue
        follows = bool((np.asarray(rows[3], np.uint8) & np.uint8(FOLLOWS)).any())
        store.adopt(replace(record, source=_foreign(record.source)), [rows[place] for place in places], follows)
    columns.close()
    log.file.close()
    if store.transitions == 0:
        raise UserError(f"init_replay: expected transitions in {directory}, got none that is whole; {_LEAVE_OUT}")
    _log.info(
        "replay: %d transitions of %s are copied; %d segments are left out", store.transitions, directory, left_out
    )
    return store.transitions


def _newest(log: SegmentDirectory, capacity: int) -> deque[Record]:
    """The newest segments that fit into this number of rows, oldest first."""
    chosen: deque[Record] = deque()
    rows = 0
    for record in reversed(log.live):
        rows += record.rows
        if rows > capacity:
            break
        chosen.appendleft(record)
    return chosen


def _whole_rows(record: Record, columns: Columns) -> list[Array] | None:
    """Copies of a segment's rows in all columns with a checksum; None when the segment is damaged or was overwritten.

    This function checks the copies, because the other run's learner may write to the files at any time.
    """
    rows = [column[record.start : record.stop].copy() for _, column in columns.checksummed]
    crc = 0
    for values in rows:
        crc = crc32(values, crc)
    return rows if crc == record.checksum else None


def _foreign(source: SegmentSource) -> SegmentSource:
    """The source with a key that no actor of this run has, for any name."""
    digest = hashlib.blake2b(source.actor_key, digest_size=KEY_BYTES, person=b"adopted")
    return source._replace(actor_key=digest.digest())
