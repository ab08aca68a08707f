"""The contract of every sampler, and the additions of prioritized sampling."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actorq.errors import ConflictError, InvalidInputError
from learner_service.replay import PrioritizedSampler, ReplayStore, Sampled, Sampler, UniformSampler
from learner_service.replay.storage.columns import VALID
from tests.learner_service.replay.replay_segments import SPEC, plain_segment, random_segment, source

MakeSampler = Callable[[ReplayStore], Sampler]


def _uniform(store: ReplayStore) -> Sampler:
    return UniformSampler(store, np.random.default_rng(11))


def _prioritized(store: ReplayStore, alpha: float = 0.6, beta: float = 0.4) -> PrioritizedSampler:
    return PrioritizedSampler(store, np.random.default_rng(11), alpha, (beta, beta))


def _fill(store: ReplayStore, sampler: Sampler, numbers: range) -> None:
    for number in numbers:
        inserted = store.insert(random_segment(np.random.default_rng(number), 6, 2, number), source(number))
        assert inserted is not None
        sampler.on_insert(inserted)


def _whole(store: ReplayStore, rows: list[int]) -> Sampled:
    index = np.array(rows)
    return Sampled(index, np.ones(len(rows), np.float32), store.generations[index])


def assert_has_weights(sampled: Sampled, store: ReplayStore, alpha: float, beta: float) -> None:
    raw = store.priorities[sampled.rows].astype(np.float64) ** (-alpha * beta)
    np.testing.assert_allclose(sampled.weights, raw / raw.max(), rtol=1e-5)


def _frequencies(sampler: Sampler, capacity: int, rounds: int = 60, batch: int = 500) -> np.ndarray:
    counts = np.zeros(capacity)
    for _ in range(rounds):
        np.add.at(counts, sampler.sample(batch).rows, 1)
    return counts


def _chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's statistic per degree of freedom; close to 1 (or below, for strata) if counts fit."""
    seen = probabilities > 0
    assert not counts[~seen].any()
    expected = probabilities[seen] * counts.sum()
    return float(((counts[seen] - expected) ** 2 / expected).sum() / (seen.sum() - 1))


@pytest.mark.parametrize("make", [_uniform, _prioritized])
class TestEverySampler:
    """Conformance: the methods that the learner uses of each sampler."""

    def test_only_valid_rows_are_drawn_before_during_and_after_the_first_lap(
        self, tmp_path: Path, make: MakeSampler
    ) -> None:
        store = ReplayStore.open(tmp_path, SPEC, 100)
        sampler = make(store)
        for number in range(30):
            _fill(store, sampler, range(number, number + 1))
            sampled = sampler.sample(64)
            assert sampled.rows.shape == sampled.weights.shape == (64,)
            assert sampled.rows.dtype == np.dtype(np.int64)
            assert sampled.weights.dtype == np.dtype(np.float32)
            assert (store.flags[sampled.rows] & VALID).all()
            assert ((sampled.weights > 0) & (sampled.weights <= 1)).all()
            np.testing.assert_array_equal(sampled.generations, store.generations[sampled.rows])

    def test_rows_without_priorities_are_equally_likely(self, tmp_path: Path, make: MakeSampler) -> None:
        store = ReplayStore.open(tmp_path, SPEC, 150)
        sampler = make(store)
        _fill(store, sampler, range(17))
        valid = store.flags & VALID != 0
        statistic = _chi_square(_frequencies(sampler, 150), valid / valid.sum())
        assert statistic < 1.5
        np.testing.assert_allclose(sampler.sample(32).weights, 1)

    def test_a_slice_of_a_batch_covers_the_whole_store(self, tmp_path: Path, make: MakeSampler) -> None:
        store = ReplayStore.open(tmp_path, SPEC, 1000)
        sampler = make(store)
        _fill(store, sampler, range(60))
        first = sampler.sample(512).rows[:64]
        assert first.min() < 200
        assert first.max() > 600

    def test_an_empty_store_cannot_be_sampled(self, tmp_path: Path, make: MakeSampler) -> None:
        sampler = make(ReplayStore.open(tmp_path, SPEC, 100))
        with pytest.raises(ConflictError, match="first transition"):
            sampler.sample(1)

    def test_one_valid_row_among_many_is_found(self, tmp_path: Path, make: MakeSampler) -> None:
        store = ReplayStore.open(tmp_path, SPEC, 20_000)
        sampler = make(store)
        segment = plain_segment(0, steps=9_000)
        segment.valid[:] = False
        segment.valid[1234] = True
        inserted = store.insert(segment, source(0))
        assert inserted is not None
        sampler.on_insert(inserted)
        assert set(sampler.sample(5).rows.tolist()) == {1234}

    def test_the_same_generator_draws_the_same_rows(self, tmp_path: Path, make: MakeSampler) -> None:
        store = ReplayStore.open(tmp_path, SPEC, 100)
        _fill(store, _uniform(store), range(5))
        np.testing.assert_array_equal(make(store).sample(32).rows, make(store).sample(32).rows)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.5), (0.6, 1.0), (0.0, 0.4)])
