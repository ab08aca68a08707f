"""The description of a replay's files: `meta.json` and its copy."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from actorq.domain.columns import GREEDY_ACTIONS, LOG_PROBABILITIES, PRESENT, Column, own_columns, state_size_of
from actorq.domain.contract import CONTRACT, check_written
from actorq.domain.environments import Group
from actorq.domain.goals import HINDSIGHT, Goal
from actorq.domain.leaves import Leaf
from actorq.domain.spaces import ArraySpec, EnvironmentSpec, sizes_of
from actorq.errors import ConflictError
from learner_service.replay.storage.mapped_files import read_checked, write_checked

_log = logging.getLogger(__name__)

FORMAT_VERSION = 8
"""Changes with the meaning of rows or records. Version 8 has the sizes of actions, version 7 the further columns."""
# Earlier versions, each with the further columns that it implies. Their rows and records are the same.
_EARLIER: Mapping[object, tuple[str, ...] | None] = {4: (), 5: (GREEDY_ACTIONS,), 6: (LOG_PROBABILITIES,), 7: None}
NEEDED_BY = {
    GREEDY_ACTIONS: ("dynamic_capacity", "--dynamic-capacity.enabled", "--no-dynamic-capacity.enabled"),
    LOG_PROBABILITIES: ("an on-policy algorithm", "", ""),
    PRESENT: ("an environment with several agents", "", ""),
    **{
        name: ("hindsight", f"--hindsight.copies {each.copies}", "--hindsight.copies 0")
        for each in HINDSIGHT
        for name in each.names
    },
}
"""The reason for each further column, and the flags of a run with and without this column."""


def needed_by(name: str, otherwise: str) -> tuple[str, str, str]:
    """The entry of `NEEDED_BY`, also for states. otherwise: the reason for an unknown column."""
    if state_size_of(name):
        return "a policy with a state of this size", "its memory.kind and memory.units", "--memory none"
    return NEEDED_BY.get(name, (otherwise, "", ""))


_ELSEWHERE = "start this run in another directory, or remove this one to start empty"


def description_files(directory: Path) -> tuple[Path, ...]:
    """Paths of the description and its copy, which is written first."""
    return directory / "meta.json", directory / "meta.copy.json"


def write_description(
    directory: Path, spec: EnvironmentSpec, capacity: int, further: Sequence[Column], segments: int
) -> None:
    """Declare a directory with room for `segments` segments complete. Later it is reopened, not created again."""
    values = {**_describe(spec, capacity, further), "segments": segments}
    for path in reversed(description_files(directory)):
        write_checked(path, values)


def _describe(spec: EnvironmentSpec, capacity: int, further: Sequence[Column]) -> dict[str, Any]:
    """The meaning of a replay's rows, as JSON values."""
    # Bounds and time limits are left out, because they do not change the meaning of stored rows.
    return {
        "format_version": FORMAT_VERSION,
        "contract": CONTRACT,
        "further_columns": [column.name for column in further],
        "capacity": capacity,
        "environment_id": spec.environment_id,
        "observations": {"shape": list(spec.observations.shape), "dtype": np.dtype(spec.observations.dtype).str},
        "actions": {"shape": list(spec.actions.shape), "dtype": np.dtype(spec.actions.dtype).str},
        "sizes": [*spec.sizes],
        "frame_stack": spec.frame_stack,
        # Older descriptions have none of these values.
        **({"leaves": [_leaf(leaf) for leaf in spec.leaves]} if spec.leaves else {}),
        **({} if spec.goal is None else {"goal": vars(spec.goal).copy()}),
        **({"agents": [*spec.agents]} if spec.agents else {}),
        **({"groups": [{**asdict(each), "agents": [*each.agents]} for each in spec.groups]} if spec.groups else {}),
    }


def _leaf(leaf: Leaf) -> dict[str, Any]:
    values = {**asdict(leaf), "shape": [*leaf.shape]}
    if not leaf.critic:
        # Descriptions without critics' leaves stay those of earlier versions.
        del values["critic"]
    return values


def described(found: dict[str, Any]) -> tuple[EnvironmentSpec, int, tuple[Column, ...], int]:
    """The meaning of a description: spec, capacity, further columns, and room for segments."""
    observations, actions = (
        ArraySpec(tuple(found[name]["shape"]), np.dtype(found[name]["dtype"]).name)
        for name in ("observations", "actions")
    )
    leaves = tuple(Leaf(**{**leaf, "shape": tuple(leaf["shape"])}) for leaf in found.get("leaves", ()))
    spec = EnvironmentSpec(
        *(found["environment_id"], replace(observations, leaves=leaves), actions, tuple(found["sizes"])),
        frame_stack=found["frame_stack"],
        goal=Goal(**found["goal"]) if "goal" in found else None,
        agents=tuple(found.get("agents", ())),
        groups=tuple(Group(each["name"], tuple(each["agents"]), each["bit"]) for each in found.get("groups", ())),
    )
    further = own_columns(spec, found["further_columns"])
    return spec, found["capacity"], further, found["segments"]


def require_same(directory: Path, spec: EnvironmentSpec, capacity: int, further: Sequence[Column], repair: bool) -> int:
    """Raise ConflictError if the description differs. Returns its room for segments. repair: rewrite damaged files."""
    found = read_description(directory)
    check_written(f"replay: {directory}", found.get("contract", 1))
    for key, value in _describe(spec, capacity, further).items():
        if key == "further_columns":
            _require_columns(directory, found[key], value)
        elif key != "contract" and found.get(key) != value:
            raise ConflictError(f"replay: {directory} holds {key} {found.get(key)!r}, expected {value!r}; {_ELSEWHERE}")
    segments = found.get("segments")
    if not isinstance(segments, int) or segments < 1:
        raise ConflictError(
            f"replay: {directory} has room for {segments!r} segments, expected a whole number above 0; "
            "remove it to start empty"
        )
    if repair and any(map(description_fault, description_files(directory))):
        write_description(directory, spec, capacity, further, segments)
    return segments


def _require_columns(directory: Path, found: Sequence[str], expected: Sequence[str]) -> None:
    for name in sorted(set(found) ^ set(expected)):
        user, with_it, without_it = needed_by(name, "another version")
        words = name.replace("_", " ")
        fault = f"{words}, which only {user} uses" if name in found else f"no {words}, which {user} needs"
        flag = with_it if name in found else without_it
        raise ConflictError(f"replay: {directory} has {fault}; {f'resume with {flag}, ' if flag else ''}{_ELSEWHERE}")


def read_description(directory: Path) -> dict[str, Any]:
    """The description or its copy. Raises ConflictError if none is whole."""
    for path in description_files(directory):
        if not (fault := description_fault(path)):
            return _as_now(dict(read_checked(path)))
        _log.warning("replay: %s", fault)
    raise ConflictError(
        f"replay: {directory / 'meta.json'} and meta.copy.json are damaged; restore one of them, or remove {directory} "
        "to start empty"
    )


def _as_now(found: dict[str, Any]) -> dict[str, Any]:
    """A description as this version writes it, if its rows have the same meaning."""
    version = found.get("format_version")
    if version not in _EARLIER:
        return found
    further = _EARLIER[version]
    columns = found["further_columns"] if further is None else [*further]
    now = {"format_version": FORMAT_VERSION, "contract": CONTRACT}
    return {**found, **now, "further_columns": columns, "sizes": [*sizes_of(found)]}


def description_fault(path: Path) -> str:
    """The fault of a description file; empty when it is whole."""
    try:
        found = read_checked(path)
    except ValueError as error:
        return str(error)
    return "" if isinstance(found, dict) else f"{path} is missing"
