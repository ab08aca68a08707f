"""The training loop on its own thread, with a real replay, a real algorithm and a publisher without a quantizer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actorq.domain.policy import FidelityReport, LayerReport, PolicyDescriptor
from actorq.domain.spaces import ArraySpec
from actorq.errors import ConflictError
from learner_service.algorithms import Losses, make_algorithm
from learner_service.algorithms.dqn import DQN
from learner_service.batch import Batch
from learner_service.policy.policy_graph import export_policy_graph
from learner_service.quantization.fake_quantization import FakeQuantization
from learner_service.quantization.quantization_aware import QuantizationAware
from learner_service.replay import (
    ObservationMoments,
    PrioritizedSampler,
    RateLimiter,
    ReplayBuffer,
    ReplayStore,
    Returns,
)
from learner_service.replay.storage.columns import VALID
from learner_service.training.publisher import Publisher, Snapshot
from tests.builders.clocks import ManualClock
from tests.learner_service.learner_parts import SPEC, await_samples
from tests.learner_service.training.trainer_parts import (
    CONFIG,
    CPU,
    SAMPLES_OF_64_TRANSITIONS,
    UPDATES_WITH_64_TRANSITIONS,
    MakeTrainer,
    Saved,
    fill,
    train,
)


def test_training_follows_the_rate_limiter(
    make_trainer: MakeTrainer, replay: ReplayBuffer, publisher: Publisher
) -> None:
    saved = Saved()
    trainer = make_trainer(saved)
    train(trainer, replay)
    assert saved.updates.empty()
    assert trainer.save() == Path(f"/checkpoints/{UPDATES_WITH_64_TRANSITIONS}")
    assert trainer.updates == UPDATES_WITH_64_TRANSITIONS
    assert trainer.loss > 0
    # One version before the first update, and one for every 16 updates.
    assert publisher.version == 1 + UPDATES_WITH_64_TRANSITIONS // 16


@pytest.mark.parametrize("period", [1, 3])
def test_no_policy_that_is_due_is_skipped(
    make_trainer: MakeTrainer,
    replay: ReplayBuffer,
    publisher: Publisher,
    monkeypatch: pytest.MonkeyPatch,
    period: int,
) -> None:
    offered: list[Snapshot] = []
    monkeypatch.setattr(publisher, "offer", offered.append)
    often = CONFIG.publication.model_copy(update={"period_updates": period})
    trainer = make_trainer(config=CONFIG.model_copy(update={"publication": often}))
    fill(replay, range(1, 9))
    trainer.start()
    # The last update that the limiter allows. With a smaller number the trainer would continue while it saves.
    updates = SAMPLES_OF_64_TRANSITIONS // (8 * period) * period
    await_samples(replay.limiter, updates * 8)
    trainer.save()
    assert [snapshot.learner_step for snapshot in offered] == list(range(0, updates + 1, period))


class Constant(DQN):
    """Its loss is always the same."""

    def update(self, batch: Batch, weights: NDArray[np.float32]) -> Losses:
        return Losses(7.0, np.ones(len(weights), np.float32))


def test_the_mean_loss_begins_with_the_first(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    trainer = make_trainer(algorithm=Constant(CONFIG, SPEC, CPU), updates=1000)
    train(trainer, replay)
    trainer.save()
    assert trainer.loss == pytest.approx(7.0)


def test_after_its_share_of_the_steps_updates_use_the_quantized_policy(
    make_trainer: MakeTrainer, replay: ReplayBuffer
) -> None:
    algorithm = make_algorithm(CONFIG, SPEC)
    fidelity = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, 1.0, (LayerReport("torso.0", "int8 per tensor"),))
    aware = QuantizationAware(
        FakeQuantization(algorithm.policy, export_policy_graph(algorithm.policy, SPEC)), starts_at=65
    )
    aware.follow(PolicyDescriptor("run", 1, 0, "int8", b"", 1, 1, 0.0, fidelity))
    trainer = make_trainer(algorithm=algorithm, aware=aware)
    train(trainer, replay)
    trainer.save()
    assert aware.since is None
    fill(replay, range(9, 11))
    await_samples(replay.limiter, UPDATES_WITH_64_TRANSITIONS * 8 + 64)
    trainer.save()
    assert aware.since == UPDATES_WITH_64_TRANSITIONS


def test_the_first_policy_of_a_resumed_run_has_the_newest_observations(
    make_trainer: MakeTrainer, replay: ReplayBuffer, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[Snapshot] = []
    monkeypatch.setattr(publisher, "offer", offered.append)
    trainer = make_trainer()
    trainer.publish()
    assert not offered[0].calibration["observations"].any()
    assert offered[0].calibration["observations"].shape == (1, 4)
    fill(replay, range(1, 3))
    trainer.publish()
    np.testing.assert_array_equal(offered[1].calibration["observations"], replay.newest_observations(4))


def test_a_published_batch_is_not_written_to_by_later_draws(
    make_trainer: MakeTrainer, replay: ReplayBuffer, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[tuple[Snapshot, NDArray[Any]]] = []
    offer = publisher.offer

    def record(snapshot: Snapshot) -> int:
        offered.append((snapshot, snapshot.calibration["observations"].copy()))
        return offer(snapshot)

    monkeypatch.setattr(publisher, "offer", record)
    trainer = make_trainer()
    train(trainer, replay)
    trainer.save()
    assert len(offered) == 1 + UPDATES_WITH_64_TRANSITIONS // 16
    for snapshot, before in offered:
        np.testing.assert_array_equal(snapshot.calibration["observations"], before)


def test_a_resumed_run_counts_from_its_checkpoint(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    trainer = make_trainer(updates=1000)
    train(trainer, replay, samples=1216)
    assert trainer.save().name == str(1000 + UPDATES_WITH_64_TRANSITIONS)


def test_a_failing_update_is_a_fault(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    other = replace(SPEC, observations=ArraySpec((9,), "float32"))
    trainer = make_trainer(algorithm=make_algorithm(CONFIG, other))
    train(trainer, replay, samples=64)
    # It failed in the update that these samples were for, so it never comes to the checkpoint.
    with pytest.raises(ConflictError, match="ended"):
        trainer.save()
    assert "shapes cannot be multiplied" in str(trainer.fault)
    assert trainer.updates == 0


class Scripted(DQN):
    """Gives all transitions the same priority, and records the normalization."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.normalized: list[NDArray[Any]] = []

    def update(self, batch: Batch, weights: NDArray[np.float32]) -> Losses:
        return replace(super().update(batch, weights), priorities=np.full(len(weights), 7.0, np.float32))

    def normalize(self, mean: NDArray[Any], deviation: NDArray[Any]) -> None:
        self.normalized.append(mean.copy())


