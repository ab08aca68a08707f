"""What a replay's files hold: `meta.json`, of which there is a copy."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from actorq.domain.trajectory import ArraySpec, EnvironmentSpec
from actorq.errors import ConflictError
from learner_service.replay.storage.mapped_files import read_checked, write_checked

_log = logging.getLogger(__name__)

FORMAT_VERSION = 4
"""Raised whenever rows or records come to mean something else; 4 has checksums of rows and a watermark."""
# The same with a column of greedy actions: software that does not know it must not write rows without it.
_GREEDY_FORMAT_VERSION = 5
# Written before the first and read where that is damaged.
_META, _META_COPY = "meta.json", "meta.copy.json"


def description_files(directory: Path) -> tuple[Path, ...]:
    """Where the description and its copy are."""
    return tuple(directory / name for name in (_META, _META_COPY))


def write_description(directory: Path, spec: EnvironmentSpec, capacity: int, greedy: bool, segments: int) -> None:
    """Declare a new directory complete: from now on it is reopened and no longer started over.

    segments: for how many it has room.
    """
    values = {**describe(spec, capacity, greedy), "segments": segments}
    for name in (_META_COPY, _META):
        write_checked(directory / name, values)


def describe(spec: EnvironmentSpec, capacity: int, greedy: bool) -> dict[str, object]:
    """What the rows of a replay mean."""
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


def described(found: dict[str, Any]) -> tuple[EnvironmentSpec, int, bool, int]:
    """The inverse of `describe`: spec, capacity, whether greedy actions are kept, and for how many segments."""
    observations, actions = (
        ArraySpec(tuple(found[name]["shape"]), np.dtype(found[name]["dtype"]).name)
        for name in ("observations", "actions")
    )
    spec = EnvironmentSpec(
        *(found["environment_id"], observations, actions, found["discrete_actions"]), frame_stack=found["frame_stack"]
    )
    return spec, found["capacity"], found["format_version"] == _GREEDY_FORMAT_VERSION, found["segments"]


def require_same(directory: Path, expected: dict[str, object], greedy: bool) -> int:
    """Raise ConflictError unless what is there is what is expected; returns for how many segments it has room."""
    path = directory / _META
    found = read_description(directory)
    stored = found.get("format_version")
    if greedy and stored == FORMAT_VERSION:
        raise ConflictError(
            f"replay: {path.parent} was filled without the actions that dynamic_capacity compares; resume with "
            "--no-dynamic-capacity.enabled, start this run in another directory, or remove this one to start empty"
        )
    if not greedy and stored == _GREEDY_FORMAT_VERSION:
        raise ConflictError(
            f"replay: {path.parent} was filled with the actions that dynamic_capacity compares; resume with "
            "--dynamic-capacity.enabled, start this run in another directory, or remove this one to start empty"
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


def read_description(directory: Path) -> dict[str, Any]:
    """What `write_description` wrote, from the copy if it has to be; or what software before checksums wrote.

    Raises ConflictError when none of the two files is whole.
    """
    for name in (_META, _META_COPY):
        if not (fault := description_fault(directory / name)):
            return dict(read_checked(directory / name))
        if (old := _read_unchecked(directory / name)) is not None:
            return old
        _log.warning("replay: %s", fault)
    raise ConflictError(
        f"replay: {directory / _META} and {_META_COPY} are damaged; restore one of them, or remove {directory} to "
        "start empty"
    )


def description_fault(path: Path) -> str:
    """What is wrong with one of the two files that `read_description` reads; empty when it is whole."""
    try:
        found = read_checked(path)
    except ValueError as error:
        return str(error)
    return "" if isinstance(found, dict) else f"{path} is missing"


def _read_unchecked(path: Path) -> dict[str, object] | None:
    """A description without a checksum: of an older format, so that the reader can say so."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "values" not in found and "format_version" in found else None
