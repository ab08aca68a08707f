"""Measures the time of an update and of a policy snapshot, for `actorq profile`."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import safetensors.numpy
import torch

from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.policy import CALIBRATION_PREFIX, OBSERVATIONS_INPUT
from actorq.domain.trajectory import Segment
from actorq.errors import UserError
from actorq.process import EXIT_OK, leave, main
from actorq.profile.exchange import Order, with_sequence
from actorq.transport.payload.blobs import split_blob
from learner_service.algorithms import chosen_algorithm
from learner_service.algorithms.base import is_on_policy
from learner_service.policy.policy_graph import calibration_batch, snapshot_parameters
from learner_service.replay import SegmentSource
from learner_service.training.trainer import is_stochastic
from learner_service.training.training import Training, build_training

_NAME = "profile"
# Transitions in the replay.
_STORED = 20_000
_WINDOW_S = 0.25
_SNAPSHOTS = 20
# The quantizer's address. Nothing connects to it.
_NOWHERE = "127.0.0.1:1"


@dataclass(frozen=True)
class _Window:
    """One measured interval: updates, seconds of wall-clock time, and CPU seconds of all threads."""

    updates: int
    wall: float
    cpu: float


def measure(order: Order) -> dict[str, Any]:
    """Seconds of an update with its sampling, and CPU seconds of a snapshot with its message.

    Raises UserError for an on-policy algorithm.
    """
    if is_on_policy(chosen_algorithm(order.config)):
        raise UserError(
            f"actorq profile: expected an algorithm with a replay, got {order.config.algorithm}, which is on-policy: "
            "its updates wait for new rollouts, so they cannot be measured alone"
        )
    segments = order.folder.segments()
    config = _unlimited(order.config)
    torch.set_num_threads(config.learner.torch_threads)
    client = QuantizerClient(_NOWHERE)
    training, graph = build_training(
        *(config, order.folder.spec(), order.folder.path / "learner", _NAME, client, None),
        lambda updates: order.folder.path,
        lambda receipt: None,
    )
    _fill(training, segments)
    calibration = calibration_batch(
        training.replay.newest_observations(config.publication.calibration_size),
        training.spec,
        is_stochastic(training.algorithm),
        config.seed,
    )
    tensors = {
        **snapshot_parameters(training.algorithm.policy),
        **{CALIBRATION_PREFIX + name: batch for name, batch in calibration.items()},
    }
    order.folder.write_graph(graph, tensors)
    training.trainer.start()
    windows = list(_windows(training, order.seconds))
    training.trainer.stop()
    wall = sorted(window.wall / window.updates for window in windows)
    update_s = quantiles(wall, n=4, method="inclusive")[0] if len(wall) > 1 else wall[0]
    update_cpu_s = median(window.cpu / window.updates for window in windows)
    device = next(training.algorithm.policy.parameters()).device
    figures = {
        "update_s": update_s,
        "update_cpu_s": update_cpu_s,
        "version_s": _snapshot_seconds(training),
        "batch_size": training.algorithm.batch_size,
        "observations": len(calibration[OBSERVATIONS_INPUT]),
        "device": str(device),
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


def _fill(training: Training, segments: list[Segment]) -> None:
    stored, sequence = 0, 0
    wanted = min(_STORED, training.replay.capacity // 2)
    while stored < wanted:
        segment = segments[sequence % len(segments)]
        sequence += 1
        reserved = segment.steps * segment.environments
        training.replay.limiter.try_reserve(reserved)
        training.replay.insert(with_sequence(segment, sequence), SegmentSource.from_name(_NAME, 1, sequence), reserved)
        stored += segment.transitions


def _windows(training: Training, seconds: float) -> Iterator[_Window]:
    """Run the trainer in short intervals until the seconds are over. The first interval warms up and is dropped."""
    trainer = training.trainer
    updates, told, deadline = trainer.pause(), -1, 0.0
    while told < 1 or time.perf_counter() < deadline:
        wall, cpu = time.perf_counter(), time.process_time()
        trainer.resume()
        time.sleep(_WINDOW_S)
        # Returns when the updates under way are done.
        now = trainer.pause()
        if trainer.fault is not None:
            raise trainer.fault
        window = _Window(now - updates, time.perf_counter() - wall, time.process_time() - cpu)
        updates = now
        if not window.updates:
            continue
        told += 1
        if told:
            yield window
        else:
            deadline = time.perf_counter() + seconds


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
    order = Order.parse("python -m learner_service.profile", "Measure what an update costs the learner.")
    order.folder.write("learner", measure(order))
    return EXIT_OK


if __name__ == "__main__":
    leave(main(run))
