"""Queues and segments for the tests of rollouts."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from actorq.domain.trajectory import PolicySpan, Segment
from learner_service.batch import Batch
from learner_service.replay import ObservationMoments, RateLimiter, ReplayStore
from learner_service.rollouts import PublishedVersions, RewardScale, RolloutQueue
from tests.learner_service.replay.replay_segments import SPEC, expected_ages, random_segment, source


def open_queue(
    directory: Path,
    rollout_size: int = 8,
    epochs: int = 2,
    waiting: float = 1.0,
    capacity: int = 400,
    max_lag: int = 2,
    frame_stack: int = 1,
    scale: bool = False,
    clip: float | None = None,
) -> RolloutQueue:
    """A queue on the disk, as a learner opens it."""
    spec = replace(SPEC, frame_stack=frame_stack)
    store = ReplayStore.open(directory, spec, capacity, ("log_probabilities",), rows_per_segment=4)
    limiter = RateLimiter.of_queue(epochs, rollout_size, int(waiting * rollout_size), lambda: 0.0)
    moments = ObservationMoments(spec.observations.shape)
    return RolloutQueue(
        store, limiter, rollout_size, PublishedVersions(max_lag), clip, RewardScale(0.9) if scale else None, moments
    )


def drawn_segment(
    sequence: int, steps: int = 4, environments: int = 2, version: int = 1, frame_stack: int = 1, end_rate: float = 0.2
) -> Segment:
    """The one segment that belongs to a sequence number, with log probabilities."""
    rng = np.random.default_rng(sequence)
    segment = random_segment(rng, steps, environments, sequence, end_rate, frame_stack)
    drawn = -rng.random((steps, environments), np.float32)
    return replace(segment.with_columns(log_probabilities=drawn), spans=(PolicySpan(0, version, "int8"),))


def pieces(segment: Segment, length: int, first: int) -> list[Segment]:
    """A segment without frame stacks, cut into segments of `length` steps, numbered from `first` on."""
    cut, ages = [], expected_ages(segment)
    for number, start in enumerate(range(0, segment.steps, length)):
        rows = slice(start, start + length)
        columns = {
            **{name: values[rows] for name, values in segment.columns.items()},
            "observations": segment.observations[start : start + length + 1],
            "ages": ages[:, start],
        }
        cut.append(replace(segment, sequence=first + number, columns=columns, follows=number > 0))
    return cut


def insert(queue: RolloutQueue, *segments: Segment, actor: str = "actor-0") -> None:
    """Store segments, as far as the limiter admits them; a refusal fails the test."""
    for segment in segments:
        size = segment.rewards.size
        assert queue.limiter.try_reserve(size)
        assert queue.insert(segment, source(segment.sequence, actor), size) is not None


def next_rollout(queue: RolloutQueue) -> tuple[Batch, ...]:
    """The next rollout, which is there."""
    rollout = queue.next_rollout(timeout=0)
    assert rollout is not None
    return rollout


def used(rollout: tuple[Batch, ...]) -> list[float]:
    """The log probabilities of a rollout, sorted. They identify its segments."""
    return sorted(float(value) for part in rollout for value in part.log_probabilities.ravel())


def told(*segments: Segment) -> list[float]:
    """Those of segments."""
    return sorted(float(v) for segment in segments for v in np.asarray(segment.columns["log_probabilities"]).ravel())
