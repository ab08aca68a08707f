"""Other goals come from the later steps of the same episode, with the environment's own rewards."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actor_service.acting.behavior import BehaviorPolicy
from actor_service.acting.collector import SegmentCollector
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import make_environments
from actor_service.goals.hindsight import Hindsight
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actorq import wire
from actorq.domain.columns import columns_of
from actorq.domain.goals import HINDSIGHT, Goal, HindsightColumns, hindsight_of
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from actorq.v1 import trajectory_pb2
from tests.actor_service.actor_policies import constant_policy

GOAL = Goal(achieved=0, desired=1, size=1)
NAMES = HindsightColumns(3)
SPEC = EnvironmentSpec("Test-v0", ArraySpec((3,), "float32"), ArraySpec((), "int64"), (2,), 8, goal=GOAL)


def _rewards(achieved: NDArray[Any], desired: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """A number that only this pair of goals has."""
    return (1000 * achieved + desired)[:, 0].astype(np.float32), (achieved == desired)[:, 0]


def _segment(sequence: int, ends: str, first: int = 1, follows: bool = True, frame_stack: int = 1) -> Segment:
    """A segment of one environment. Achieved goals count up from `first`; the desired goal is 500.

    ends: for each step "." (continues), "T" (terminated), "L" (truncated) or "R" (resets only).
    """
    steps = len(ends)
    observations = np.zeros((frame_stack + steps, 1, 3), np.float32)
    observations[:, 0, 0] = np.arange(first - frame_stack, first + steps)
    observations[:, 0, 1] = 500
    flags = np.array(list(ends))[:, None]
    return Segment(
        sequence=sequence,
        columns={
            "observations": observations,
            "actions": np.zeros((steps, 1), np.int64),
            "rewards": np.full((steps, 1), -1, np.float32),
            "terminated": flags == "T",
            "truncated": flags == "L",
            "valid": flags != "R",
            "ages": np.zeros(1, np.uint8),
        },
        spans=(PolicySpan(0, 1, "fp32"),),
        episodes=(),
        follows=follows,
    )


def _stage(environments: int = 1) -> Hindsight:
    return Hindsight(GOAL, environments, NAMES, _rewards, np.random.default_rng(3))  # type: ignore[arg-type]


def _goals(segment: Segment) -> NDArray[Any]:
    """The other goals of each step of the one environment, [T, copies]."""
    return np.asarray(segment.columns[NAMES.goals][:, 0, :, 0])


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_a_segment_waits_for_the_end_of_its_episodes(frame_stack: int) -> None:
    stage = _stage()
    assert list(stage.add(_segment(1, "....", 1, frame_stack=frame_stack))) == []
    first, second = stage.add(_segment(2, "..T", 5, frame_stack=frame_stack))
    assert (first.sequence, second.sequence) == (1, 2)
    goals = np.concatenate([_goals(first), _goals(second)])
    # The goal achieved after step t is t + 1.
    for step, drawn in enumerate(goals):
        assert set(drawn) <= set(range(step + 1, 8))
    assert (goals[-1] == 7).all()
    for segment in (first, second):
        achieved = segment.observations[frame_stack:, :, :1]
        expected = 1000 * np.asarray(achieved, np.float32) + np.asarray(
            segment.columns[NAMES.goals][..., 0], np.float32
        )
        np.testing.assert_array_equal(segment.columns[NAMES.rewards], expected)
        np.testing.assert_array_equal(
            segment.columns[NAMES.terminated], segment.columns[NAMES.goals][..., 0] == achieved
        )


def test_goals_are_drawn_uniformly_from_the_later_steps() -> None:
    stage, drawn = _stage(), []
    for sequence in range(1, 1500):
        (segment,) = stage.add(_segment(sequence, "...L"))
        drawn.append(_goals(segment))
    counts = [np.bincount(np.array(drawn)[:, step].astype(int).ravel(), minlength=5)[1:] for step in range(4)]
    for step, count in enumerate(counts):
        assert not count[:step].any()
        np.testing.assert_allclose(count[step:] / count.sum(), 1 / (4 - step), atol=0.03)


def test_an_episode_gets_no_goal_of_another() -> None:
    stage = _stage()
    (segment,) = stage.add(_segment(1, "..TR..LR"))
    goals = _goals(segment)
    assert set(goals[:3].ravel()) <= {1, 2, 3}
    assert set(goals[4:7].ravel()) <= {5, 6, 7}
    # A row that only resets is none of them.
    assert (goals[[3, 7]] == 500).all()


def test_environments_wait_for_one_another() -> None:
    one, other = _segment(1, "..T"), _segment(1, "...")
    columns = {name: np.concatenate([one.columns[name], other.columns[name]], axis=-1) for name in ("ages",)}
    for name in ("observations", "actions", "rewards", "terminated", "truncated", "valid"):
        columns[name] = np.concatenate([one.columns[name], other.columns[name]], axis=1)
    both, stage = one.with_columns(**columns), _stage(2)
    assert list(stage.add(both)) == []
    (flushed,) = stage.flush()
    assert set(flushed.columns[NAMES.goals][:, 0].ravel()) <= {1, 2, 3}
    assert (flushed.columns[NAMES.goals][:, 1] == 500).all()


@pytest.mark.parametrize("cut", ["the actor ends", "a fault begins a new episode", "a segment was dropped"])
def test_an_episode_that_is_cut_off_keeps_its_own_goal(cut: str) -> None:
    stage = _stage()
    assert list(stage.add(_segment(1, "..."))) == []
    if cut == "the actor ends":
        (segment,) = stage.flush()
    elif cut == "a segment was dropped":
        (segment,) = stage.add(_segment(2, "...", 10, follows=False))
    else:
        segment, _ = stage.add(_segment(2, "R..T", 4))
    assert (_goals(segment) == 500).all()
    assert (segment.columns[NAMES.rewards] == -1).all()
    assert not segment.columns[NAMES.terminated].any()


class _Random(BehaviorPolicy):
    def __init__(self, environments: int) -> None:
        self._rng, self._count = np.random.default_rng(1), environments

    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        return self._rng.integers(2, size=self._count)


def _collected(count: int, segments: int) -> Iterator[tuple[EnvironmentSpec, Segment]]:
    environments, slot = make_environments("goal_environments:Line-v0", count), PolicySlot()
    spec, rewards = environments.spec, environments.goal_rewards
    slot.put(OnnxPolicy(constant_policy([0.0, 1.0]), spec.observations, count))
    collector = SegmentCollector(environments, PolicyTurns(slot), _Random(count), 4, 1)
    assert spec.goal is not None
    assert rewards is not None
    stage = Hindsight(spec.goal, count, NAMES, rewards, np.random.default_rng(2))
    for _ in range(segments):
        collected = collector.collect(threading.Event())
        assert collected is not None
        yield from ((spec, segment) for segment in stage.add(collected))
    yield from ((spec, segment) for segment in stage.flush())


def test_segments_leave_in_order_and_fit_the_run() -> None:
    found = list(_collected(3, 40))
    assert [segment.sequence for _, segment in found] == list(range(1, 41))
    for spec, segment in found:
        sent = wire.segment_to_proto(segment).SerializeToString()
        received = wire.segment_from_proto(trajectory_pb2.Segment.FromString(sent))
        received.check(spec, columns_of(spec, NAMES.names))
    # Most steps have another goal than their own, which the environment judges.
    goals = np.concatenate([segment.columns[NAMES.goals][segment.valid] for _, segment in found])[..., 0]
    achieved = np.concatenate([segment.observations[1:, :, 0][segment.valid] for _, segment in found])
    rewards = np.concatenate([segment.columns[NAMES.rewards][segment.valid] for _, segment in found])
    np.testing.assert_array_equal(rewards, (goals == achieved[:, None]) - 1.0)
    assert (rewards == 0).mean() > 0.3


def test_a_run_finds_the_columns_by_their_names() -> None:
    assert hindsight_of(("greedy_actions", *HINDSIGHT[3].names)) == HindsightColumns(4)
    assert hindsight_of(("greedy_actions",)) is None
    assert HindsightColumns(0).names == ()
