"""Calibration rows come from all actors alike, however fast each one is."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.columns import state_column
from actorq.domain.spaces import ArraySpec
from actorq.domain.trajectory import Segment
from learner_service.actors.members import Member
from learner_service.algorithms import make_algorithm
from learner_service.algorithms.base import AnyAlgorithm
from learner_service.replay import ReplayBuffer
from learner_service.replay.storage.sequences import SegmentSource
from learner_service.training.batches import RolloutBatches, SampledBatches, alike
from learner_service.training.buffers import open_buffer
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


@pytest.mark.parametrize(("name", "kind"), [("dqn", "gru"), ("sac", "lstm"), ("td3", "gru")])
def test_calibration_rows_from_a_replay_have_the_states_of_the_present_policy(
    tmp_path: Path, name: str, kind: str
) -> None:
    memory: dict[str, Any] = {"kind": kind, "units": 6, "burn_in": 2, "sequence_length": 3}
    section = {name: {"hidden_sizes": (8,), "batch_size": 300}}
    settings = config(algorithm=name, memory=memory, actor={"segment_length": 4}, **section)
    spec = SPEC if name == "dqn" else replace(SPEC, actions=ArraySpec((1,), "float32", (-1.0,), (1.0,)), sizes=())
    algorithm, rng = make_algorithm(settings, spec), np.random.default_rng(0)
    replay = open_buffer(settings, spec, tmp_path, algorithm, rng, 0)
    assert isinstance(replay, ReplayBuffer)
    batches, stored = SampledBatches(settings, algorithm, replay, CPU), []
    column = state_column(settings.memory.state_size)
    for actor, count in enumerate((12, 2, 2)):
        for sequence in range(1, count + 1):
            # Each segment begins a sequence of its own. Observations name the actor, and are all different.
            arrived = segment(sequence + 100 * actor)
            observations = np.float32(0.01) * np.asarray(arrived.observations, np.float32)
            observations[..., 0] += actor
            drawn = rng.uniform(-1, 1, (2, settings.memory.state_size)).astype(np.float32)
            changes: dict[str, Any] = {"observations": observations, column: drawn}
            if not spec.sizes:
                changes["actions"] = rng.uniform(-1, 1, (*arrived.rewards.shape, 1)).astype(np.float32)
            arrived = replace(arrived.with_columns(**changes), sequence=sequence)
            stored.append(arrived)
            assert replay.limiter.try_reserve(8)
            replay.insert(arrived, SegmentSource.from_name(f"actor-{actor}", 1, sequence), 8)
    assert batches.observed_states(30) is None
    assert batches.fetch(5.0)
    batches.learn(0.0)
    observed, states = batches.observed(30), batches.observed_states(30)
    assert observed is not None
    assert states is not None
    assert Counter(np.rint(observed[:, 0]).astype(int).tolist()) == {0: 10, 1: 10, 2: 10}
    known = {observation.tobytes(): state for each in stored for observation, state in stepped(algorithm, each, column)}
    expected = np.stack([known[observation.tobytes()] for observation in observed])
    np.testing.assert_allclose(states, expected, atol=1e-6)
    assert float(np.abs(expected).min()) > 0
    batches.close()
    replay.close()


def stepped(algorithm: AnyAlgorithm, stored: Segment, column: str) -> Iterator[tuple[Any, Any]]:
    """Each observation of a segment, with the present policy's state before it, from the stored one."""
    state = torch.from_numpy(stored.columns[column])
    for observations in stored.observations:
        yield from zip(observations, state.numpy(), strict=True)
        with torch.no_grad():
            _, state = algorithm.policy(torch.from_numpy(observations), state)


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
