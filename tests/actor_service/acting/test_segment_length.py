"""The length of segments: messages stay within their limit."""

import numpy as np
import pytest

from actor_service.acting.collector import fitting_segment_length
from actor_service.environments import describe_environment
from actorq import wire
from actorq.domain.columns import GREEDY_ACTIONS
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import Episode, PolicySpan, Segment


def spec_of(shape: tuple[int, ...], dtype: str, frame_stack: int = 1) -> EnvironmentSpec:
    observations, actions = ArraySpec(shape, dtype), ArraySpec((), "int64")
    return EnvironmentSpec("Any-v0", observations, actions, sizes=(3,), frame_stack=frame_stack)


def fullest_segment(spec: EnvironmentSpec, environments: int, steps: int) -> Segment:
    """Episodes of one step in all environments, and another policy at every step."""
    rows = (steps, environments)
    return Segment(
        sequence=2**40,
        spans=tuple(PolicySpan(step, 2**40 + step, "int8-weights") for step in range(steps)),
        episodes=tuple(Episode(1.5, 1, index) for index in range(environments) for _ in range((steps + 1) // 2)),
        columns={
            "observations": np.zeros(
                (steps + spec.frame_stack, environments, *spec.observations.shape), spec.observations.dtype
            ),
            "actions": np.ones(rows, np.int64),
            "rewards": np.ones(rows, np.float32),
            "terminated": np.ones(rows, np.bool_),
            "truncated": np.zeros(rows, np.bool_),
            "valid": np.ones(rows, np.bool_),
            "ages": np.zeros(environments, np.uint8),
        },
    )


@pytest.mark.parametrize("max_bytes", [4_096, 65_536, 1_048_576])
@pytest.mark.parametrize("environments", [1, 16])
@pytest.mark.parametrize(
    "spec",
    [
        *(spec_of((1,), "uint8"), spec_of((1,), "float32"), spec_of((4,), "float32")),
        *(spec_of((7, 5, 3), "uint8"), spec_of((7, 5), "uint8", 4)),
    ],
    ids=["a byte", "1", "4", "image", "stacked frames"],
)
def test_the_fullest_segment_stays_within_the_limit(spec: EnvironmentSpec, environments: int, max_bytes: int) -> None:
    steps = fitting_segment_length(spec, environments, longest=10_000, max_bytes=max_bytes)
    message = wire.segment_to_proto(fullest_segment(spec, environments, steps))
    assert message.ByteSize() <= max_bytes or steps == 1
    assert wire.segment_from_proto(message).steps == steps
    if 1 < steps < 10_000:
        # And the limit is made use of.
        plain = wire.segment_to_proto(fullest_segment(spec, environments, 2 * steps)).ByteSize()
        assert plain > max_bytes


@pytest.mark.parametrize("max_bytes", [4_096, 65_536])
def test_the_segment_limit_includes_greedy_actions(max_bytes: int) -> None:
    actions = ArraySpec((6,), "float32", (-1.0,), (1.0,))
    spec = EnvironmentSpec("Any-v0", ArraySpec((4,), "float32"), actions)
    steps = fitting_segment_length(spec, 16, 10_000, max_bytes, (GREEDY_ACTIONS,))
    column = np.ones((steps, 16, 6), np.float32)
    fullest = fullest_segment(spec, 16, steps).with_columns(actions=column, greedy_actions=column)
    assert 1 < steps < fitting_segment_length(spec, 16, longest=10_000, max_bytes=max_bytes)
    assert wire.segment_to_proto(fullest).ByteSize() <= max_bytes


def test_segments_are_not_longer_than_wanted_and_have_a_step() -> None:
    spec = describe_environment("CartPole-v1")
    assert fitting_segment_length(spec, 8, longest=8, max_bytes=2**20) == 8
    assert fitting_segment_length(spec, 1000, longest=8, max_bytes=1024) == 1
