"""N-step transitions and the stacks between which they lead agree with a slow reading of their episodes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actorq.domain.spaces import ArraySpec
from actorq.domain.trajectory import Segment
from actorq.errors import UserError
from learner_service.batch import Batch
from learner_service.replay import ReplayStore, Returns, assemble, empty_batch
from learner_service.replay.storage.columns import VALID
from tests.learner_service.replay.replay_episodes import LINKS, Lives, insert_all, steps_of
from tests.learner_service.replay.replay_segments import SPEC, plain_segment, source

FRAMES = ArraySpec((3, 2), "uint8")


@settings(max_examples=150, deadline=None)
@given(
    frame_stack=st.integers(1, 5),
    returns=st.builds(
        Returns, st.integers(1, 6), st.sampled_from([0.0, 0.5, 0.99, 1.0]), st.sampled_from([None, 1.0, 0.5])
    ),
    capacity=st.integers(60, 160),
    end_rate=st.sampled_from([0.0, 0.1, 0.3, 0.9]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    links=st.lists(st.sampled_from(LINKS), min_size=12, max_size=12),
    environments=st.integers(1, 2),
    frames=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
# Episodes longer than an age can count, and none that ends.
@example(4, Returns(3, 0.99), 700, 0.0, [300, 9], ["follows"] * 12, 1, False, 0)
@example(4, Returns(3, 0.99), 1400, 0.004, [150, 150, 300], ["follows"] * 12, 1, True, 1)
def test_every_row_agrees_with_the_reference(
    tmp_path_factory: pytest.TempPathFactory,
    frame_stack: int,
    returns: Returns,
    capacity: int,
    end_rate: float,
    lengths: list[int],
    links: list[str],
    environments: int,
    frames: bool,
    seed: int,
) -> None:
    spec = replace(SPEC, frame_stack=frame_stack, observations=FRAMES if frames else SPEC.observations)
    lives = Lives.random(np.random.default_rng(seed), spec, steps_of(lengths), environments, end_rate)
    store = ReplayStore.open(tmp_path_factory.mktemp("store"), spec, capacity)
    placed = insert_all(store, lives, lengths, links[: len(lengths)])
    rows = np.flatnonzero(store.flags & VALID)
    batch = assemble(store, rows, returns)
    assert batch.observations.dtype == batch.bootstrap_observations.dtype == spec.observations.dtype
    for position, row in enumerate(rows.tolist()):
        number = int(store.generations[row])
        environment, place = divmod(row - placed[number].row, frame_stack + lengths[number])
        step = placed[number].step + place - (frame_stack - 1)
        expected = lives.transition(step, environment, placed[number].end, returns)
        assert batch.returns[position] == pytest.approx(expected.total, abs=1e-5)
        assert batch.bootstrap_discounts[position] == pytest.approx(expected.bootstrap_discount)
        np.testing.assert_array_equal(batch.observations[position], expected.observation)
        np.testing.assert_array_equal(batch.bootstrap_observations[position], expected.bootstrap_observation)
    expected_rows = sum(int(lives.valid[at.step : at.step + lengths[n]].sum()) for n, at in placed.items())
    assert len(rows) == expected_rows
    store.close()


def _assembled(tmp_path: Path, segment: Segment, n: int = 3) -> Batch:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    store.insert(segment, source(0))
    return assemble(store, np.array([0]), Returns(n, 0.5))


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
    batch = assemble(store, np.array([8]), Returns(6, 0.5))
    assert batch.returns[0] == plain_segment(1).rewards[3, 0]
    np.testing.assert_array_equal(batch.bootstrap_observations[0], plain_segment(1).observations[4, 0])


def test_given_arrays_are_filled_and_returned(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    store.insert(plain_segment(0), source(0))
    rows = np.array([0, 2, 2])
    out = empty_batch(SPEC, 3, Returns(2, 0.9))
    assert assemble(store, rows, Returns(2, 0.9), out) is out
    fresh = assemble(store, rows, Returns(2, 0.9))
    for name, column in fresh.columns.items():
        filled = getattr(out, name)
        assert filled.dtype == column.dtype
        np.testing.assert_array_equal(filled, column)
    with pytest.raises(ValueError, match="could not broadcast"):
        assemble(store, rows[:2], Returns(2, 0.9), out)


def test_actions_and_versions_are_those_of_the_row(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    segment = plain_segment(0, steps=5, environments=2)
    store.insert(segment, source(0))
    batch = assemble(store, np.array([0, 3, 4, 6, 10]), Returns(2, 0.9))
    np.testing.assert_array_equal(batch.actions, segment.actions[[0, 3, 4, 0, 4], [0, 0, 0, 1, 1]])
    np.testing.assert_array_equal(batch.policy_versions, segment.policy_versions()[[0, 3, 4, 0, 4]])


def test_a_batch_has_its_number_of_bytes(tmp_path: Path) -> None:
    spec = replace(SPEC, observations=FRAMES, frame_stack=4)
    assert empty_batch(spec, 10, Returns(1, 0.9)).nbytes == 10 * (2 * 4 * 6 + 8 + 4 + 4 + 8)


@pytest.mark.parametrize(("n_step", "discount", "fact"), [(0, 0.9, "n_step.* 0"), (1, 1.1, r"discount.* 1\.1")])
def test_an_n_step_or_discount_out_of_range_is_refused(n_step: int, discount: float, fact: str) -> None:
    with pytest.raises(UserError, match=fact):
        Returns(n_step, discount)
