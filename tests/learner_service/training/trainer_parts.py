"""Settings, checkpoints and data for the tests of the training loop."""

import queue
from collections.abc import Callable
from pathlib import Path

import torch

from actorq.config.run_config import RunConfig
from learner_service.replay import ReplayBuffer, SegmentSource
from learner_service.training.trainer import Trainer
from tests.learner_service.learner_parts import await_samples, segment

CONFIG = RunConfig.model_validate(
    {
        "dqn": {"hidden_sizes": (8,), "batch_size": 8, "n_step": 3},
        "publication": {"period_updates": 16, "calibration_size": 4},
        "checkpoint": {"period_s": 10.0},
    }
)
CPU = torch.device("cpu")
# The limiter allows 64 * 4 - 8 * 4 + 1000 samples of 64 transitions.
SAMPLES_OF_64_TRANSITIONS = 1224
# Calls of 8 updates on 8 transitions each use 1216 of them.
UPDATES_WITH_64_TRANSITIONS = SAMPLES_OF_64_TRANSITIONS // 64 * 8


class Saved:
    """Takes checkpoints in the trainer's thread."""

    def __init__(self) -> None:
        self.updates: queue.Queue[int] = queue.Queue()

    def __call__(self, updates: int) -> Path:
        self.updates.put(updates)
        return Path(f"/checkpoints/{updates}")


MakeTrainer = Callable[..., Trainer]


def fill(replay: ReplayBuffer, sequences: range) -> None:
    for sequence in sequences:
        assert replay.limiter.try_reserve(8)
        replay.insert(segment(sequence), SegmentSource.from_name("actor", 1, sequence), 8)


def train(trainer: Trainer, replay: ReplayBuffer, samples: int = UPDATES_WITH_64_TRANSITIONS * 8) -> None:
    """Start a trainer with 64 transitions, and wait until it has drawn so many samples."""
    fill(replay, range(1, 9))
    trainer.start()
    await_samples(replay.limiter, samples)
