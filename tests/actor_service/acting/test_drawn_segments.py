"""Segments of drawn actions: their content, their size, and their end."""

import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actor_service.acting.behaviors import behavior_policy
from actor_service.acting.collector import SegmentCollector, fitting_segment_length
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import Environments, Step, make_environments
from actor_service.policies.policy import PolicySlot, load_policy
from actorq import wire
from actorq.domain.columns import LOG_PROBABILITIES
from actorq.domain.policy import Policy
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import Exploration, Sampling
from actorq.domain.trajectory import Episode, PolicySpan, Segment
from tests.actor_service.actor_policies import gaussian_policy, linear_policy, logits_policy, sampler_needs
from tests.builders.segments import without

COUNT, LENGTH, SEED = 3, 8, 5
WEIGHTS = np.random.default_rng(2).standard_normal((4, 2)).astype(np.float32)


def drawing(
    environments: Environments,
    policy: Policy,
    sampling: Sampling = "clipped",
    most_steps: int = 0,
    slot: PolicySlot | None = None,
) -> SegmentCollector:
    """The collector of an actor of a run that draws actions."""
    slot = slot or PolicySlot()
    slot.put(load_policy(policy, environments.spec, environments.count, sampler_needs(environments.spec)))
    exploration = Exploration((), (), sampling=sampling)
    explore = behavior_policy(environments.spec, exploration, environments.count, np.random.default_rng(9))
    turns = PolicyTurns(slot, most_steps, patience_s=0.0)
    return SegmentCollector(environments, turns, explore, LENGTH, SEED, columns=explore.columns, sampled=True)


def collect(collecting: SegmentCollector, spec: EnvironmentSpec) -> Segment:
    segment = collecting.collect(threading.Event())
    assert segment is not None
    segment.check(spec)
    return segment


def test_segments_hold_the_log_probability_of_each_discrete_action() -> None:
    environments = make_environments("CartPole-v1", COUNT)
    collecting = drawing(environments, linear_policy(WEIGHTS, np.zeros(2, np.float32), output="logits"))
    segments = [collect(collecting, environments.spec) for _ in range(20)]
    for segment in segments:
        assert segment.columns[LOG_PROBABILITIES].shape == (LENGTH, COUNT)
        logits = segment.observations[:-1].astype(float) @ WEIGHTS
        told = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        expected = np.take_along_axis(told, segment.actions.astype(np.int64)[..., None], -1)[..., 0]
        np.testing.assert_allclose(segment.columns[LOG_PROBABILITIES].astype(float), expected, atol=1e-5)
        # The same after a journey.
        arrived = wire.segment_from_proto(wire.segment_to_proto(segment))
        np.testing.assert_array_equal(arrived.columns[LOG_PROBABILITIES], segment.columns[LOG_PROBABILITIES])
    assert {0, 1} == {int(action) for segment in segments for action in segment.actions.ravel()}


