"""Checks the files of a replay for damage, without changing them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from actorq.errors import ConflictError, UnreadableError
from actorq.statefiles.findings import Finding, faulty
from learner_service.replay.storage.columns import Columns, open_columns
from learner_service.replay.storage.description import described, description_fault, description_files, read_description
from learner_service.replay.storage.directory import SegmentDirectory
from learner_service.replay.storage.mapped_files import Machine, MappedFile, read_checked, this_boot
from learner_service.replay.storage.recovery import Recovered, recover

_DIRECTORY = "directory.bin"
# Maximum number of segments named in one line.
_MOST_NAMED = 10
_REFUSED = "a resume is refused: restore the file, or remove the folder to start with an empty replay"
_OTHER_COPY = "the other copy is used, and both are written again"
_SKIPPED = "these segments are skipped; all others are kept"
_TABLES = {
    "sequences.json": "the previous table and the records are used",
    "sequences.previous.json": "the newer table is used",
    "dynamic_capacity.json": "the counts of drops start at 0",
}


def verify(directory: Path) -> list[Finding]:
    """List whole and damaged files, and the effect of a resume on each. Empty for a missing folder."""
    if not any(path.exists() for path in description_files(directory)):
        # A learner would start a new replay here.
        return []
    return [*_description(directory), *_segments(directory), *_tables(directory)]


def _description(directory: Path) -> Iterator[Finding]:
    faults = {path: description_fault(path) for path in description_files(directory)}
    on_resume = _REFUSED if all(faults.values()) else _OTHER_COPY
    for path, fault in faults.items():
        if fault:
            yield Finding(path.name, "damaged" if path.exists() else "missing", fault, on_resume)
        else:
            yield Finding(path.name, "whole", "shapes and capacity of the replay")


def _segments(directory: Path) -> Iterator[Finding]:
    machine = Machine(this_boot(), read_only=True)
    try:
        spec, capacity, further, segments = described(read_description(directory))
    except (ConflictError, KeyError, TypeError, ValueError):
        # `_description` reports damage, or a file of another version of ActorQ.
        return
    try:
        columns, _ = open_columns(directory, spec, capacity, further, machine)
    except ConflictError as error:
        yield Finding("", "missing", str(error), _REFUSED)
        return
    try:
        log = SegmentDirectory(directory / _DIRECTORY, segments, False, machine)
    except ConflictError as error:
        columns.close()
        yield Finding(_DIRECTORY, "missing", str(error), _REFUSED)
        return
    # More bytes than any replay has, so that all rows are compared with their checksums.
    recovered = recover(log, columns, machine.boot_id, checked_at_once=2**63)
    yield from _records(log, recovered)
    yield from _columns(log, columns, recovered)
    columns.close()
    log.file.close()


def _records(log: SegmentDirectory, recovered: Recovered) -> Iterator[Finding]:
    """Findings about the records of segments."""
    unreadable = [index for index in recovered.damaged if index not in recovered.records]
    faults = {
        _size_fault(log.file): "missing bytes count as zeros",
        _named("records", unreadable, log, recovered): _SKIPPED,
        "" if log.header_is_whole else "a copy of its header is damaged": "the other copy or the records are used",
        f"{recovered.dropped} segments after the last flush did not reach the disk"
        if recovered.dropped
        else "": "they are dropped; actors that still have them send them again",
    }
    faults.pop("", None)
    if faults:
        yield Finding(_DIRECTORY, "damaged", "; ".join(faults), "; ".join(dict.fromkeys(faults.values())))
    else:
        yield Finding(_DIRECTORY, "whole", f"{len(log.live):,} segments, {log.total_transitions:,} transitions so far")


def _columns(log: SegmentDirectory, columns: Columns, recovered: Recovered) -> Iterator[Finding]:
    """Findings from the rows' checksums. Each covers a segment's rows in all columns but the priorities."""
    damaged = _named("segments", [i for i in recovered.damaged if i in recovered.records], log, recovered)
    if damaged:
        yield Finding("", "damaged", f"{damaged}; their rows do not agree with their checksums", _SKIPPED)
    for file in columns.files:
        name = f"{file.name}.bin"
        if fault := _size_fault(file):
            yield Finding(name, "damaged", fault, f"missing bytes count as zeros; {_SKIPPED}")
        elif file.name == "priorities":
            yield Finding(name, "unchecked", "priorities have no checksum; values out of range are replaced")
        elif not damaged:
            yield Finding(name, "whole", f"{len(columns.flags):,} rows")


def _tables(directory: Path) -> Iterator[Finding]:
    for name, on_resume in _TABLES.items():
        try:
            if read_checked(directory / name) is not None:
                yield Finding(name, "whole", "its checksum is right")
        except (ValueError, UnreadableError) as error:
            yield faulty(name, error, on_resume)


def _size_fault(file: MappedFile) -> str:
    return "" if file.found_bytes == len(file) else f"expected {len(file):,} bytes, got {file.found_bytes:,}"


def _named(what: str, indexes: Sequence[int], log: SegmentDirectory, recovered: Recovered) -> str:
    """A text with the number of damaged live segments and some of their indexes; empty when none is damaged."""
    if not indexes:
        return ""
    names = ", ".join(map(str, indexes[:_MOST_NAMED])) + (", ..." if len(indexes) > _MOST_NAMED else "")
    return f"{len(indexes)} of {len(log.live) + len(recovered.damaged)} {what} are damaged: {names}"
