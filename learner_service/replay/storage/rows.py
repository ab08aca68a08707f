"""Turns segments into rows of the replay ring, and writes the rows.

A segment [T, N] with stacks of K frames takes N * (K + T) rows, environment by environment. Each agent of an
environment counts as one here. Each environment has K - 1
context rows for stacks only, then T rows of steps, then one row with the bootstrap observation. The observation after a
valid row i is therefore always in row i + 1. That row is the next step, the bootstrap row, or a reset step. A reset
step has the final observation of the ended episode. The stack of a step or bootstrap row is that row and the K - 1 rows
before it. A stack never extends beyond the start of its episode, which follows from the row's age. Each segment stores
a frame only once, not once for each stack.
"""

import math

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import Array
from actorq.domain.trajectory import Segment
from actorq.statefiles.crc import crc32
from learner_service.replay.storage.columns import FOLLOWS, MAX_AGE, TERMINATED, TRUNCATED, VALID, Columns
from learner_service.replay.storage.mapped_files import MappedFile


def segment_rows(steps: int, environments: int, frame_stack: int) -> int:
    """Rows of a segment: for each environment the context of its first stack, its steps, and a bootstrap row."""
    return environments * (frame_stack + steps)


class RowWriter:
    """Writes segments of `steps` x `environments` to `columns`. Not thread-safe: the store's lock covers it.

    Builds the rows in memory, one column after the other as in `Columns.checksum`. Context and bootstrap rows have only
    observations and ages. Their other columns stay 0. A further column with one entry for each segment and environment
    has that entry in the row of the first step.
    """

    def __init__(self, columns: Columns, frame_stack: int, steps: int, environments: int) -> None:
        self.shape = (steps, environments)
        self._count = segment_rows(steps, environments, frame_stack)
        self._priorities = columns.priorities
        self._context = frame_stack - 1
        self._steps = np.arange(steps + 1)[:, None]
        sizes = [column.dtype.itemsize * math.prod(column.shape[1:]) for _, column in columns.checksummed]
        self._memory = memoryview(bytearray(self._count * sum(sizes)))
        # For each column: its file, the bytes of a row, and the rows in memory.
        self._pieces: list[tuple[MappedFile, int, memoryview]] = []
        blocks: list[Array] = []
        at = 0
        for (file, column), size in zip(columns.checksummed, sizes, strict=True):
            piece = self._memory[at : at + self._count * size]
            self._pieces.append((file, size, piece))
            block = np.frombuffer(piece, column.dtype).reshape(environments, -1, *column.shape[1:])
            blocks.append(block.swapaxes(0, 1))
            at += len(piece)
        acted = slice(self._context, -1)
        self._observations, self._ages = blocks[0], blocks[5][self._context :]
        self._actions, self._rewards, self._flags, self._versions = (block[acted] for block in blocks[1:5])
        further = {name: block[acted] for name, block in zip(columns.further, blocks[6:], strict=True)}
        self._of_segments = {name: block for name, block in further.items() if name in columns.of_segments}
        self._further = {name: block for name, block in further.items() if name not in columns.of_segments}

    def write(self, segment: Segment, start: int) -> int:
        """Write the rows of a segment of this shape, starting at row `start`. Returns their `Columns.checksum`."""
        self._observations[...] = segment.observations
        self._actions[...] = segment.actions
        self._rewards[...] = segment.rewards
        flags = segment.terminated * np.uint8(TERMINATED)
        flags |= segment.truncated * np.uint8(TRUNCATED)
        flags |= np.uint8(VALID)
        flags[0] |= np.uint8(FOLLOWS * segment.follows)
        np.multiply(flags, segment.valid, out=self._flags)
        self._versions[...] = segment.policy_versions()[:, None]
        self._ages[...] = self._ages_of(segment)
        for name, block in self._further.items():
            block[...] = segment.columns[name]
        for name, block in self._of_segments.items():
            block[0] = segment.columns[name]
        for file, size, piece in self._pieces:
            file.write(start * size, piece)
        self._priorities[start : start + self._count] = 0
        return crc32(self._memory)

    def _ages_of(self, segment: Segment) -> NDArray[np.int64]:
        """Steps since the reset, before each step and after the last one, int64[T + 1, N], at most 255."""
        if segment.valid.all():
            return np.minimum(np.add(self._steps, segment.ages, dtype=np.int64), MAX_AGE)
        # The step at which each observation's episode began, counted from the start of the segment.
        began = np.empty((len(self._steps), len(segment.ages)), np.int64)
        np.negative(segment.ages, out=began[0], dtype=np.int64)
        began[1:] = np.where(segment.valid, -MAX_AGE, self._steps[1:])
        return np.minimum(self._steps - np.maximum.accumulate(began, axis=0), MAX_AGE)
