"""A data set in a folder: the files of a replay, and a description of their content."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actorq.domain.columns import Array, columns_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from actorq.errors import ActorQError, ConflictError, InvalidInputError, UserError
from actorq.statefiles.documents import read_either, write_twice
from actorq.statefiles.files import sync_folder
from actorq.statefiles.locks import lock_file
from actorq.text import size_text
from learner_service.datasets.episodes import Episode, Source, fitted
from learner_service.replay.storage.columns import MAX_AGE
from learner_service.replay.storage.rows import segment_rows
from learner_service.replay.storage.sequences import SegmentSource
from learner_service.replay.storage.store import ReplayStore
from learner_service.replay.stored.read_only import ReadOnlyStore

FORMAT = 1
"""Version of the format of a data set's description."""
_DESCRIPTION = "dataset.json"
# Longest segment of an episode, so that a damaged byte costs few steps.
_MOST_STEPS = 256
# Bytes of a row beside observation and action: reward, flags, version, age and priority.
_ROW_BYTES = 18
_MARGIN_BYTES = 2**20
_ACTOR = "dataset"


@dataclass(frozen=True)
class StoredDataset:
    """The description of a data set.

    source: where its episodes come from. returns: of each episode, as mean, deviation, lowest and highest.
    digest: identifies the content.
    """

    directory: Path
    spec: EnvironmentSpec
    source: str
    transitions: int
    episodes: int
    terminated: int
    returns: tuple[float, float, float, float]
    digest: str

    @classmethod
    def read(cls, directory: Path) -> "StoredDataset":
        """The description in a folder. Raises UserError when there is none, or none that is whole."""
        try:
            values = read_either(directory / _DESCRIPTION)
        except InvalidInputError as error:
            raise UserError(f"dataset: {directory}: {error}, and no copy of it is whole; import it again") from None
        if values is None:
            raise UserError(
                f"dataset: expected the folder of a data set, got {directory}, which has no {_DESCRIPTION}; make one "
                "with actorq dataset import"
            )
        if values.get("format") != FORMAT:
            raise UserError(
                f"dataset: {directory}: expected format {FORMAT}, got {values.get('format')}: use the version of "
                "ActorQ that wrote it, or import it again"
            )
        spec = EnvironmentSpec.from_json(values["environment"])
        return cls(
            *(directory, spec, values["source"], values["transitions"], values["episodes"], values["terminated"]),
            *(tuple(values["returns"]), values["content"]),
        )

    def open(self) -> ReadOnlyStore:
        """Its transitions. Raises UserError when the files are not those of the description, or all are damaged."""
        try:
            store = ReadOnlyStore.read(self.directory, self.spec)
        except ConflictError as error:
            raise UserError(f"dataset: {self.directory}: {error}; import it again") from None
        if store.digest != self.digest or store.transitions == 0:
            store.close()
            raise UserError(
                f"dataset: {self.directory} is damaged: expected segments with digest {self.digest}, got "
                f"{store.digest}; import it again"
            )
        return store

    def check_fits(self, spec: EnvironmentSpec) -> None:
        """Raise UserError unless it was recorded in the environment of a run, with the same spaces."""
        if self.spec.environment_id != spec.environment_id:
            raise UserError(
                f"dataset: expected data of {spec.environment_id}, got data of {self.spec.environment_id} in "
                f"{self.directory}; give another data set, or train {self.spec.environment_id}"
            )
        if spec.agents:
            raise UserError(
                f"dataset: expected an environment with one agent, got {spec.environment_id} with {spec.agent_count}; "
                "leave dataset out"
            )
        for name in ("observations", "actions", "sizes", "frame_stack"):
            here, there = getattr(spec, name), getattr(self.spec, name)
            if here != there and not (name == "observations" and _same(here, there)):
                raise UserError(
                    f"dataset: expected {name} {here!r:.160}, got {there!r:.160} in {self.directory}; import the data "
                    "again for this environment"
                )


