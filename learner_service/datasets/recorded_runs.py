"""Reads the episodes of a run from its replay, without changing its files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.domain.columns import LOG_PROBABILITIES
from actorq.errors import ConflictError, UserError
from actorq.rundirectory import RunDirectory
from learner_service.datasets.episodes import Episode
from learner_service.datasets.stored import StoredDataset
from learner_service.replay.storage.columns import TERMINATED, TRUNCATED, VALID
from learner_service.replay.storage.description import description_files
from learner_service.replay.storage.directory import Record
from learner_service.replay.stored.read_only import ReadOnlyStore

_Rows = NDArray[np.int64]


@dataclass(frozen=True)
class _Stretch:
    """Consecutive stored steps of one episode.

    rows: of the steps, int64[T]. last: the row of the observation after the last step.
    """

    rows: _Rows
    last: int


class RecordedRun:
    """The stored episodes of a run, or of a data set. The run may be in progress.

    An episode whose start is no longer stored begins later. An episode whose end is not stored counts as truncated
    after its last stored step. Episodes that the run's learner overwrites meanwhile are left out.
    """

    def __init__(self, directory: Path, what: str = "import") -> None:
        """directory: of a replay, or of a run. Raises UserError when it has no replay, or no transition."""
        rows = next((each for each in (directory, directory / "replay") if _has_rows(each)), None)
        if rows is None:
            raise UserError(f"dataset {what}: expected the folder of a run or of a data set, got {directory}")
        self.text = f"run {directory.resolve().name}"
        try:
            self._store = ReadOnlyStore.read(rows)
        except ConflictError as error:
            raise UserError(f"dataset {what}: {error}") from None
        # The description of a replay has no bounds of actions.
        self.spec = (
            StoredDataset.read(directory).spec if rows == directory else RunDirectory(directory).read_environment()
        )
        if self.spec.agents:
            raise UserError(
                f"dataset {what}: expected a run of one agent, got one of {self.spec.agent_count} agents in {directory}"
            )
        self.environment = self.spec.environment_id
        self._squash = False
        if rows != directory and RunDirectory(directory).config.exists():
            own = settings.build(RunConfig, RunDirectory(directory).config_tree()).on_policy
            self._squash = own is not None and own.squash
        self._records = {record.index: record for record in self._store.segments.live}
        self._stretches = list(_stretches(self._store))
        if not self._stretches:
            raise UserError(f"dataset {what}: {directory} has no stored transition")

    @property
    def lengths(self) -> Sequence[int]:
        """The steps of each episode."""
        return [len(each.rows) for each in self._stretches]

    def __iter__(self) -> Iterator[Episode]:
        store = self._store
        probabilities = store.further.get(LOG_PROBABILITIES)
        for each in self._stretches:
            end = int(store.flags[each.rows[-1]])
            actions = store.actions[each.rows]
            terminated = bool(end & TERMINATED)
            episode = Episode(
                store.observations[np.append(each.rows, each.last)],
                actions if probabilities is None else self._taken(actions),
                store.rewards[each.rows],
                terminated,
                truncated=not terminated,
                policy_versions=store.policy_versions[each.rows],
                log_probabilities=None
                if probabilities is None
                else cast("NDArray[np.float32]", probabilities[each.rows]),
            )
            # Compared after the copy, because the run's learner may write to the files at any time.
            if all(store.is_whole(self._records[index]) for index in np.unique(store.generations[each.rows])):
                yield episode

    @property
    def cut(self) -> int:
        """Number of episodes whose end is not stored."""
        ends = np.array([each.rows[-1] for each in self._stretches])
        return int(np.count_nonzero(self._store.flags[ends] & (TERMINATED | TRUNCATED) == 0))

    @property
    def damaged(self) -> int:
        """Number of damaged segments, which are skipped."""
        return self._store.segments.damaged

    def close(self) -> None:
        """Close the files."""
        self._store.close()

    def _taken(self, drawn: Any) -> Any:
        """The actions that the environment got. drawn: of an on-policy run, as stored."""
        spec = self.spec
        if not spec.components:
            return drawn
        discrete = len(spec.sizes)
        part = drawn[..., discrete:].astype(np.float64)
        low, high = (bound.astype(np.float64) for bound in spec.continuous_part.actions.bounds())
        scaled = np.tanh(part) if self._squash else np.clip(part, -1.0, 1.0)
        taken = drawn.copy()
        taken[..., discrete:] = (low + high) / 2 + (high - low) / 2 * scaled
        return taken


def _has_rows(directory: Path) -> bool:
    return any(path.exists() for path in description_files(directory))


def _stretches(store: ReadOnlyStore) -> Iterator[_Stretch]:
    """The stretches of all environments, in the order of their actors' segments."""
    going: dict[tuple[bytes, int, int], tuple[int, list[_Rows], int]] = {}
    for record in tuple(store.segments.live):
        if store.segments.check(np.array([record.start])):
            continue
        key, life, sequence = record.source
        for environment in range(record.environments):
            source = (key, life, environment)
            expected, parts, last = going.pop(source, (0, [], -1))
            rows = record.step_rows[:, environment]
            if parts and not (expected == sequence and _follows(store, last, int(rows[0]))):
                yield _Stretch(np.concatenate(parts), last)
                parts = []
            for stretch, is_open in _cut(store, record, rows):
                parts.append(stretch.rows)
                last = stretch.last
                if not is_open:
                    yield _Stretch(np.concatenate(parts), last)
                    parts = []
            if parts:
                going[source] = (sequence + 1, parts, last)
    for _, parts, last in going.values():
        yield _Stretch(np.concatenate(parts), last)


def _follows(store: ReadOnlyStore, last: int, first: int) -> bool:
    """Whether a segment's first row is the observation after the previous segment's last step."""
    return np.array_equal(store.observations[last], store.observations[first])


def _cut(store: ReadOnlyStore, record: Record, rows: _Rows) -> Iterator[tuple[_Stretch, bool]]:
    """The stretches of one environment in one segment, and whether the episode continues after the segment.

    rows: of its steps and of its bootstrap observation, int64[T + 1].
    """
    flags = store.flags[rows[:-1]]
    start = 0
    for step, flag in enumerate(flags):
        if not flag & VALID:
            # A reset, or a failed step. The observation is the last one of the episode before.
            if step > start:
                yield _Stretch(rows[start:step], int(rows[step])), False
            start = step + 1
        elif flag & (TERMINATED | TRUNCATED):
            yield _Stretch(rows[start : step + 1], int(rows[step + 1])), False
            start = step + 1
    if start < record.steps:
        yield _Stretch(rows[start:-1], int(rows[-1])), True
