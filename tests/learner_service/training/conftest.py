"""A real replay, a publisher without a quantizer, and trainers that are stopped at the end."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actorq import wire
from actorq.client import QuantizerClient
from learner_service.algorithms import make_algorithm
from learner_service.replay import ReplayBuffer
from learner_service.training.batches import SampledBatches
from learner_service.training.publisher import Publisher
from learner_service.training.trainer import Trainer
from tests.builders.clocks import ManualClock
from tests.learner_service.learner_parts import SPEC, never_quantization_aware, open_replay
from tests.learner_service.training.trainer_parts import CONFIG, CPU, MakeTrainer, Saved


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[ReplayBuffer]:
    buffer = open_replay(tmp_path)
    yield buffer
    buffer.close()


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with QuantizerClient("127.0.0.1:1") as client:
        yield Publisher(client, wire.Opening("run", "int8"), on_receipt=lambda _: None)


@pytest.fixture
def make_trainer(replay: ReplayBuffer, publisher: Publisher) -> Iterator[MakeTrainer]:
    made: list[Trainer] = []

    def make(save: Callable[[int], Path] | None = None, **options: Any) -> Trainer:
        algorithm = options.pop("algorithm", None) or make_algorithm(CONFIG, SPEC)
        config = options.pop("config", CONFIG)
        aware = options.pop("aware", None) or never_quantization_aware()
        batches = SampledBatches(config, algorithm, options.pop("replay", replay), CPU)
        options = {"clock": ManualClock(), **options}
        made.append(Trainer(config, algorithm, batches, publisher, aware, save or Saved(), **options))
        return made[-1]

    yield make
    for trainer in made:
        trainer.stop()
