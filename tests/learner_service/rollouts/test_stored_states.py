"""The state of a policy with memory: stored once for each segment, and given at the start of each trajectory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actorq.domain.trajectory import Segment
from actorq.errors import ConflictError
from learner_service.replay import RateLimiter, ReplayStore
from learner_service.rollouts import Mismatch, PublishedVersions, RolloutQueue
from tests.learner_service.replay.replay_segments import SPEC
from tests.learner_service.rollouts.rollout_parts import drawn_segment, insert, next_rollout, pieces

SIZE, NAME = 5, "state_5"
COLUMNS = ("log_probabilities", NAME)


def open_queue(directory: Path, rollout_size: int, columns: tuple[str, ...] = COLUMNS) -> RolloutQueue:
    store = ReplayStore.open(directory, SPEC, 400, columns, rows_per_segment=4)
    limiter = RateLimiter.of_queue(1, rollout_size, rollout_size, lambda: 0.0)
    queue = RolloutQueue(store, limiter, rollout_size, PublishedVersions(2))
    queue.published(1)
    return queue


def with_state(segment: Segment) -> Segment:
    """With states of the values 10 * sequence and 10 * sequence + 1."""
    states = np.repeat(10.0 * segment.sequence + np.arange(2.0)[:, None], SIZE, axis=1).astype(np.float32)
    return segment.with_columns(**{NAME: states})


def consecutive() -> list[Segment]:
    """Segments 1 and 2, of four steps of two environments."""
    return list(map(with_state, pieces(drawn_segment(1, 8, end_rate=0.0), 4, 1)))


def segment(sequence: int) -> Segment:
    return with_state(drawn_segment(sequence, end_rate=0.0))


def test_a_trajectory_has_the_state_of_its_first_segment(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, 32)
    insert(queue, *consecutive())
    insert(queue, segment(3), actor="actor-1")
    insert(queue, segment(5), actor="actor-1")
    by_steps = {len(part.rewards): part for part in next_rollout(queue)}
    assert by_steps[8].state_5.shape == (1, 2, SIZE)
    assert by_steps[8].state_5[0, :, 0].tolist() == [10, 11]
    assert by_steps[4].state_5[0, :, 0].tolist() == [30, 31, 50, 51]
    queue._store.close()


def test_a_reopened_store_has_the_states_in_the_rows_of_first_steps(tmp_path: Path) -> None:
    queue = open_queue(tmp_path, 16)
    insert(queue, *consecutive())
    queue._store.close()
    store = ReplayStore.open(tmp_path, SPEC, 400, COLUMNS, rows_per_segment=4)
    assert store.of_segments == {NAME}
    column = store.further[NAME]
    for record in store.segments.live:
        np.testing.assert_array_equal(column[record.step_rows[0], 0], 10 * record.source.sequence + np.arange(2))
        assert not column[record.step_rows[1:]].any()
    store.close()


def test_a_store_of_other_states_is_refused(tmp_path: Path) -> None:
    open_queue(tmp_path, 8)._store.close()
    with pytest.raises(
        ConflictError, match=r"state 5, which only a policy with a state of this size uses; resume with its memory.kind"
    ):
        open_queue(tmp_path, 8, ("log_probabilities", "state_6"))


def test_a_mismatch_is_measured_with_the_stored_states(tmp_path: Path) -> None:
    queue, asked = open_queue(tmp_path, 16), []

    def log_probabilities(observations: Any, actions: Any, parameters: Any, states: Any) -> Any:
        asked.append((len(observations), states[:, 0].tolist()))
        return np.zeros(len(observations), np.float32)

    mismatch = Mismatch(log_probabilities, queue.versions, torch.device("cpu"), SIZE)
    insert(queue, *consecutive())
    mismatch.measure(next_rollout(queue))
    assert asked[0] == (2, [10, 11])
    assert mismatch.mean("divergence") is not None
    queue._store.close()