def write(directory: Path, spec: EnvironmentSpec, source: Source) -> StoredDataset:
    """Store all episodes of a source in a new folder, which appears whole or not at all.

    Raises UserError when the folder exists, when another process imports to it, when the source has no episode or one
    that does not fit the environment, and when the disk has no room.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _only_import(directory):
        if directory.exists():
            raise UserError(f"dataset import: {directory} exists; give another --name, or remove the folder")
        return _write(directory, spec, source)


def _write(directory: Path, spec: EnvironmentSpec, source: Source) -> StoredDataset:
    lengths = source.lengths
    if not lengths:
        raise UserError(f"dataset import: expected at least one episode, got none in {source.text}")
    pieces = [piece for length in lengths for piece in _pieces(length)]
    sizes = [segment_rows(stop - start, 1, spec.frame_stack) for start, stop in pieces]
    capacity = max(sum(sizes), 2 * max(sizes), 4)
    _check_room(directory, spec, capacity)
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        store = ReplayStore.open(partial, spec, capacity, rows_per_segment=max(1, capacity // len(pieces)))
        try:
            returns, terminated = _fill(store, spec, source)
        finally:
            store.close()
        if not returns:
            raise UserError(f"dataset import: expected at least one whole episode, got none in {source.text}")
        stored = ReadOnlyStore.read(partial, spec, checked_at_once=0)
        digest, transitions = stored.digest, stored.transitions
        stored.close()
        measures = (float(np.mean(returns)), float(np.std(returns)), min(returns), max(returns))
        made = StoredDataset(directory, spec, source.text, transitions, len(returns), terminated, measures, digest)
        write_twice(partial / _DESCRIPTION, _as_json(made))
        partial.rename(directory)
        sync_folder(directory.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return made


@contextmanager
def _only_import(directory: Path) -> Iterator[None]:
    """Hold the right to make this folder. The kernel releases it with the process, also after SIGKILL."""
    path = directory.with_name(f".{directory.name}.lock")
    taken = UserError(
        f"dataset import: another process imports to {directory}; wait for its end, or give another --name"
    )
    with lock_file(path, taken) as lock:
        # The process before may have removed the file since this one opened it.
        if not path.exists() or not os.path.samestat(os.fstat(lock.fileno()), path.stat()):
            raise taken
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _fill(store: ReplayStore, spec: EnvironmentSpec, source: Source) -> tuple[list[float], int]:
    """Insert all episodes. Returns their returns, and the number that ended in a terminal state."""
    expected = columns_of(spec)
    returns: list[float] = []
    sequence = terminated = 0
    for number, given in enumerate(source):
        episode = fitted(given, number, spec)
        for start, stop in _pieces(len(episode)):
            sequence += 1
            segment = _segment(episode, start, stop, sequence, spec.frame_stack)
            try:
                segment.check(spec, expected)
                store.insert(segment, SegmentSource.from_name(_ACTOR, 1, sequence))
            except InvalidInputError as error:
                text = str(error).removeprefix("segment: ")
                raise UserError(f"dataset import: {source.text}: episode {number}: {text}") from None
            except ActorQError as error:
                raise UserError(f"dataset import: {source.text}: {error}") from None
        returns.append(episode.episode_return)
        terminated += episode.terminated
    return returns, terminated


def _pieces(steps: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _MOST_STEPS, steps)) for start in range(0, steps, _MOST_STEPS))


def _segment(episode: Episode, start: int, stop: int, sequence: int, frame_stack: int) -> Segment:
    """The steps [start, stop) of an episode as a segment of one environment."""
    rows = np.maximum(np.arange(start - frame_stack + 1, stop + 1), 0)
    ends = np.arange(start, stop) == len(episode) - 1
    columns: dict[str, Array] = {
        "observations": episode.observations[rows],
        "actions": episode.actions[start:stop],
        "rewards": episode.rewards[start:stop],
        "terminated": ends & episode.terminated,
        "truncated": ends & episode.truncated,
        "valid": np.ones(stop - start, np.bool_),
    }
    columns = {name: np.ascontiguousarray(column)[:, None] for name, column in columns.items()}
    columns["ages"] = np.array([min(start, MAX_AGE)], np.uint8)
    return Segment(sequence, columns, _spans(episode, start, stop), follows=start > 0)


def _spans(episode: Episode, start: int, stop: int) -> tuple[PolicySpan, ...]:
    if episode.policy_versions is None:
        return (PolicySpan(0, 0, ""),)
    versions = episode.policy_versions[start:stop]
    firsts: Sequence[int] = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist()]
    return tuple(PolicySpan(first, int(versions[first]), "") for first in firsts)


def _check_room(directory: Path, spec: EnvironmentSpec, capacity: int) -> None:
    needed = capacity * (spec.observations.nbytes + spec.actions.nbytes + _ROW_BYTES) + _MARGIN_BYTES
    free = shutil.disk_usage(directory.parent).free
    if needed > free:
        raise UserError(
            f"dataset import: {capacity:,} rows need {size_text(needed)} in {directory.parent}, where "
            f"{size_text(free)} are free; make room, or give --directory on another disk"
        )


def _as_json(made: StoredDataset) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "environment": made.spec.to_json(),
        "source": made.source,
        "transitions": made.transitions,
        "episodes": made.episodes,
        "terminated": made.terminated,
        "returns": made.returns,
        # A document has a digest of its own.
        "content": made.digest,
    }


def _same(here: Any, there: Any) -> bool:
    """Whether observations are equal apart from their bounds, which differ between libraries."""
    return (here.shape, here.dtype, here.leaves) == (there.shape, there.dtype, there.leaves)
