"""Drawn transitions get other goals, with their rewards and ends, in the right share and repeatably."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actorq.domain.goals import Goal, HindsightColumns
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import Segment
from actorq.errors import ConflictError
from learner_service.batch import Batch
from learner_service.replay import (
    OtherGoals,
    PrioritizedSampler,
    RateLimiter,
    ReplayBuffer,
    ReplayStore,
    Returns,
    UniformSampler,
)
from tests.learner_service.replay.replay_segments import random_segment, source

GOAL = Goal(achieved=0, desired=2, size=2)
NAMES = HindsightColumns(4)
SPEC = EnvironmentSpec("Test-v0", ArraySpec((5,), "float32"), ArraySpec((), "int64"), sizes=(3,), goal=GOAL)


def _segment(rng: np.random.Generator, sequence: int, frame_stack: int) -> Segment:
    """Goal j of step t in environment n is (t, 10 n + j) + 100, and its reward the sum of both."""
    steps, environments = 6, 2
    plain = random_segment(rng, steps, environments, sequence, end_rate=0.0, frame_stack=frame_stack)
    grid = np.indices((steps, environments, NAMES.copies)).astype(np.float32)
    goals = np.stack([grid[0], 10 * grid[1] + grid[2]], axis=-1) + 100
    rng_observations = rng.uniform(-1, 1, (frame_stack + steps, environments, 5)).astype(np.float32)
    return plain.with_columns(
        observations=rng_observations,
        **{
            NAMES.goals: goals,
            NAMES.rewards: goals.sum(axis=-1),
            NAMES.terminated: np.broadcast_to(np.arange(4) == 3, (steps, environments, 4)).copy(),
        },
    )


def _buffer(
    folder: Path, seed: int = 1, frame_stack: int = 1, clip: float | None = None, prioritized: bool = False
) -> ReplayBuffer:
    spec, rng = replace(SPEC, frame_stack=frame_stack), np.random.default_rng(7)
    store = ReplayStore.open(folder, spec, 400, NAMES.names)
    drawing = np.random.default_rng(seed)
    sampler = (PrioritizedSampler if prioritized else UniformSampler)(store, drawing)
    limiter = RateLimiter(8.0, 4, 64.0, clock=lambda: 0.0)
    buffer = ReplayBuffer(store, sampler, limiter, Returns(1, 0.9, clip), goals=OtherGoals(GOAL, NAMES, drawing))
    if not store.transitions:
        segment = _segment(rng, 1, frame_stack)
        segment.check(spec)
        assert limiter.try_reserve(segment.transitions)
        assert buffer.insert(segment, source(1), segment.transitions) is not None
    return buffer


def _relabeled(batch: Batch) -> np.ndarray:
    """Which transitions have another goal: one of 100 and more."""
    return np.asarray(batch.observations.reshape(len(batch.returns), -1)[:, 2], np.float64) >= 100


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("prioritized", [False, True])
def test_another_goal_also_replaces_reward_and_end(tmp_path: Path, frame_stack: int, prioritized: bool) -> None:
    buffer = _buffer(tmp_path, frame_stack=frame_stack, prioritized=prioritized)
    batch, sampled = buffer.draw(4000)
    other = _relabeled(batch)
    # Each of the 4 copies, and the own goal, with the same probability.
    assert abs(other.mean() - 0.8) < 0.03
    own = batch.returns[~other]
    assert (np.abs(own) < 50).all()
    assert (batch.bootstrap_discounts[~other] == np.float32(0.9)).all()
    goals = GOAL.desired_of(batch.observations)[other].reshape(other.sum(), -1, 2)
    # The stack has one goal, and so has the bootstrap observation.
    assert (goals == goals[:, :1]).all()
    np.testing.assert_array_equal(
        goals, GOAL.desired_of(batch.bootstrap_observations)[other].reshape(other.sum(), -1, 2)
    )
    np.testing.assert_allclose(batch.returns[other], goals[:, 0].sum(axis=-1))
    copy = (goals[:, 0, 1] - 100) % 10
    assert (np.bincount(copy.astype(int)) / len(copy) > 0.2).all()
    # The last copy ends the episode.
    np.testing.assert_array_equal(batch.bootstrap_discounts[other] == 0, copy == 3)
    # Nothing else changes.
    store = buffer._store
    rest = [0, 1, 4]
    if frame_stack == 1:
        np.testing.assert_array_equal(batch.observations[:, rest], store.observations[sampled.rows][:, rest])
        np.testing.assert_array_equal(
            batch.bootstrap_observations[:, rest], store.observations[sampled.rows + 1][:, rest]
        )
    np.testing.assert_array_equal(batch.actions, store.actions[sampled.rows])
    assert buffer.limiter.samples == 0


def test_rewards_of_other_goals_are_clipped_too(tmp_path: Path) -> None:
    batch, _ = _buffer(tmp_path, clip=1.0).draw(100)
    assert (batch.returns[_relabeled(batch)] == 1).all()


def test_the_same_generator_draws_the_same_goals_also_from_its_saved_state(tmp_path: Path) -> None:
    drawn = []
    for folder in ("one", "other"):
        buffer = _buffer(tmp_path / folder)
        drawn.append([buffer.draw(32)[0] for _ in range(3)])
        buffer.close()
    for one, other in zip(*drawn, strict=True):
        np.testing.assert_array_equal(one.observations, other.observations)
        np.testing.assert_array_equal(one.returns, other.returns)
    assert not np.array_equal(drawn[0][0].returns, drawn[0][1].returns)


def test_the_replay_keeps_the_goals_and_refuses_another_number_of_copies(tmp_path: Path) -> None:
    _buffer(tmp_path).close()
    again = _buffer(tmp_path)
    assert again.transitions == 12
    again.close()
    with pytest.raises(ConflictError, match=r"hindsight goals 4, .*--hindsight\.copies 4"):
        ReplayStore.open(tmp_path, SPEC, 400)
    with pytest.raises(ConflictError, match=r"no hindsight goals 2, .*--hindsight\.copies 0"):
        ReplayStore.open(tmp_path, SPEC, 400, (*NAMES.names, *HindsightColumns(2).names))
