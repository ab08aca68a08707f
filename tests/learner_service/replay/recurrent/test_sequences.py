"""Sampled sequences are compared with a coded environment: each row and each state tells where it belongs."""

from pathlib import Path

import numpy as np
import pytest

from actorq.errors import ConflictError
from learner_service.replay import Prefetcher, Returns, SequenceShape, transitions_of
from learner_service.replay.delayed import DelayedReturns
from tests.learner_service.replay.recurrent.sequence_replays import Coded

SHAPES = {
    "within a segment": SequenceShape(0, 2, 0, 2),
    "without burn-in": SequenceShape(0, 9, 2, 2),
    "over many segments": SequenceShape(11, 20, 2, 2),
    "with a burn-in only longer than a segment": SequenceShape(9, 1, 2, 2),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sequences_run_over_segments_and_never_keep_the_state_of_another_episode(
    tmp_path: Path, shape: SequenceShape
) -> None:
    coded = Coded(tmp_path, shape=shape, returns=Returns(shape.tail + 1, 0.9, windows=True))
    actors = [coded.actor(3), coded.actor(1, end_rate=0.5), coded.actor(2, end_rate=0.0)]
    rng = np.random.default_rng(1)
    for _ in range(40):
        coded.insert(actors[rng.integers(3)], int(rng.integers(1, 7)))
    drawn = set().union(*(coded.check() for _ in range(20)))
    assert drawn == coded.ready()
    coded.close()


def test_a_lost_segment_ends_a_sequence(tmp_path: Path) -> None:
    coded = Coded(tmp_path)
    actor = coded.actor(2)
    for _ in range(4):
        coded.insert(actor, 4)
        coded.insert(actor, 4)
        coded.lose(actor, 4)
    drawn = set().union(*(coded.check() for _ in range(10)))
    # Of two joined segments, only the first has more steps than the burn-in after its start.
    assert drawn == coded.ready() == {(0, each, first) for each in range(2) for first in (0, 12, 24, 36)}
    coded.close()


def test_overwritten_segments_are_not_drawn(tmp_path: Path) -> None:
    coded = Coded(tmp_path, capacity=200)
    actors = [coded.actor(2), coded.actor(2)]
    for lap in range(200):
        coded.insert(actors[lap % 2], 1 + lap % 5)
        if lap > 20:
            coded.check(8)
    assert set().union(*(coded.check() for _ in range(20))) == coded.ready()
    coded.close()


def test_a_dropped_segment_is_not_drawn(tmp_path: Path) -> None:
    coded = Coded(tmp_path)
    actor = coded.actor(2)
    for _ in range(10):
        coded.insert(actor, 4)
    coded.replay.drop_oldest(20, keep=8)
    drawn = set().union(*(coded.check() for _ in range(10)))
    assert drawn == coded.ready()
    assert min(first for _, _, first in drawn) > 0
    coded.close()


@pytest.mark.parametrize("alpha", [0.0, 0.9])
def test_a_reopened_replay_draws_the_same_sequences(tmp_path: Path, alpha: float) -> None:
    coded = Coded(tmp_path, alpha=alpha)
    actor = coded.actor(3)
    for _ in range(8):
        coded.insert(actor, 4)
    before = set().union(*(coded.check() for _ in range(10)))
    coded.close()
    coded.open()
    assert set().union(*(coded.check() for _ in range(10))) == before == coded.ready()
    coded.insert(actor, 4)
    assert set().union(*(coded.check() for _ in range(20))) == coded.ready() > before
    coded.close()


def test_a_damaged_segment_ends_the_sequences_before_it(tmp_path: Path) -> None:
    coded = Coded(tmp_path)
    actor = coded.actor(2)
    for _ in range(8):
        coded.insert(actor, 4)
    damaged = coded.store.segments.live[4]
    coded.close()
    with (tmp_path / "rewards.bin").open("r+b") as file:
        file.seek(4 * damaged.start)
        file.write(b"\x01\x02\x03\x04")
    coded.open()
    assert coded.store.segments.damaged == 1
    assert set().union(*(coded.check() for _ in range(10))) == coded.ready()
    assert {first for _, _, first in coded.ready()} == {0, 4, 8, 20, 24}
    coded.close()


def test_no_sample_is_allowed_before_a_sequence_has_a_trained_step(tmp_path: Path) -> None:
    coded = Coded(tmp_path)
    actor, limiter = coded.actor(2), coded.replay.limiter
    coded.insert(actor, 4)
    assert limiter.can_sample(14)
    with pytest.raises(ConflictError, match="before a sequence has a trained step"):
        coded.replay.draw(2)
    assert not limiter.can_sample(14)
    coded.insert(actor, 4)
    assert limiter.can_sample(14)
    coded.check(4)
    coded.close()


def test_the_limiter_counts_trained_steps(tmp_path: Path) -> None:
    coded = Coded(tmp_path)
    actor = coded.actor(2)
    for _ in range(6):
        coded.insert(actor, 4)
    prefetcher = Prefetcher(coded.replay, 4, transitions=28)
    counted = 0
    for _ in range(5):
        drawn = prefetcher.next_batch(1.0)
        assert drawn is not None
        counted += transitions_of(drawn.batch)
        assert coded.replay.limiter.samples == counted
    # The newest starts have fewer trained steps than a whole sequence.
    assert 0 < counted < 5 * 28
    prefetcher.close()
    coded.close()


def test_returns_that_grow_later_fit_into_the_same_batches(tmp_path: Path) -> None:
    short, long = Returns(1, 0.9, windows=True), Returns(3, 0.9, windows=True)
    coded = Coded(tmp_path)
    actor = coded.actor(2)
    coded.replay._returns = DelayedReturns(short, long, after=40)
    for _ in range(5):
        coded.insert(actor, 4)
    coded.returns = short
    coded.check()
    for _ in range(3):
        coded.insert(actor, 4)
    coded.returns = long
    coded.check()
    coded.close()


def test_rewards_are_clipped(tmp_path: Path) -> None:
    coded = Coded(tmp_path, returns=Returns(3, 0.5, clip_rewards=1.0))
    actor = coded.actor(1, end_rate=0.0)
    for _ in range(6):
        coded.insert(actor, 4)
    batch, _ = coded.replay.draw(16)
    assert batch.returns.max() <= 1.75
    assert "between_discounts" not in batch
    coded.close()