def test_rows_are_drawn_in_proportion_to_priority_to_the_alpha(tmp_path: Path, alpha: float, beta: float) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 150)
    sampler = _prioritized(store, alpha, beta)
    _fill(store, sampler, range(8))
    rows = np.flatnonzero(store.flags & VALID)
    errors = np.random.default_rng(3).exponential(size=len(rows)) + 0.05
    sampler.update(_whole(store, rows.tolist()), errors.astype(np.float32))
    expected = np.zeros(150)
    expected[rows] = (errors + 1e-6) ** alpha / ((errors + 1e-6) ** alpha).sum()
    assert _chi_square(_frequencies(sampler, 150), expected) < 1.5
    sampled = sampler.sample(40)
    raw = (len(rows) * expected[sampled.rows]) ** -beta
    np.testing.assert_allclose(sampled.weights, raw / raw.max(), rtol=1e-4)


def test_rows_without_an_error_are_still_drawn(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 150)
    sampler = _prioritized(store)
    _fill(store, sampler, range(2))
    rows = np.flatnonzero(store.flags & VALID)
    for drawn in (_whole(store, rows.tolist()), replace(_whole(store, rows.tolist()), generations=rows - 1000)):
        # The rows of the second draw are all overwritten.
        sampler.update(drawn, np.full(len(rows), float(drawn.generations[0] < 0), np.float32))
        np.testing.assert_allclose(store.priorities[rows], 1e-6)
        np.testing.assert_allclose(sampler.sample(40).weights, 1)


def test_new_transitions_get_the_largest_priority_seen(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 150)
    sampler = _prioritized(store)
    _fill(store, sampler, range(1))
    sampler.update(_whole(store, [0]), np.array([-9.0], np.float32))
    _fill(store, sampler, range(1, 2))
    new = np.flatnonzero((store.generations == 1) & (store.flags & VALID != 0))
    np.testing.assert_allclose(store.priorities[new], 9.0, rtol=1e-6)


def test_priorities_outlive_a_restart_and_rows_without_one_count_as_new(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 150)
    sampler = _prioritized(store)
    _fill(store, sampler, range(4))
    rows = np.flatnonzero(store.flags & VALID)
    sampler.update(_whole(store, rows.tolist()), np.linspace(0.1, 5, len(rows), dtype=np.float32))
    store.insert(plain_segment(4), source(4))
    before = store.priorities.copy()
    store.close()
    store = ReplayStore.open(tmp_path, SPEC, 150)
    again = _prioritized(store)
    np.testing.assert_array_equal(store.priorities[rows], before[rows])
    new = np.flatnonzero((store.generations == 4) & (store.flags & VALID != 0))
    np.testing.assert_allclose(store.priorities[new], 5.0, rtol=1e-6)
    assert_has_weights(again.sample(50), store, 0.6, 0.4)


