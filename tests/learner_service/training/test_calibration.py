"""Calibration rows come from all actors alike, however fast each one is."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.trajectory import Segment
from learner_service.actors.members import Member
from learner_service.algorithms import make_algorithm
from learner_service.replay.storage.sequences import SegmentSource
from learner_service.training.batches import RolloutBatches, SampledBatches, alike
from learner_service.training.training import Training, build_training
from tests.learner_service.learner_parts import (
    SPEC,
    config,
    open_replay,
    reinforce,
    segment,
    store_segment,
)
from tests.learner_service.training.trainer_parts import CPU

STEP = 100.0


def senders(*counts: int) -> NDArray[np.uint64]:
    """Rows of actors in random order; actor i has counts[i] of them."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(0).permutation(rows).astype(np.uint64)


@pytest.mark.parametrize(
    ("counts", "size", "shares"),
    [
        ((100,), 8, (8,)),
        ((100, 100), 8, (4, 4)),
        ((1000, 10, 10), 30, (10, 10, 10)),
        ((1000, 3, 10), 30, (17, 3, 10)),
        ((1000, 1000, 1000), 10, (4, 3, 3)),
        ((5, 4), 16, (5, 4)),
        ((0,), 16, ()),
        ((3, 3, 3), 2, (1, 1)),
    ],
)
def test_actors_have_equally_many_rows_if_available(
    counts: tuple[int, ...], size: int, shares: tuple[int, ...]
) -> None:
    rows = senders(*counts)
    chosen = alike(rows, size)
    assert sorted(Counter(rows[chosen].tolist()).values()) == sorted(shares)
    assert (np.diff(chosen) > 0).all()


def test_the_rows_of_an_actor_are_evenly_spaced() -> None:
    assert alike(np.zeros(100, np.uint64), 4).tolist() == [0, 25, 50, 75]


def test_a_fast_actor_gets_no_more_calibration_rows_from_a_replay(tmp_path: Path) -> None:
    settings = config(dqn={"hidden_sizes": (8,), "batch_size": 64}, publication={"period_updates": 4})
    algorithm, replay = make_algorithm(settings, SPEC), open_replay(tmp_path)
    batches = SampledBatches(settings, algorithm, replay, CPU)
    for actor, count in enumerate((12, 2, 2)):
        for sequence in range(1, count + 1):
            assert replay.limiter.try_reserve(8)
            replay.insert(shifted(actor, sequence), SegmentSource.from_name(f"actor-{actor}", 1, sequence), 8)
    assert batches.observed(30) is None
    assert batches.fetch(5.0)
    batches.learn(0.0)
    assert seen_by_actor(batches.observed(30)) == {0: 10, 1: 10, 2: 10}
    batches.close()
    replay.close()


def test_a_fast_actor_gets_no_more_calibration_rows_from_a_rollout(tmp_path: Path) -> None:
    with QuantizerClient("127.0.0.1:1") as client:
        opening = wire.Opening("run", "int8")
        training, _ = build_training(
            reinforce(), SPEC, tmp_path, opening, client, None, lambda updates: Path(str(updates)), lambda _: None
        )
        # Of actor 0 twelve rows, of actor 1 four.
        insert(training, 0, 1, steps=4)
        insert(training, 0, 2, steps=2)
        insert(training, 1, 1, steps=2)
        batches = training.batches
        assert isinstance(batches, RolloutBatches)
        assert batches.observed(4) is None
        assert batches.fetch(5.0)
        batches.learn(0.0)
        assert seen_by_actor(batches.observed(4)) == {0: 2, 1: 2}
        training.close()


def insert(training: Training, actor: int, sequence: int, steps: int) -> None:
    arrived = shifted(actor, sequence, steps, log_probabilities=np.full((steps, 2), -0.5, np.float32))
    assert training.replay.limiter.try_reserve(2 * steps)
    store_segment(training.intake, Member(f"actor-{actor}", "actor", actor, incarnation=1), arrived, 2 * steps)


def shifted(actor: int, sequence: int, steps: int = 4, **changes: Any) -> Segment:
    """A segment of two environments whose observations identify its actor."""
    observations = np.full((steps + 1, 2, 4), actor * STEP, np.float32)
    return segment(sequence, steps, observations=observations, **changes)


def seen_by_actor(observations: NDArray[np.float32] | None) -> Counter[int]:
    assert observations is not None
    return Counter((observations[:, 0] / STEP).astype(int).tolist())