class Watching:
    """Environments that record their actions for a test."""

    def __init__(self, environments: Environments, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actions: list[NDArray[Any]] = []
        step = environments.step

        def seen(actions: NDArray[Any]) -> Step:
            self.actions.append(actions.copy())
            return step(actions)

        monkeypatch.setattr(environments, "step", seen)


@pytest.mark.parametrize("sampling", ["clipped", "squashed"])
def test_segments_hold_the_drawn_values_and_the_environments_get_actions_within_their_bounds(
    sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = make_environments("Pendulum-v1", COUNT)
    watching = Watching(environments, monkeypatch)
    collecting = drawing(environments, gaussian_policy([0.0], [0.5], observation_size=3), sampling)
    segments = [collect(collecting, environments.spec) for _ in range(5)]
    drawn = np.concatenate([segment.actions for segment in segments])
    assert np.abs(drawn).max() > 2
    # Half of the torque's range is 2, its middle is 0.
    bounded = 2 * (np.tanh(drawn) if sampling == "squashed" else np.clip(drawn, -1, 1))
    np.testing.assert_allclose(np.array(watching.actions), bounded, atol=1e-6)
    means = np.concatenate([segment.observations[:-1].sum(axis=-1) for segment in segments])
    noise = (drawn[..., 0] - means) / np.exp(0.5)
    expected = -0.5 * noise**2 - 0.5 - 0.5 * np.log(2 * np.pi)
    told = np.concatenate([segment.columns[LOG_PROBABILITIES] for segment in segments])
    np.testing.assert_allclose(told.astype(float), expected, atol=1e-4)


def test_the_same_seeds_give_the_same_segments() -> None:
    def segments() -> list[Segment]:
        environments = make_environments("CartPole-v1", COUNT)
        collecting = drawing(environments, logits_policy([0.1, 0.0]))
        return [collect(collecting, environments.spec) for _ in range(10)]

    for one, same in zip(segments(), segments(), strict=True):
        np.testing.assert_array_equal(one.actions, same.actions)
        np.testing.assert_array_equal(one.observations, same.observations)
        np.testing.assert_array_equal(one.columns[LOG_PROBABILITIES], same.columns[LOG_PROBABILITIES])


def fullest_segment(spec: EnvironmentSpec, environments: int, steps: int) -> Segment:
    """Episodes of one step in all environments, and another policy at every step."""
    rows = (steps, environments)
    return Segment(
        sequence=2**40,
        spans=tuple(PolicySpan(step, 2**40 + step, "int8-weights") for step in range(steps)),
        episodes=tuple(Episode(1.5, 1, index) for index in range(environments) for _ in range((steps + 1) // 2)),
        columns={
            "observations": np.zeros((steps + 1, environments, *spec.observations.shape), np.float32),
            "actions": np.ones((*rows, *spec.actions.shape), spec.actions.dtype),
            "rewards": np.ones(rows, np.float32),
            "terminated": np.ones(rows, np.bool_),
            "truncated": np.zeros(rows, np.bool_),
            "valid": np.ones(rows, np.bool_),
            "ages": np.zeros(environments, np.uint8),
            "log_probabilities": np.ones(rows, np.float32),
        },
    )


@pytest.mark.parametrize("max_bytes", [65_536, 1_048_576])
@pytest.mark.parametrize(
    "actions", [ArraySpec((), "int64"), ArraySpec((6,), "float32", (-1.0,), (1.0,))], ids=["discrete", "continuous"]
)
def test_there_is_room_for_log_probabilities(actions: ArraySpec, max_bytes: int) -> None:
    spec = EnvironmentSpec("Any-v0", ArraySpec((1,), "float32"), actions, () if actions.shape else (2,))
    steps = fitting_segment_length(spec, 16, 10_000, max_bytes, (LOG_PROBABILITIES,))
    fullest = fullest_segment(spec, 16, steps)
    size = wire.segment_to_proto(fullest).ByteSize()
    smaller = wire.segment_to_proto(without(fullest, LOG_PROBABILITIES)).ByteSize()
    assert 1 < steps < fitting_segment_length(spec, 16, longest=10_000, max_bytes=max_bytes)
    assert smaller + 4 * 16 * steps < size <= max_bytes


def test_a_segment_ends_before_the_loop_waits_for_a_newer_policy() -> None:
    environments, slot = make_environments("CartPole-v1", COUNT), PolicySlot()
    collecting = drawing(environments, logits_policy([0.0, 0.0]), most_steps=20, slot=slot)
    # No policy comes, so the present policy acts further, and no further segment is cut.
    lengths = [collect(collecting, environments.spec).steps for _ in range(5)]
    assert lengths == [8, 8, 4, 8, 8]
    slot.put(
        load_policy(logits_policy([0.0, 0.0], version=2), environments.spec, COUNT, sampler_needs(environments.spec))
    )
    segments = [collect(collecting, environments.spec) for _ in range(4)]
    assert [segment.steps for segment in segments] == [8, 8, 4, 8]
    assert all(segment.spans == (PolicySpan(0, 2, "int8-weights"),) for segment in segments)
    # No step is lost: each segment begins where the one before ended.
    for one, following in pairwise(segments):
        np.testing.assert_array_equal(one.observations[-1], following.observations[0])


def test_without_drawn_actions_the_loop_waits_within_a_segment() -> None:
    environments, slot = make_environments("CartPole-v1", COUNT), PolicySlot()
    slot.put(load_policy(logits_policy([0.0, 1.0]), environments.spec, COUNT))
    collecting = SegmentCollector(
        environments,
        PolicyTurns(slot, 12, patience_s=0.0),
        lambda policy, seen: policy(seen).argmax(axis=1),
        LENGTH,
        SEED,
    )
    segments = [collect(collecting, environments.spec) for _ in range(3)]
    assert [segment.steps for segment in segments] == [8, 8, 8]
    assert all(LOG_PROBABILITIES not in segment.columns for segment in segments)
