"""The sequences of a checkpoint: steps of one episode from the newest segments, with the states before them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.limits import MAX_SEQUENCE_STEPS, MAX_SEQUENCES
from actorq.domain.trajectory import Segment
from learner_service.rollouts import RolloutQueue
from learner_service.training.stored_sequences import newest_sequences
from tests.learner_service.replay.replay_segments import expected_flags
from tests.learner_service.rollouts.rollout_parts import drawn_segment, insert, pieces
from tests.learner_service.rollouts.test_stored_states import NAME, SIZE, open_queue


def with_state(segment: Segment) -> Segment:
    """With states of the value 10 * sequence + environment."""
    values = 10.0 * segment.sequence + np.arange(segment.environments)[:, None]
    return segment.with_columns(**{NAME: np.repeat(values, SIZE, axis=1).astype(np.float32)})


def everything(rows: NDArray[Any]) -> NDArray[np.bool_]:
    return np.ones(len(rows), np.bool_)


def sequences(queue: RolloutQueue, kept: Any = everything) -> dict[str, NDArray[Any]]:
    return newest_sequences(queue, SIZE, False, 0, kept)


def filled(directory: Path, *segments: Segment, capacity: int = 400) -> RolloutQueue:
    queue = open_queue(directory, 1000)
    insert(queue, *segments)
    return queue


def test_there_are_none_without_segments(tmp_path: Path) -> None:
    assert sequences(filled(tmp_path)) == {}


def test_a_sequence_continues_in_the_segments_that_follow(tmp_path: Path) -> None:
    whole = drawn_segment(1, 12, end_rate=0.0)
    queue = filled(tmp_path, *map(with_state, pieces(whole, 4, 1)))
    found = sequences(queue)
    # Two environments; sequences begin with each of three segments.
    assert found["lengths"].tolist() == [12, 12, 8, 8, 4, 4]
    assert found["lengths"].dtype == np.int32
    assert found["state"].shape == (6, SIZE)
    assert found["observations"].shape[:2] == (12, 6)
    starts = {tuple(state): place for place, state in enumerate(found["state"].tolist())}
    for segment in (1, 2, 3):
        for environment in (0, 1):
            place = starts[(10.0 * segment + environment,) * SIZE]
            length = found["lengths"][place]
            first = 4 * (segment - 1)
            expected = whole.observations[first : first + length, environment]
            np.testing.assert_array_equal(found["observations"][:length, place], expected)
            assert length == 12 - first
    queue.close()


def test_sequences_end_with_their_episode(tmp_path: Path) -> None:
    segments = [with_state(drawn_segment(number, 16, 3, end_rate=0.2)) for number in range(1, 6)]
    queue = filled(tmp_path, *segments)
    lengths, expected = sequences(queue)["lengths"], []
    for segment in segments:
        for flags in expected_flags(segment):
            length = 0
            for flag in flags:
                length += flag & 1
                if not flag & 1 or flag & 6:
                    break
            expected.append(int(length))
    assert lengths.tolist() == sorted((each for each in expected if each), reverse=True)[:MAX_SEQUENCES]
    assert 0 in expected
    queue.close()


def test_there_are_at_most_sixteen_of_at_most_64_steps(tmp_path: Path) -> None:
    store_rows = [with_state(each) for each in pieces(drawn_segment(1, 180, 1, end_rate=0.0), 6, 1)]
    queue = filled(tmp_path, *store_rows)
    found = sequences(queue)
    assert found["lengths"].tolist() == [MAX_SEQUENCE_STEPS] * MAX_SEQUENCES
    # They are spread over all segments.
    numbers = found["state"][:, 0] // 10
    assert len(set(numbers.tolist())) == MAX_SEQUENCES
    assert numbers.max() - numbers.min() > 15
    queue.close()


def test_sequences_with_outliers_are_left_out(tmp_path: Path) -> None:
    queue = filled(tmp_path, *map(with_state, pieces(drawn_segment(1, 12, end_rate=0.0), 4, 1)))
    last = sequences(queue)["observations"][11, 0]

    def kept(rows: NDArray[Any]) -> NDArray[np.bool_]:
        good: NDArray[np.bool_] = (rows != last).any(axis=1)
        return good

    found = sequences(queue, kept)
    assert found["lengths"].tolist() == [12, 8, 4]
    assert len(set((found["state"][:, 0] % 10).tolist())) == 1
    assert sequences(queue, lambda rows: np.zeros(len(rows), np.bool_)) == {}
    queue.close()


def test_a_reopened_queue_has_the_same_sequences(tmp_path: Path) -> None:
    queue = filled(tmp_path, *map(with_state, pieces(drawn_segment(1, 12, end_rate=0.0), 4, 1)))
    before = sequences(queue)
    queue.close()
    queue = open_queue(tmp_path, 1000)
    for name, array in sequences(queue).items():
        np.testing.assert_array_equal(array, before[name])
    queue.close()
