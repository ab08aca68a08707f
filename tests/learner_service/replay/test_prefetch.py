"""One batch is drawn ahead: never more than is allowed, counted when used, forgotten when discarded."""

import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from actorq.errors import ConflictError
from learner_service.batch import Batch
from learner_service.replay import (
    Drawn,
    Prefetcher,
    PrioritizedSampler,
    RateLimiter,
    ReplayBuffer,
    ReplayStore,
    Returns,
    Sampled,
)
from tests.learner_service.replay.replay_segments import SPEC, plain_segment, source

SIZE = 8


class Draws:
    """A prefetcher of a buffer whose transitions may be sampled four times each, and `ahead` times more."""

    def __init__(self, directory: Path, ahead: float = 1000.0) -> None:
        self.rng = np.random.default_rng(5)
        store = ReplayStore.open(directory, SPEC, 400)
        sampler = PrioritizedSampler(store, self.rng)
        limiter = RateLimiter(4.0, 4, 16.0 + ahead, clock=lambda: 0.0)
        self.replay = ReplayBuffer(store, sampler, limiter, Returns(1, 0.9))
        self.prefetcher = Prefetcher(self.replay, SIZE)
        self._inserted = 0

    def insert(self, segments: int) -> None:
        for _ in range(segments):
            assert self.replay.limiter.try_reserve(4)
            self.replay.insert(plain_segment(self._inserted), source(self._inserted), 4)
            self._inserted += 1

    def next_batch(self) -> Drawn:
        drawn = self.prefetcher.next_batch(timeout=0.0)
        assert drawn is not None
        return drawn


@pytest.fixture
def draws(tmp_path: Path) -> Iterator[Draws]:
    made = Draws(tmp_path)
    yield made
    made.prefetcher.close()
    made.replay.close()


def test_nothing_is_drawn_before_it_is_allowed(draws: Draws) -> None:
    before = draws.rng.bit_generator.state
    assert draws.prefetcher.next_batch(timeout=0.0) is None
    draws.prefetcher.discard()
    assert draws.rng.bit_generator.state == before


def test_only_as_much_is_sampled_as_the_limiter_grants(tmp_path: Path) -> None:
    draws = Draws(tmp_path, ahead=0.0)
    for segments in (1, 2, 3):
        draws.insert(1)
        while draws.prefetcher.next_batch(timeout=0.0) is not None:
            pass
        # Four transitions, each sampled four times, are two batches.
        assert draws.replay.limiter.samples == segments * 2 * SIZE
        before = draws.rng.bit_generator.state
        draws.prefetcher.discard()
        # Nothing was drawn without permission.
        assert draws.rng.bit_generator.state == before
    draws.prefetcher.close()
    draws.replay.close()


def test_a_batch_drawn_ahead_is_counted_when_it_is_used(draws: Draws) -> None:
    draws.insert(2)
    draws.next_batch()
    # The next one is drawn, or about to be.
    assert draws.replay.limiter.samples == SIZE
    draws.next_batch()
    assert draws.replay.limiter.samples == 2 * SIZE


def test_a_batch_stays_while_a_thread_draws_the_next_and_arrays_are_used_again(
    draws: Draws, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, draw = threading.Semaphore(0), draws.replay.draw
    threads: list[str] = []

    def telling(size: int, out: Batch | None = None) -> tuple[Batch, Sampled]:
        threads.append(threading.current_thread().name)
        result = draw(size, out)
        drawn.release()
        return result

    monkeypatch.setattr(draws.replay, "draw", telling)
    draws.insert(4)
    first = draws.next_batch()
    for _ in range(2):
        assert drawn.acquire(timeout=30.0)
    assert_holds_its_rows(first)
    second = draws.next_batch()
    assert second.batch is not first.batch
    assert drawn.acquire(timeout=30.0)
    assert_holds_its_rows(second)
    assert draws.next_batch().batch is first.batch
    assert draws.prefetcher.nbytes == first.batch.nbytes + second.batch.nbytes
    assert all(name.startswith("prefetcher") for name in threads)


def assert_holds_its_rows(drawn: Drawn) -> None:
    """The plain segments lie one behind the other."""
    rows = np.concatenate([plain_segment(number).observations[:, 0] for number in range(4)])
    np.testing.assert_array_equal(drawn.batch.observations, rows[drawn.sampled.rows])


def test_after_discard_the_next_batch_equals_that_of_a_restored_learner(tmp_path: Path) -> None:
    went_on = Draws(tmp_path / "replay")
    went_on.insert(1)
    drawn = went_on.next_batch()
    went_on.replay.update_priorities(drawn.sampled, np.arange(SIZE, dtype=np.float32))
    went_on.prefetcher.discard()
    limiter, rng = went_on.replay.state_dict(), went_on.rng.bit_generator.state
    assert limiter["samples"] == SIZE
    expected = [went_on.next_batch().sampled.rows for _ in range(2)]
    went_on.prefetcher.close()
    went_on.replay.close()

    restored = Draws(tmp_path / "replay")
    restored.replay.load_state_dict(limiter)
    restored.rng.bit_generator.state = rng
    for rows in expected:
        np.testing.assert_array_equal(restored.next_batch().sampled.rows, rows)
    restored.prefetcher.close()
    restored.replay.close()


def test_the_error_of_a_draw_is_raised_in_next_batch(draws: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(size: int, out: Batch | None = None) -> None:
        raise OSError("disk")

    draws.insert(2)
    monkeypatch.setattr(draws.replay, "draw", fail)
    with pytest.raises(OSError, match="disk"):
        draws.next_batch()


def test_closing_twice_is_fine(draws: Draws) -> None:
    draws.insert(2)
    draws.next_batch()
    draws.prefetcher.close()
    draws.prefetcher.close()


def test_segments_of_resets_only_may_evict_everything(draws: Draws) -> None:
    draws.insert(4)
    draws.next_batch()
    inserted = 0
    while draws.replay.transitions:
        resets = plain_segment(1000 + inserted)
        resets = resets.with_columns(valid=np.zeros_like(resets.valid))
        assert draws.replay.limiter.try_reserve(4)
        draws.replay.insert(resets, source(inserted, "another"), 4)
        inserted += 1
    # The first one was drawn before.
    draws.prefetcher.next_batch(timeout=0.0)
    assert draws.prefetcher.next_batch(timeout=0.0) is None
    draws.insert(2)
    draws.next_batch()


def test_an_allowed_draw_may_find_an_empty_replay(draws: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    draws.insert(2)
    monkeypatch.setattr(draws.replay, "draw", Mock(side_effect=ConflictError("empty")))
    assert draws.prefetcher.next_batch(timeout=0.0) is None
    monkeypatch.undo()
    draws.next_batch()
