"""Random segments like those of actors, and a simple model of a store's content."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from learner_service.replay import ReplayStore, SegmentSource
from learner_service.replay.storage.columns import FOLLOWS, TERMINATED, TRUNCATED, VALID
from learner_service.replay.storage.directory import Record

SPEC = EnvironmentSpec("Test-v0", ArraySpec((2,), "float32"), ArraySpec((), "int64"), sizes=(3,))

STACKED = replace(SPEC, frame_stack=3)


def source(sequence: int, name: str = "actor-0", incarnation: int = 7) -> SegmentSource:
    """The source of a segment of `name`."""
    return SegmentSource.from_name(name, incarnation, sequence)


def kill(store: ReplayStore) -> None:
    """End the store like SIGKILL: its lock is free, and nothing else happens."""
    assert store._lock is not None
    store._lock.close()


def random_segment(
    rng: np.random.Generator,
    steps: int,
    environments: int,
    sequence: int = 0,
    end_rate: float = 0.2,
    frame_stack: int = 1,
) -> Segment:
    """Episodes that end at random, with next-step autoreset; some begin with the reset of an earlier episode."""
    shape = (steps, environments)
    terminated, truncated = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    valid = np.ones(shape, np.bool_)
    ended = rng.random(environments) < end_rate
    for step in range(steps):
        valid[step] = ~ended
        terminated[step] = (rng.random(environments) < end_rate / 2) & ~ended
        truncated[step] = (rng.random(environments) < end_rate / 2) & ~ended
        ended = terminated[step] | truncated[step]
    switch = int(rng.integers(1, steps)) if steps > 1 else 1
    spans = (PolicySpan(0, sequence, "fp32"), PolicySpan(switch, sequence + 1, "int8"))
    return Segment(
        sequence=sequence,
        spans=spans if steps > 1 else spans[:1],
        columns={
            "observations": rng.standard_normal((frame_stack + steps, environments, 2), np.float32),
            "actions": rng.integers(3, size=shape),
            "rewards": rng.standard_normal(shape, np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "valid": valid,
            "ages": rng.integers(256, size=environments, dtype=np.uint8),
        },
    )


def plain_segment(sequence: int, steps: int = 4, environments: int = 1) -> Segment:
    """A segment without ends or resets, all of whose steps are transitions."""
    return random_segment(np.random.default_rng(sequence), steps, environments, sequence, end_rate=0.0)


def expected_flags(segment: Segment) -> NDArray[np.uint8]:
    """Flags uint8[N, T + 1] of the rows of `segment`."""
    flags = np.zeros((segment.environments, segment.steps + 1), np.uint8)
    for step in range(segment.steps):
        for environment in range(segment.environments):
            if segment.valid[step, environment]:
                flags[environment, step] = (
                    VALID
                    + TERMINATED * int(segment.terminated[step, environment])
                    + TRUNCATED * int(segment.truncated[step, environment])
                    + FOLLOWS * int(segment.follows and step == 0)
                )
    return flags


def expected_ages(segment: Segment) -> NDArray[np.uint8]:
    """Ages uint8[N, T + 1], one step at a time."""
    ages = [segment.ages.astype(int)]
    for valid in segment.valid:
        ages.append(np.where(valid, np.minimum(ages[-1] + 1, 255), 0))
    return np.stack(ages, axis=1).astype(np.uint8)


def assert_holds(store: ReplayStore, record: Record, segment: Segment) -> None:
    """The rows of `record` are exactly `segment`, environment by environment."""
    steps, environments, context = segment.steps, segment.environments, store.spec.frame_stack - 1
    assert (record.steps, record.environments, record.transitions) == (steps, environments, segment.transitions)
    rows = slice(record.start, record.stop)
    shape = (environments, context + steps + 1)
    np.testing.assert_array_equal(store.observations[rows].reshape(*shape, 2), segment.observations.swapaxes(0, 1))
    acted = slice(context, context + steps)
    np.testing.assert_array_equal(store.actions[rows].reshape(shape)[:, acted], segment.actions.T)
    np.testing.assert_array_equal(store.rewards[rows].reshape(shape)[:, acted], segment.rewards.T)
    flags = store.flags[rows].reshape(shape)
    assert not flags[:, :context].any()
    np.testing.assert_array_equal(flags[:, context:], expected_flags(segment))
    np.testing.assert_array_equal(store.ages[rows].reshape(shape)[:, context:], expected_ages(segment))
    versions = store.policy_versions[rows].reshape(shape)[:, acted]
    np.testing.assert_array_equal(versions, np.tile(segment.policy_versions(), (environments, 1)))
    assert (store.generations[rows] == record.index).all()


def assert_store_holds(store: ReplayStore, segments: dict[int, Segment]) -> None:
    """Every live segment of `store` has the content of `segments[sequence]`, and no other row is marked."""
    marked = store.flags.copy()
    for record in store.segments.live:
        assert_holds(store, record, segments[record.source.sequence])
        marked[record.start : record.stop] = 0
    assert not marked.any()
    assert store.transitions == sum(record.transitions for record in store.segments.live)
    assert store.transitions == np.count_nonzero(store.flags & VALID)
