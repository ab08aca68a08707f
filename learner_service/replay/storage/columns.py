"""The columns of the replay ring: one memory-mapped, sparse file each, indexed by row."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import Array, Column, Per, columns_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from actorq.statefiles.crc import crc32
from actorq.text import size_text
from learner_service.replay.storage.description import description_files, require_same
from learner_service.replay.storage.mapped_files import PAGE_BYTES, Machine, MappedFile

# Columns that are also read in rows without a segment. On some file systems (tmpfs) such reads need space too.
_WHOLE = ("flags", "priorities")

# The largest age, in one byte. It limits the frame stack, which needs the start of its episode.
MAX_AGE = 255

# Bits of the `flags` column.
VALID = 1
TERMINATED = 2
TRUNCATED = 4
# Marks the first step of a segment that directly follows the previous segment, unless the step only resets.
FOLLOWS = 8


@dataclass(frozen=True)
class Columns:
    """Arrays that are views of the files: an assignment changes the page cache at once.

    observations:    [rows, *observation], of the environment's dtype; single frames, never stacks
    actions:         [rows, *action]
    rewards:         float32[rows]
    flags:           uint8[rows], bits VALID, TERMINATED, TRUNCATED, FOLLOWS
    policy_versions: int64[rows]
    ages:            uint8[rows], steps since the reset of the episode that the observation belongs to, at most 255
    priorities:      float32[rows], 0 where none was given yet
    further:         the run's further columns by name, [rows, ...] (see actorq.domain.columns)
    of_segments:     names of the further columns with one entry for each segment, in the row of its first step
    """

    observations: Array
    actions: Array
    rewards: NDArray[np.float32]
    flags: NDArray[np.uint8]
    policy_versions: NDArray[np.int64]
    ages: NDArray[np.uint8]
    priorities: NDArray[np.float32]
    further: Mapping[str, Array]
    files: tuple[MappedFile, ...]
    of_segments: frozenset[str] = frozenset()

    @property
    def nbytes(self) -> int:
        """Bytes of all columns together, allocated on the disk or not."""
        return sum(len(file) for file in self.files)

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return self.nbytes // len(self.flags)

    def allocate(self, rows: int) -> None:
        """Allocate disk space for the first `rows` rows. Raises OSError."""
        for file in self.files:
            file.allocate(len(file) * rows // len(self.flags))

    def checksum(self, start: int, stop: int) -> int:
        """CRC-32 of these rows in all columns except the priorities, which change later."""
        crc = 0
        for _, column in self.checksummed:
            crc = crc32(column[start:stop], crc)
        return crc

    @property
    def checksummed(self) -> list[tuple[MappedFile, Array]]:
        """The columns with a checksum, in the checksum's order, each with its file."""
        columns = (self.observations, self.actions, self.rewards, self.flags, self.policy_versions, self.ages)
        files = (file for file in self.files if file.name != "priorities")
        return list(zip(files, (*columns, *self.further.values()), strict=True))

    def sync(self) -> None:
        """Block until all columns except the priorities are on the disk. An old priority, or 0, is good enough."""
        for file, _ in self.checksummed:
            file.sync()

    def touch(self, start: int, stop: int) -> None:
        """Mark the pages of these rows as changed, after the disk has failed to write them."""
        for file in self.files:
            row = len(file) // len(self.flags)
            span = np.frombuffer(file.map, np.uint8)[start * row : stop * row]
            span[::PAGE_BYTES] |= 0
            span[-1:] |= 0

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()


def open_columns(
    directory: Path, spec: EnvironmentSpec, capacity: int, further: Sequence[Column], machine: Machine
) -> tuple[Columns, int | None]:
    """Map the columns for `capacity` rows of `spec`, and the run's `further` ones, below `directory`.

    Returns the columns and the number of segments that their directory has room for; None for new columns.

    `meta.json` is written last, so an interrupted creation starts over. Raises ConflictError when the directory holds
    another environment, capacity, format or set of columns. Raises UserError when new columns do not fit on the disk.
    """
    create, segments = not any(path.exists() for path in description_files(directory)), None
    layout = [*_layout(spec), *further]
    if create:
        # A write to a mapped sparse file on a full disk ends the process with SIGBUS, so the space is checked first.
        needed, free = capacity * sum(column.nbytes for column in layout), shutil.disk_usage(directory).free
        if needed > free:
            raise UserError(
                f"replay: {capacity} rows need {size_text(needed)} below {directory}, where {size_text(free)} are "
                "free; lower the replay capacity or choose another directory"
            )
    else:
        segments = require_same(directory, spec, capacity, further, repair=not machine.read_only)
    files: list[MappedFile] = []
    arrays: dict[str, Any] = {}
    for column in layout:
        file = MappedFile(directory / f"{column.name}.bin", capacity * column.nbytes, create, machine)
        files.append(file)
        arrays[column.name] = np.frombuffer(file.map, column.dtype).reshape(capacity, *column.shape)
        if column.name in _WHOLE:
            file.allocate(len(file))
    own = {column.name: arrays.pop(column.name) for column in further}
    of_segments = frozenset(column.name for column in further if column.per is Per.SEGMENT)
    return Columns(**arrays, further=own, files=tuple(files), of_segments=of_segments), segments


def _layout(spec: EnvironmentSpec) -> list[Column]:
    """The columns of every store. Flags and policy versions are derived, and the learner sets the priorities."""
    return [
        *(column for column in columns_of(spec) if column.name in ("observations", "actions", "rewards")),
        Column("flags", (), np.dtype(np.uint8)),
        Column("policy_versions", (), np.dtype(np.int64)),
        Column("ages", (), np.dtype(np.uint8)),
        Column("priorities", (), np.dtype(np.float32)),
    ]
