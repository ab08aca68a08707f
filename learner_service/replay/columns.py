"""The columns of the replay ring: one memory-mapped file each, indexed by row, allocated sparsely."""

import json
import mmap
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actorq.errors import ConflictError, UserError
from actorq.files import replace_file
from actorq.trajectory import Array, EnvironmentSpec, Segment
from learner_service.replay.files import map_file

FORMAT_VERSION = 2
"""Raised whenever rows come to mean something else; 2 has ages and context rows."""
# The same with a column of greedy actions: software that does not know it must not write rows without it.
_GREEDY_FORMAT_VERSION = 3

# What an age is counted up to, in a byte; a stack of more frames could not tell where its episode began.
MAX_AGE = 255

# Bits of the `flags` column.
VALID = 1
TERMINATED = 2
TRUNCATED = 4


@dataclass(frozen=True)
class Columns:
    """Arrays that are the files: what is assigned to them is in the page cache at once.

    observations:    [rows, *observation], of the dtype of the environment; single frames, never stacks of them
    actions:         [rows, *action]
    rewards:         float32[rows]
    flags:           uint8[rows], bits VALID, TERMINATED, TRUNCATED
    policy_versions: int64[rows]
    ages:            uint8[rows], steps since the reset of the episode that the observation belongs to, at most 255
    priorities:      float32[rows], 0 where none was given yet
    greedy_actions:  [rows, *action], what the policy would have done without noise; None in a store without them
    """

    observations: Array
    actions: Array
    rewards: NDArray[np.float32]
    flags: NDArray[np.uint8]
    policy_versions: NDArray[np.int64]
    ages: NDArray[np.uint8]
    priorities: NDArray[np.float32]
    greedy_actions: Array | None
    maps: tuple[mmap.mmap, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all columns together, whether or not the file system has allocated them yet."""
        return sum(len(mapped) for mapped in self.maps)

    def write(self, segment: Segment, start: int, frame_stack: int) -> None:
        """Write the `segment_rows` of a segment from row `start` on.

        Each environment has a block of its own: the context that only stacks reach, the steps, the bootstrap row.
        """
        steps, environments, context = segment.steps, segment.environments, frame_stack - 1
        block = (environments, context + steps + 1)
        span = slice(start, start + block[0] * block[1])
        flags = segment.valid * np.uint8(VALID)
        flags |= (segment.terminated & segment.valid) * np.uint8(TERMINATED)
        flags |= (segment.truncated & segment.valid) * np.uint8(TRUNCATED)
        observations = self.observations[span].reshape(*block, *self.observations.shape[1:])
        observations[:] = segment.observations.swapaxes(0, 1)
        ages = self.ages[span].reshape(block)
        ages[:, :context] = 0
        ages[:, context:] = _ages(segment).T
        per_step = [
            (self.actions, segment.actions),
            (self.rewards, segment.rewards),
            (self.policy_versions, segment.policy_versions()[:, None]),
            (self.flags, flags),
        ]
        if self.greedy_actions is not None:
            assert segment.greedy_actions is not None
            per_step.append((self.greedy_actions, segment.greedy_actions))
        for column, values in per_step:
            rows = column[span].reshape(*block, *column.shape[1:])
            rows[:, :context] = 0
            rows[:, context:-1] = values.swapaxes(0, 1)
            rows[:, -1] = 0
        self.priorities[span] = 0

    def flush(self) -> None:
        """Block until what was written to the columns is on the disk."""
        for mapped in self.maps:
            mapped.flush()


def segment_rows(steps: int, environments: int, frame_stack: int) -> int:
    """Rows that a segment takes: of each environment the context of its first stack, its steps, and a bootstrap row."""
    return environments * (frame_stack + steps)


def open_columns(directory: Path, spec: EnvironmentSpec, capacity: int, greedy: bool) -> tuple[Columns, int | None]:
    """Map the columns for `capacity` rows of `spec` below `directory`; with them what they were sealed for.

    That is how many segments their directory has room for, None when they are new.

    greedy: whether there is one of greedy actions.

    `meta.json` is written last, so a creation that was interrupted is started over. Raises ConflictError when the
    directory holds another environment, capacity, format or set of columns, and UserError when new columns cannot fit
    the disk.
    """
    path = directory / "meta.json"
    create, segments = not path.exists(), None
    if create:
        _require_space(directory, spec, capacity, greedy)
    else:
        segments = _require_same(path, _describe(spec, capacity, greedy), greedy)
    maps: list[mmap.mmap] = []
    arrays: list[Array] = []
    for name, shape, dtype in _layout(spec, greedy):
        full_shape = (capacity, *shape)
        nbytes = int(np.prod(full_shape, dtype=np.int64)) * dtype.itemsize
        maps.append(map_file(directory / f"{name}.bin", nbytes, create))
        arrays.append(np.frombuffer(maps[-1], dtype).reshape(full_shape))
    observations, actions, *rest = arrays
    rewards, flags, versions, ages, priorities, *last = rest
    columns = Columns(
        observations,
        actions,
        rewards.view(np.float32),
        flags.view(np.uint8),
        versions.view(np.int64),
        ages.view(np.uint8),
        priorities.view(np.float32),
        last[0] if last else None,
        tuple(maps),
    )
    return columns, segments


def seal_columns(directory: Path, spec: EnvironmentSpec, capacity: int, greedy: bool, segments: int) -> None:
    """Declare a new directory complete: from now on it is reopened and no longer started over.

    segments: for how many it has room.
    """
    described = json.dumps({**_describe(spec, capacity, greedy), "segments": segments}, indent=2)
    replace_file(directory / "meta.json", described + "\n", sync=True)


def row_nbytes(spec: EnvironmentSpec, greedy: bool = False) -> int:
    """Bytes that one row takes over all columns; `greedy`: with one of greedy actions."""
    return sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for _, shape, dtype in _layout(spec, greedy))


def _layout(spec: EnvironmentSpec, greedy: bool) -> list[tuple[str, tuple[int, ...], np.dtype[np.generic]]]:
    columns: list[tuple[str, tuple[int, ...], np.dtype[np.generic]]] = [
        ("observations", spec.observations.shape, np.dtype(spec.observations.dtype)),
        ("actions", spec.actions.shape, np.dtype(spec.actions.dtype)),
        ("rewards", (), np.dtype(np.float32)),
        ("flags", (), np.dtype(np.uint8)),
        ("policy_versions", (), np.dtype(np.int64)),
        ("ages", (), np.dtype(np.uint8)),
        ("priorities", (), np.dtype(np.float32)),
    ]
    if greedy:
        columns.append(("greedy_actions", spec.actions.shape, np.dtype(spec.actions.dtype)))
    return columns


def _describe(spec: EnvironmentSpec, capacity: int, greedy: bool) -> dict[str, object]:
    # Bounds and time limits are left out: they do not change what the stored rows mean.
    return {
        "format_version": _GREEDY_FORMAT_VERSION if greedy else FORMAT_VERSION,
        "capacity": capacity,
        "environment_id": spec.environment_id,
        "observations": {"shape": list(spec.observations.shape), "dtype": np.dtype(spec.observations.dtype).str},
        "actions": {"shape": list(spec.actions.shape), "dtype": np.dtype(spec.actions.dtype).str},
        "discrete_actions": spec.discrete_actions,
        "frame_stack": spec.frame_stack,
    }


def _ages(segment: Segment) -> NDArray[np.int64]:
    """Steps since the reset of the observation before each step and after the last, int64[T + 1, N], at most 255."""
    steps = np.arange(segment.steps + 1)[:, None]
    # The step, counted from the segment's first, at which each observation's episode began.
    began = np.full((segment.steps + 1, segment.environments), -MAX_AGE)
    began[0] = -segment.ages.astype(np.int64)
    began[1:][~segment.valid] = np.broadcast_to(steps[1:], segment.valid.shape)[~segment.valid]
    return np.minimum(steps - np.maximum.accumulate(began, axis=0), MAX_AGE)


def _require_same(path: Path, expected: dict[str, object], greedy: bool) -> int:
    """Raise ConflictError unless what is there is what is expected; returns for how many segments it has room."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConflictError(f"replay: {path} is not JSON ({error}); remove {path.parent} to start empty") from None
    if not isinstance(found, dict):
        raise ConflictError(f"replay: {path} is not a JSON object; remove {path.parent} to start empty")
    stored = found.get("format_version")
    if greedy and stored == FORMAT_VERSION:
        raise ConflictError(
            f"replay: {path.parent} was filled without the actions that dynamic_buffer compares; resume with "
            "--no-dynamic-buffer, start this run in another directory, or remove this one to start empty"
        )
    if not greedy and stored == _GREEDY_FORMAT_VERSION:
        raise ConflictError(
            f"replay: {path.parent} was filled with the actions that dynamic_buffer compares; resume with "
            "--dynamic-buffer, start this run in another directory, or remove this one to start empty"
        )
    for key, value in expected.items():
        if found.get(key) != value:
            raise ConflictError(
                f"replay: {path.parent} holds {key} {found.get(key)!r}, expected {value!r}; "
                "start this run in another directory, or remove this one to start empty"
            )
    segments = found.get("segments")
    if not isinstance(segments, int) or segments < 1:
        raise ConflictError(
            f"replay: {path.parent} holds room for {segments!r} segments, expected a whole number above 0; "
            "remove it to start empty"
        )
    return segments


def _require_space(directory: Path, spec: EnvironmentSpec, capacity: int, greedy: bool) -> None:
    # Writing to a mapped sparse file on a full disk ends the process with SIGBUS, so a lack of space has to be
    # found out before the first row.
    needed = row_nbytes(spec, greedy) * capacity
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise UserError(
            f"replay: {capacity} rows need {needed / 2**30:.2f} GiB below {directory}, where {free / 2**30:.2f} GiB "
            "are free; lower the replay capacity or choose another directory"
        )