def counting_replay(directory: Path) -> tuple[ReplayStore, ReplayBuffer]:
    """A replay with priorities that counts observations."""
    store = ReplayStore.open(directory, SPEC, 1000)
    sampler = PrioritizedSampler(store, np.random.default_rng(0), 1.0)
    limiter = RateLimiter(4.0, 8, 1000.0, ManualClock())
    return store, ReplayBuffer(store, sampler, limiter, Returns(3, 0.9), ObservationMoments(SPEC.observations.shape))


def test_new_priorities_are_written_back(tmp_path: Path, make_trainer: MakeTrainer) -> None:
    store, buffer = counting_replay(tmp_path / "counting")
    trainer = make_trainer(algorithm=Scripted(CONFIG, SPEC, CPU), replay=buffer)
    train(trainer, buffer)
    trainer.stop()
    priorities = store.priorities[np.flatnonzero(store.flags & VALID)].copy()
    buffer.close()
    # Nearly all of 64 transitions are among 1216 samples, and 1.0 is what a new one has.
    assert (priorities > 1.0).mean() > 0.9


def test_the_normalizer_follows_new_observations(tmp_path: Path, make_trainer: MakeTrainer) -> None:
    _, buffer = counting_replay(tmp_path / "counting")
    algorithm = Scripted(CONFIG.model_copy(update={"normalize_observations": True}), SPEC, CPU)
    trainer = make_trainer(algorithm=algorithm, replay=buffer)
    train(trainer, buffer)
    fill(buffer, range(9, 17))
    await_samples(buffer.limiter, UPDATES_WITH_64_TRANSITIONS * 8 + 256)
    trainer.stop()
    moments = buffer.observation_moments()
    buffer.close()
    assert moments is not None
    # At first, and with each policy that goes out.
    assert len(algorithm.normalized) == 1 + trainer.updates // 16
    np.testing.assert_array_equal(algorithm.normalized[-1], moments[0])
    assert not np.array_equal(algorithm.normalized[0], algorithm.normalized[-1])


def test_made_updates_counts_only_updates_of_this_process(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    trainer = make_trainer(updates=1000)
    assert not trainer.made_updates
    train(trainer, replay, samples=64)
    trainer.stop()
    assert trainer.made_updates
