"""What was observed between the ends of an n-step window agrees with a slow reading of its episode."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner_service.replay import ReplayStore, Returns, assemble, empty_batch
from learner_service.replay.storage.columns import VALID
from tests.learner_service.replay.replay_episodes import LINKS, Lives, insert_all, steps_of
from tests.learner_service.replay.replay_segments import SPEC, plain_segment, source


@settings(max_examples=100, deadline=None)
@given(
    frame_stack=st.integers(1, 3),
    n_step=st.integers(2, 5),
    discount=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    capacity=st.integers(60, 160),
    end_rate=st.sampled_from([0.0, 0.1, 0.3, 0.9]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    links=st.lists(st.sampled_from(LINKS), min_size=12, max_size=12),
    environments=st.integers(1, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_window_agrees_with_the_reference(
    tmp_path_factory: pytest.TempPathFactory,
    frame_stack: int,
    n_step: int,
    discount: float,
    capacity: int,
    end_rate: float,
    lengths: list[int],
    links: list[str],
    environments: int,
    seed: int,
) -> None:
    spec = replace(SPEC, frame_stack=frame_stack)
    lives = Lives.random(np.random.default_rng(seed), spec, steps_of(lengths), environments, end_rate)
    store = ReplayStore.open(tmp_path_factory.mktemp("store"), spec, capacity)
    placed = insert_all(store, lives, lengths, links[: len(lengths)])
    rows = np.flatnonzero(store.flags & VALID)
    batch = assemble(store, rows, Returns(n_step, discount, windows=True))
    assert "between_discounts" in batch
    for position, row in enumerate(rows.tolist()):
        number = int(store.generations[row])
        environment, place = divmod(row - placed[number].row, frame_stack + lengths[number])
        step = placed[number].step + place - (frame_stack - 1)
        taken = steps_taken(lives, step, environment, placed[number].end, n_step)
        for later in range(1, n_step):
            inside = later < taken
            expected = lives.stack(step + later if inside else step, environment)
            np.testing.assert_array_equal(batch.between_observations[position, later - 1], expected)
            assert batch.between_discounts[position, later - 1] == pytest.approx(discount**later if inside else 0.0)
    plain = assemble(store, rows, Returns(n_step, discount))
    for name, column in plain.columns.items():
        np.testing.assert_array_equal(getattr(batch, name), column)
    store.close()


def steps_taken(lives: Lives, step: int, environment: int, stop: int, n_step: int) -> int:
    """Steps of the window that begins there, where all steps before `stop` are stored."""
    taken = 1
    while taken < n_step and step + 1 < stop:
        if lives.terminated[step, environment] or lives.truncated[step, environment]:
            break
        step += 1
        taken += 1
    return taken


def filled(tmp_path: Path) -> ReplayStore:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    store.insert(plain_segment(0, steps=6), source(0))
    return store


def test_arrays_with_windows_also_work_for_one_step_returns(tmp_path: Path) -> None:
    store, rows = filled(tmp_path), np.array([0, 2, 3])
    longest = Returns(3, 0.9, windows=True)
    out = empty_batch(SPEC, 3, longest)
    assert assemble(store, rows, longest, out) is out
    single = assemble(store, rows, replace(longest, n_step=1), out)
    assert "between_observations" not in single
    assert single.observations is out.observations
    np.testing.assert_array_equal(single.bootstrap_observations, store.observations[rows + 1])


def test_arrays_of_other_windows_are_refused(tmp_path: Path) -> None:
    store, rows = filled(tmp_path), np.array([0, 2, 3])
    with pytest.raises(ValueError, match="could not broadcast"):
        assemble(store, rows, Returns(4, 0.9, windows=True), empty_batch(SPEC, 3, Returns(3, 0.9, windows=True)))


def test_windows_are_counted_among_the_bytes() -> None:
    without, windows = (empty_batch(SPEC, 10, Returns(3, 0.9, windows=each)).nbytes for each in (False, True))
    assert windows == without + 10 * 2 * (2 * 4 + 4)
