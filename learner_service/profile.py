"""Measures the time of an update and of a policy snapshot, for `actorq profile`."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean, median, quantiles
from typing import Any

import numpy as np
import safetensors.numpy

from actorq import wire
from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.columns import state_column
from actorq.domain.policy import CALIBRATION_PREFIX, SEQUENCES_PREFIX
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Segment
from actorq.errors import ConflictError
from actorq.process import EXIT_OK
from actorq.profiling import Order
from actorq.transport.payload.blobs import split_blob
from learner_service.algorithms.base import is_on_policy
from learner_service.kernels.memory import keep_memory
from learner_service.policy.policy_graph import calibration_batch, snapshot_parameters
from learner_service.replay import SegmentSource
from learner_service.training.drawing import sampling_of
from learner_service.training.threads import set_configured
from learner_service.training.trainer import takes_noise
from learner_service.training.training import Training, build_training

_NAME = "profile"
# Transitions in the replay.
_STORED = 20_000
_WINDOW_S = 0.25
_SNAPSHOTS = 20
# Longest wait for a rollout, all of which is already in the queue.
_TAKE_S = 10.0
# The quantizer's address. Nothing connects to it.
_NOWHERE = "127.0.0.1:1"


@dataclass(frozen=True)
class _Window:
    """One measured interval: updates, seconds of wall-clock time, and CPU seconds of all threads.

    transitions: those of the rollout that the interval used; 0 for an off-policy algorithm.
    """

    updates: int
    wall: float
    cpu: float
    transitions: int = 0


def measure(order: Order) -> dict[str, Any]:
    """Seconds of an update with its sampling, and CPU seconds of a snapshot with its message.

    For an on-policy algorithm, the time of an update includes its share of a rollout's values and probabilities.
    `rollout` has the mean number of updates and transitions of a rollout, and the configured environment steps.
    """
    config = _unlimited(order.config)
    keep_memory()
    set_configured(config)
    client = QuantizerClient(_NOWHERE)
    training, graph = build_training(
        *(config, order.folder.spec(), order.folder.path / "learner", wire.Opening(_NAME, config.scheme), client, None),
        lambda updates: order.folder.path,
        lambda receipt: None,
    )
    algorithm, segments = training.algorithm, order.folder.segments()
    size = algorithm.rollout_size if is_on_policy(algorithm) else None
    if size is not None:
        segments = [_as_drawn(segment, training.spec) for segment in segments]
    if state_size := config.memory.state_size:
        segments = [_with_states(segment, state_size) for segment in segments]
    filling = _Filling(training, segments, config.actors)
    filling.insert(size or min(_STORED, training.replay.capacity // 2))
    observed = training.replay.newest_observations(config.publication.calibration_size)
    states = np.zeros((len(observed), state_size), np.float32) if state_size else None
    calibration = calibration_batch(observed, training.spec, takes_noise(algorithm), config.seed, states)
    sequences = training.trainer.sequences()
    tensors = {
        **snapshot_parameters(algorithm.policy),
        **{CALIBRATION_PREFIX + name: batch for name, batch in calibration.items()},
        **{SEQUENCES_PREFIX + name: array for name, array in sequences.items()},
    }
    order.folder.write_graph(graph, tensors)
    windows = _measured(_rollouts(training, filling, size) if size else _windows(training), order.seconds)
    training.trainer.stop()
    wall = sorted(window.wall / window.updates for window in windows)
    update_s = quantiles(wall, n=4, method="inclusive")[0] if len(wall) > 1 else wall[0]
    figures = {
        "update_s": update_s,
        "update_cpu_s": median(window.cpu / window.updates for window in windows),
        "version_s": _snapshot_seconds(training),
        "batch_size": algorithm.batch_size,
        "observations": len(next(iter(calibration.values()))),
        "device": str(next(algorithm.policy.parameters()).device),
        "sampling": sampling_of(config),
        "rollout": size
        and {
            "environment_steps": size,
            "updates": fmean(window.updates for window in windows),
            "transitions": fmean(window.transitions for window in windows),
        },
    }
    training.close()
    client.close()
    return figures


def _unlimited(config: RunConfig) -> RunConfig:
    """The configuration without a rate limit and without checkpoints. Training starts at once."""
    replay = config.replay.model_copy(update={"min_size": 1})
    limiter = config.rate_limiter.model_copy(update={"error_buffer": 1e15})
    checkpoint = config.checkpoint.model_copy(update={"period_s": 1e9})
    # `_snapshot_seconds` measures publications.
    publication = config.publication.model_copy(update={"period_updates": 10**9})
    return config.model_copy(
        update={"replay": replay, "rate_limiter": limiter, "checkpoint": checkpoint, "publication": publication}
    )


class _Filling:
    """Fills the buffer with the recorded segments repeatedly, as if `actors` actors had sent them."""

    def __init__(self, training: Training, segments: list[Segment], actors: int) -> None:
        self._buffer = training.replay
        self._segments = segments
        self._actors = actors
        self._inserted = 0

    def insert(self, environment_steps: int) -> int:
        """Insert at least this number of environment steps. Returns the number of transitions."""
        agents = self._buffer.spec.agent_count
        size = self._segments[0].steps * self._segments[0].environments // agents
        count, transitions = -(-environment_steps // size), 0
        for place in range(count):
            segment = self._segments[self._inserted % len(self._segments)]
            self._inserted += 1
            # Consecutive segments belong to one actor, because the queue joins them.
            source = SegmentSource.from_name(f"{_NAME}-{place * self._actors // count}", 1, self._inserted)
            self._buffer.limiter.try_reserve(size)
            self._buffer.insert(replace(segment, sequence=self._inserted, follows=True), source, size)
            transitions += segment.environment_steps(agents)
        return transitions


def _with_states(segment: Segment, size: int) -> Segment:
    """The segment with states of 0."""
    return segment.with_columns(**{state_column(size): np.zeros((segment.environments, size), np.float32)})


def _as_drawn(segment: Segment, spec: EnvironmentSpec) -> Segment:
    """A segment of uniformly random actions in an on-policy run's form: with their probabilities."""
    if spec.sizes:
        actions, logarithm = segment.actions, -math.log(spec.acting_size)
    else:
        low, high = spec.actions.bounds()
        # Uniform in [-1, 1], in units of half the range.
        actions = (np.asarray(segment.actions, np.float32) - (high / 2 + low / 2)) / (high / 2 - low / 2)
        logarithm = -math.log(2.0) * low.size
    return segment.with_columns(actions=actions, log_probabilities=np.full_like(segment.rewards, logarithm))


