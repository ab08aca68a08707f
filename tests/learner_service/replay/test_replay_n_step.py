"""N-step transitions agree with a slow reading of the segments they come from."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_segments import SPEC, plain_segment, random_segment, source

from actorq.errors import InvalidInputError
from actorq.trajectory import Segment
from learner_service.replay import NStepBatch, ReplayStore, assemble
from learner_service.replay.columns import VALID


def _reference(segment: Segment, environment: int, step: int, n: int, discount: float) -> tuple[float, float, int]:
    """(return, bootstrap discount, step of the bootstrap observation), one step at a time."""
    total, factor = 0.0, 1.0
    while True:
        total += factor * float(segment.rewards[step, environment])
        factor *= discount
        n -= 1
        if segment.terminated[step, environment]:
            return total, 0.0, step + 1
        cut = bool(segment.truncated[step, environment])
        step += 1
        if n == 0 or cut or step == segment.steps or not segment.valid[step, environment]:
            return total, factor, step


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 6),
    discount=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    capacity=st.integers(40, 120),
    end_rate=st.sampled_from([0.0, 0.2, 0.9]),
    sizes=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 2)), min_size=1, max_size=12),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_row_agrees_with_the_reference(
    tmp_path_factory: pytest.TempPathFactory,
    n: int,
    discount: float,
    capacity: int,
    end_rate: float,
    sizes: list[tuple[int, int]],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    store = ReplayStore.open(tmp_path_factory.mktemp("store"), SPEC, capacity)
    segments = [random_segment(rng, steps, count, number, end_rate) for number, (steps, count) in enumerate(sizes)]
    for number, segment in enumerate(segments):
        store.insert(segment, source(number))
    rows = np.flatnonzero(store.flags & VALID)
    batch = assemble(store, rows, n, discount)
    starts = {record.index: record.start for record in store.live_segments()}
    for position, row in enumerate(rows.tolist()):
        number = int(store.generations[row])
        segment = segments[number]
        environment, step = divmod(row - starts[number], segment.steps + 1)
        total, factor, last = _reference(segment, environment, step, n, discount)
        assert batch.returns[position] == pytest.approx(total, abs=1e-5)
        assert batch.bootstrap_discounts[position] == pytest.approx(factor)
        np.testing.assert_array_equal(batch.observations[position], segment.observations[step, environment])
        np.testing.assert_array_equal(batch.bootstrap_observations[position], segment.observations[last, environment])
        assert batch.actions[position] == segment.actions[step, environment]
        assert batch.policy_versions[position] == segment.policy_versions()[step]
    store.close()


def _assembled(tmp_path: Path, segment: Segment, n: int = 3) -> NStepBatch:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    store.insert(segment, source(0))
    return assemble(store, np.array([0]), n, 0.5)


def test_a_terminal_state_cuts_the_sum_and_is_not_bootstrapped_from(tmp_path: Path) -> None:
    segment = plain_segment(0)
    segment.rewards[:] = 1
    segment.terminated[1] = True
    segment.valid[2] = False
    batch = _assembled(tmp_path, segment)
    assert (batch.returns[0], batch.bootstrap_discounts[0]) == (1.5, 0.0)


def test_a_time_limit_cuts_the_sum_and_the_final_observation_is_bootstrapped_from(tmp_path: Path) -> None:
    segment = plain_segment(0)
    segment.rewards[:] = 1
    segment.truncated[1] = True
    segment.valid[2] = False
    batch = _assembled(tmp_path, segment)
    assert (batch.returns[0], batch.bootstrap_discounts[0]) == (1.5, 0.25)
    np.testing.assert_array_equal(batch.bootstrap_observations[0], segment.observations[2, 0])


def test_the_end_of_a_segment_bootstraps_from_its_last_observation(tmp_path: Path) -> None:
    segment = plain_segment(0, steps=2)
    segment.rewards[:] = 1
    batch = _assembled(tmp_path, segment, n=5)
    assert (batch.returns[0], batch.bootstrap_discounts[0]) == (1.5, 0.25)
    np.testing.assert_array_equal(batch.bootstrap_observations[0], segment.observations[2, 0])


def test_a_window_that_reaches_past_the_last_row_of_the_ring_ends_there(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 10)
    for number in range(2):
        store.insert(plain_segment(number), source(number))
    batch = assemble(store, np.array([8]), 6, 0.5)
    assert batch.returns[0] == plain_segment(1).rewards[3, 0]
    np.testing.assert_array_equal(batch.bootstrap_observations[0], plain_segment(1).observations[4, 0])


def test_given_arrays_are_filled_and_returned(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    store.insert(plain_segment(0), source(0))
    rows = np.array([0, 2, 2])
    out = NStepBatch.empty(SPEC, 3)
    assert assemble(store, rows, 2, 0.9, out) is out
    fresh = assemble(store, rows, 2, 0.9)
    for name, column in vars(fresh).items():
        filled = getattr(out, name)
        assert filled.dtype == column.dtype
        np.testing.assert_array_equal(filled, column)
    with pytest.raises(InvalidInputError, match="must have 2 rows, got 3"):
        assemble(store, rows[:2], 2, 0.9, out)


def test_a_row_that_is_no_transition_is_refused(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    store.insert(plain_segment(0), source(0))
    with pytest.raises(InvalidInputError, match="valid rows"):
        assemble(store, np.array([0, 4]), 1, 0.9)
