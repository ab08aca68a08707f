"""The columns of the replay ring: one memory-mapped, sparse file each, indexed by row."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from actorq.domain.trajectory import Array, EnvironmentSpec
from actorq.errors import UserError
from actorq.statefiles.crc import crc32
from actorq.text import size_text
from learner_service.replay.storage.description import (
    describe,
    description_fault,
    description_files,
    require_same,
    write_description,
)
from learner_service.replay.storage.mapped_files import PAGE_BYTES, Machine, MappedFile

# Columns that a store may have besides the others, named as in `Segment`.
OPTIONAL = ("greedy_actions", "log_probabilities")

# Columns that are also read where no segment was written. On some file systems (tmpfs) such reads need space too.
_WHOLE = ("flags", "priorities")

# The largest age, in one byte. It limits the frame stack, which needs the start of its episode.
MAX_AGE = 255

# Bits of the `flags` column.
VALID = 1
TERMINATED = 2
TRUNCATED = 4
# The first step of a segment that directly follows the segment before. Not set in a step that only resets.
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
    greedy_actions:  [rows, *action], the policy's actions without noise; None in a store without them
    log_probabilities: float32[rows], with which the acting policy drew each action; None in a store without them
    """

    observations: Array
    actions: Array
    rewards: NDArray[np.float32]
    flags: NDArray[np.uint8]
    policy_versions: NDArray[np.int64]
    ages: NDArray[np.uint8]
    priorities: NDArray[np.float32]
    greedy_actions: Array | None
    log_probabilities: NDArray[np.float32] | None
    files: tuple[MappedFile, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all columns together, allocated on the disk or not."""
        return sum(len(file) for file in self.files)

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row."""
        return self.nbytes // len(self.flags)

    def allocate(self, rows: int) -> None:
        """Take disk space for the first `rows` rows. Raises OSError."""
        for file in self.files:
            file.allocate(len(file) * rows // len(self.flags))

    def checksum(self, start: int, stop: int) -> int:
        """CRC-32 of these rows in all columns but the priorities, which change later."""
        crc = 0
        for _, column in self.checksummed:
            crc = crc32(column[start:stop], crc)
        return crc

    @property
    def checksummed(self) -> list[tuple[MappedFile, Array]]:
        """The columns with a checksum, in its order, each with its file."""
        columns = (self.observations, self.actions, self.rewards, self.flags, self.policy_versions, self.ages)
        files = (file for file in self.files if file.name != "priorities")
        return list(zip(files, (*columns, *self.optional.values()), strict=True))

    @property
    def optional(self) -> dict[str, Array]:
        """The optional columns that the store has, by name."""
        columns = ((name, getattr(self, name)) for name in OPTIONAL)
        return {name: column for name, column in columns if column is not None}

    def sync(self) -> None:
        """Block until everything that was written to the columns before the call is on the disk.

        Leaves out the priorities: they change everywhere, and an old priority or 0 serves as well.
        """
        for file in self.files:
            if file.name != "priorities":
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
    directory: Path, spec: EnvironmentSpec, capacity: int, optional: Sequence[str], machine: Machine
) -> tuple[Columns, int | None]:
    """Map the columns for `capacity` rows of `spec` below `directory`.

    Returns the columns and the number of segments that their directory has room for; None for new columns.

    optional: names of the optional columns to have.

    `meta.json` is written last, so an interrupted creation starts over. Raises ConflictError when the directory holds
    another environment, capacity, format or set of columns. Raises UserError when new columns do not fit on the disk.
    """
    create, segments = not any(path.exists() for path in description_files(directory)), None
    layout = _layout(spec, optional)
    sizes = {name: math.prod(shape) * dtype.itemsize for name, shape, dtype in layout}
    if create:
        _require_space(directory, capacity, sum(sizes.values()))
    else:
        segments = require_same(directory, describe(spec, capacity, optional), optional)
        if not machine.read_only and any(map(description_fault, description_files(directory))):
            write_description(directory, spec, capacity, optional, segments)
    files: list[MappedFile] = []
    arrays: dict[str, Array] = {}
    for name, shape, dtype in layout:
        file = MappedFile(directory / f"{name}.bin", capacity * sizes[name], create, machine)
        files.append(file)
        arrays[name] = np.frombuffer(file.map, dtype).reshape(capacity, *shape)
        if name in _WHOLE:
            file.allocate(len(file))
    columns: Any = {name: arrays.get(name) for name in OPTIONAL} | arrays
    return Columns(**columns, files=tuple(files)), segments


def _layout(spec: EnvironmentSpec, optional: Sequence[str]) -> list[tuple[str, tuple[int, ...], np.dtype[np.generic]]]:
    """Name, shape and dtype of a row of each column."""
    columns: list[tuple[str, tuple[int, ...], DTypeLike]] = [
        ("observations", spec.observations.shape, spec.observations.dtype),
        ("actions", spec.actions.shape, spec.actions.dtype),
        ("rewards", (), np.float32),
        ("flags", (), np.uint8),
        ("policy_versions", (), np.int64),
        ("ages", (), np.uint8),
        ("priorities", (), np.float32),
        ("greedy_actions", spec.actions.shape, spec.actions.dtype),
        ("log_probabilities", (), np.float32),
    ]
    left_out = set(OPTIONAL) - set(optional)
    return [(name, shape, np.dtype(dtype)) for name, shape, dtype in columns if name not in left_out]


def _require_space(directory: Path, capacity: int, row_nbytes: int) -> None:
    # A write to a mapped sparse file on a full disk ends the process with SIGBUS. So check the space before.
    needed = row_nbytes * capacity
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise UserError(
            f"replay: {capacity} rows need {size_text(needed)} below {directory}, where {size_text(free)} are free; "
            "lower the replay capacity or choose another directory"
        )