def _measured(windows: Iterator[_Window], seconds: float) -> list[_Window]:
    """The windows of this duration, at least one. The window before them warms up and is dropped."""
    next(windows)
    deadline = time.perf_counter() + seconds
    measured = [next(windows)]
    while time.perf_counter() < deadline:
        measured.append(next(windows))
    return measured


def _rollouts(training: Training, filling: _Filling, size: int) -> Iterator[_Window]:
    """Learn from one rollout after the other. The first one is in the queue."""
    batches, updates, transitions = training.batches, 0, 0
    # Rollouts are compared with published parameters.
    training.trainer.publish()
    while True:
        wall, cpu = time.perf_counter(), time.process_time()
        if not batches.fetch(_TAKE_S):
            raise ConflictError(f"the queue gave no rollout of {size} environment steps")
        with training.quantization_aware.applied(updates, training.replay.total_transitions):
            learned = batches.learn(0.0)
        window = _Window(learned.updates, time.perf_counter() - wall, time.process_time() - cpu, transitions)
        updates += learned.updates
        transitions = filling.insert(size)
        yield window


def _windows(training: Training) -> Iterator[_Window]:
    """Run the trainer in short intervals. Intervals without an update are left out."""
    trainer = training.trainer
    trainer.start()
    updates = trainer.pause()
    while True:
        wall, cpu = time.perf_counter(), time.process_time()
        trainer.resume()
        time.sleep(_WINDOW_S)
        # Returns when the running updates are done.
        now = trainer.pause()
        if trainer.fault is not None:
            raise trainer.fault
        window = _Window(now - updates, time.perf_counter() - wall, time.process_time() - cpu)
        updates = now
        if window.updates:
            yield window


def _snapshot_seconds(training: Training) -> float:
    """Median CPU seconds of a snapshot and its encoding."""
    seconds = []
    tensors = snapshot_parameters(training.algorithm.policy)
    for _ in range(_SNAPSHOTS):
        started = time.process_time()
        training.trainer.publish()
        for part in split_blob(safetensors.numpy.save(tensors)):
            part.SerializeToString()
        seconds.append(time.process_time() - started)
    return median(seconds)


def run() -> int:
    """Parse the flags, measure, and write the figures."""
    order = Order.parse("learner_service.profile", "Measure what an update costs the learner.")
    order.folder.write("learner", measure(order))
    return EXIT_OK