def test_updates_of_rows_overwritten_or_evicted_meanwhile_are_ignored(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 30)
    sampler = _prioritized(store)
    for number in range(6):
        inserted = store.insert(plain_segment(number), source(number))
        assert inserted is not None
        sampler.on_insert(inserted)
    sampled = _whole(store, [0, 6, 25])
    inserted = store.insert(plain_segment(6, steps=6), source(6))
    assert inserted is not None
    sampler.on_insert(inserted)
    assert (inserted.start, inserted.stop, inserted.evicted) == (0, 7, ((0, 5), (5, 10)))
    sampler.update(sampled, np.array([50, 60, 70], np.float32))
    # Row 0 has been overwritten, row 6 only holds the new bootstrap observation, row 25 has not changed.
    assert store.priorities[[0, 6, 25]] == pytest.approx([1, 0, 70])
    assert store.priorities.max() == pytest.approx(70)


def test_a_row_drawn_twice_has_the_same_priority_in_tree_and_file(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 30)
    sampler = _prioritized(store, alpha=1.0)
    _fill(store, sampler, range(1))
    first = int(np.flatnonzero(store.flags & VALID)[0])
    sampler.update(_whole(store, [first, first]), np.array([4, 2], np.float32))
    assert_has_weights(sampler.sample(200), store, 1.0, 0.4)


def test_importance_weights_correct_more_of_the_bias_late_in_the_run(tmp_path: Path) -> None:
    def opened() -> tuple[ReplayStore, PrioritizedSampler]:
        store = ReplayStore.open(tmp_path, SPEC, 40)
        return store, PrioritizedSampler(store, np.random.default_rng(11), betas=(0.4, 1.0), steps=32)

    def weights(store: ReplayStore, sampler: PrioritizedSampler, beta: float) -> None:
        sampled = sampler.sample(20)
        assert_has_weights(sampled, store, 0.6, beta)
        assert sampled.weights.min() < 0.9

    def fill(store: ReplayStore, sampler: PrioritizedSampler, numbers: range) -> None:
        for number in numbers:
            inserted = store.insert(plain_segment(number), source(number))
            assert inserted is not None
            sampler.on_insert(inserted)
            sampler.update(_whole(store, [inserted.start]), np.array([number + 2], np.float32))

    store, sampler = opened()
    fill(store, sampler, range(4))
    weights(store, sampler, 0.7)
    # The store's files pass the progress to the next process.
    store.close()
    store, sampler = opened()
    weights(store, sampler, 0.7)
    fill(store, sampler, range(4, 12))
    weights(store, sampler, 1.0)


def test_uniform_rows_are_those_that_are_live_wherever_they_begin(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    sampler = _uniform(store)
    _fill(store, sampler, range(6))
    sampler.on_drop(store.segments.drop_oldest(10, keep=20))
    live = np.flatnonzero(store.flags & VALID)
    first, length = store.segments.extent()
    assert first > 0
    assert length < 100
    expected = np.zeros(100)
    expected[live] = 1 / len(live)
    assert _chi_square(_frequencies(sampler, 100), expected) < 1.6


def test_invalid_priorities_are_refused_and_change_nothing(tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 100)
    sampler = _prioritized(store)
    _fill(store, sampler, range(3))
    before = store.priorities.copy()
    sampled = sampler.sample(4)
    with pytest.raises(InvalidInputError, match="finite"):
        sampler.update(sampled, np.array([1, np.nan, 1, 1], np.float32))
    with pytest.raises(InvalidInputError, match="finite"):
        sampler.update(sampled, np.array([1, 1e300, 1, 1]))
    with pytest.raises(InvalidInputError, match=r"4 .*\[3\]"):
        sampler.update(sampled, np.ones(3, np.float32))
    np.testing.assert_array_equal(store.priorities, before)


@pytest.mark.parametrize("age_decay", [20, 100, 1_000])
def test_newer_rows_are_drawn_more_often(age_decay: int, tmp_path: Path) -> None:
    store = ReplayStore.open(tmp_path, SPEC, 150)
    sampler = UniformSampler(store, np.random.default_rng(3), age_decay)
    _fill(store, sampler, range(17))
    first, length = store.segments.extent()
    ages = length - 1 - (np.arange(150) - first) % 150
    weights = np.maximum(0.1, 1 - (ages + 0.5) / age_decay) * (store.flags & VALID != 0)
    # The weight of the row in which the triangle ends is a mean over the row.
    assert _chi_square(_frequencies(sampler, 150), weights / weights.sum()) < 1.5
