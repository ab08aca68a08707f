"""The training loop on its own thread, with a real replay, a real algorithm and a publisher that nobody answers."""

import errno
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.policy import FidelityReport, LayerReport, PolicyDescriptor
from actorq.domain.trajectory import ArraySpec
from actorq.errors import ConflictError, UnavailableError
from learner_service.algorithms import Losses, make_algorithm
from learner_service.algorithms.dqn import DQN
from learner_service.policy.policy_graph import export_policy_graph
from learner_service.quantization.fake_quantization import FakeQuantization
from learner_service.quantization.quantization_aware import QuantizationAware
from learner_service.replay import (
    NStepBatch,
    ObservationMoments,
    PrioritizedSampler,
    RateLimiter,
    ReplayBuffer,
    ReplayStore,
    Returns,
    SegmentSource,
)
from learner_service.replay.storage.columns import VALID
from learner_service.training.batches import SampledBatches
from learner_service.training.publisher import Publisher, Snapshot
from learner_service.training.trainer import Trainer
from tests.learner_service.learner_parts import (
    DEADLINE_S,
    SPEC,
    ManualClock,
    await_samples,
    never_quantization_aware,
    open_replay,
    segment,
)

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
# Calls of 8 updates on 8 transitions each take 1216 of them.
UPDATES_WITH_64_TRANSITIONS = SAMPLES_OF_64_TRANSITIONS // 64 * 8


class Saved:
    """Takes checkpoints in the trainer's thread."""

    def __init__(self) -> None:
        self.updates: queue.Queue[int] = queue.Queue()

    def __call__(self, updates: int) -> Path:
        self.updates.put(updates)
        return Path(f"/checkpoints/{updates}")


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[ReplayBuffer]:
    buffer = open_replay(tmp_path)
    yield buffer
    buffer.close()


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with QuantizerClient("127.0.0.1:1") as client:
        yield Publisher(client, "run", "int8", on_receipt=lambda _: None)


MakeTrainer = Callable[..., Trainer]


@pytest.fixture
def make_trainer(replay: ReplayBuffer, publisher: Publisher) -> Iterator[MakeTrainer]:
    made: list[Trainer] = []

    def make(save: Callable[[int], Path] | None = None, **options: Any) -> Trainer:
        algorithm = options.pop("algorithm", None) or make_algorithm(CONFIG, SPEC)
        config = options.pop("config", CONFIG)
        options = {"clock": ManualClock(), **options}
        aware = options.pop("aware", None) or never_quantization_aware()
        batches = SampledBatches(config, algorithm, replay, CPU)
        made.append(Trainer(config, algorithm, batches, publisher, aware, save or Saved(), **options))
        return made[-1]

    yield make
    for trainer in made:
        trainer.stop()


def fill(replay: ReplayBuffer, sequences: range) -> None:
    for sequence in sequences:
        assert replay.limiter.try_reserve(8)
        replay.insert(segment(sequence), SegmentSource.from_name("actor", 1, sequence), 8)


def test_it_trains_as_far_as_the_rate_limiter_lets_it(
    make_trainer: MakeTrainer, replay: ReplayBuffer, publisher: Publisher
) -> None:
    saved = Saved()
    trainer = make_trainer(saved)
    fill(replay, range(1, 9))
    trainer.start()
    await_samples(replay.limiter, UPDATES_WITH_64_TRANSITIONS * 8)
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
    # The last update that the limiter allows. A smaller number would let the trainer go on while it saves.
    updates = SAMPLES_OF_64_TRANSITIONS // (8 * period) * period
    await_samples(replay.limiter, updates * 8)
    trainer.save()
    assert [snapshot.learner_step for snapshot in offered] == list(range(0, updates + 1, period))


class Constant(DQN):
    """Its loss is always the same."""

    def update(self, batch: NStepBatch, weights: NDArray[np.float32]) -> Losses:
        return Losses(7.0, np.ones(len(weights), np.float32))


def test_the_mean_loss_begins_with_the_first(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    trainer = make_trainer(algorithm=Constant(CONFIG, SPEC, CPU), updates=1000)
    fill(replay, range(1, 9))
    trainer.start()
    await_samples(replay.limiter, UPDATES_WITH_64_TRANSITIONS * 8)
    trainer.save()
    assert trainer.loss == pytest.approx(7.0)


def test_updates_from_its_share_of_the_steps_on_run_the_quantized_policy(
    make_trainer: MakeTrainer, replay: ReplayBuffer
) -> None:
    algorithm = make_algorithm(CONFIG, SPEC)
    fidelity = FidelityReport(1, 0.0, 0.0, 0.0, 0.0, 1.0, (LayerReport("torso.0", "int8 per tensor"),))
    aware = QuantizationAware(
        FakeQuantization(algorithm.policy, export_policy_graph(algorithm.policy, SPEC)), starts_at=65
    )
    aware.follow(PolicyDescriptor("run", 1, 0, "int8", b"", 1, 1, 0.0, fidelity))
    trainer = make_trainer(algorithm=algorithm, aware=aware)
    fill(replay, range(1, 9))
    trainer.start()
    await_samples(replay.limiter, UPDATES_WITH_64_TRANSITIONS * 8)
    trainer.save()
    assert aware.since is None
    fill(replay, range(9, 11))
    await_samples(replay.limiter, UPDATES_WITH_64_TRANSITIONS * 8 + 64)
    trainer.save()
    assert aware.since == UPDATES_WITH_64_TRANSITIONS


def test_the_first_policy_of_a_resumed_run_goes_out_with_the_newest_observations(
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

    def note(snapshot: Snapshot) -> int:
        offered.append((snapshot, snapshot.calibration["observations"].copy()))
        return offer(snapshot)

    monkeypatch.setattr(publisher, "offer", note)
    trainer = make_trainer()
    fill(replay, range(1, 9))
    trainer.start()
    await_samples(replay.limiter, UPDATES_WITH_64_TRANSITIONS * 8)
    trainer.save()
    assert len(offered) == 1 + UPDATES_WITH_64_TRANSITIONS // 16
    for snapshot, before in offered:
        np.testing.assert_array_equal(snapshot.calibration["observations"], before)


def test_without_data_it_waits_but_saves_and_stops(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    trainer = make_trainer()
    trainer.start()
    assert trainer.save() == Path("/checkpoints/0")
    trainer.stop()
    assert (trainer.updates, trainer.fault) == (0, None)


def test_paused_it_does_not_update_and_resumed_it_does(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    trainer = make_trainer()
    trainer.pause()
    fill(replay, range(1, 9))
    trainer.start()
    assert trainer.paused
    assert trainer.save() == trainer.save() == Path("/checkpoints/0")
    trainer.resume()
    assert not trainer.paused
    await_samples(replay.limiter, 64)
    updates = trainer.pause()
    fill(replay, range(9, 13))
    assert trainer.save() == trainer.save() == Path(f"/checkpoints/{updates}")
    assert trainer.updates == updates > 0


class Gated(DQN):
    """Its updates wait until they may go on."""

    def __init__(self) -> None:
        super().__init__(CONFIG, SPEC, CPU)
        self.began, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def update(self, batch: NStepBatch, weights: NDArray[np.float32]) -> Losses:
        self.began.release()
        assert self.may_end.acquire(timeout=DEADLINE_S)
        return super().update(batch, weights)


def test_a_pause_waits_for_the_updates_that_are_being_made(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    algorithm = Gated()
    trainer = make_trainer(algorithm=algorithm)
    fill(replay, range(1, 9))
    trainer.start()
    assert algorithm.began.acquire(timeout=DEADLINE_S)
    with ThreadPoolExecutor(1) as pool:
        paused = pool.submit(trainer.pause)
        await_pause(trainer)
        # It is asked for and not yet there.
        assert not paused.done()
        algorithm.may_end.release()
        assert paused.result(DEADLINE_S) == trainer.updates == 8
    assert trainer.save() == Path("/checkpoints/8")
    assert not algorithm.began.acquire(blocking=False)
    trainer.resume()
    assert algorithm.began.acquire(timeout=DEADLINE_S)
    algorithm.may_end.release(1000)


def test_a_pause_that_is_ended_before_it_began_does_not_hang(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    algorithm = Gated()
    trainer = make_trainer(algorithm=algorithm)
    fill(replay, range(1, 9))
    trainer.start()
    assert algorithm.began.acquire(timeout=DEADLINE_S)
    with ThreadPoolExecutor(1) as pool:
        paused = pool.submit(trainer.pause)
        await_pause(trainer)
        trainer.resume()
        assert paused.result(DEADLINE_S) == 0
    algorithm.may_end.release(1000)


def test_a_pause_of_training_that_has_failed_returns(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    other = replace(SPEC, observations=ArraySpec((9,), "float32"))
    trainer = make_trainer(algorithm=make_algorithm(CONFIG, other))
    fill(replay, range(1, 9))
    trainer.start()
    await_samples(replay.limiter, 64)
    assert trainer.pause() == 0
    assert trainer.fault is not None


def await_pause(trainer: Trainer) -> None:
    """Wait until a pause was asked for; nothing tells of it but the property."""
    while not trainer.paused:
        threading.Event().wait(0.001)


def test_a_run_that_goes_on_counts_from_its_checkpoint(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    trainer = make_trainer(updates=1000)
    fill(replay, range(1, 9))
    trainer.start()
    await_samples(replay.limiter, 1216)
    assert trainer.save().name == str(1000 + UPDATES_WITH_64_TRANSITIONS)


def test_a_checkpoint_that_is_asked_for_while_another_is_written_is_one_of_its_own(make_trainer: MakeTrainer) -> None:
    clock, names, begun, go_on = ManualClock(100.0), iter("ab"), threading.Event(), threading.Event()

    def save(updates: int) -> Path:
        begun.set()
        assert go_on.wait(DEADLINE_S)
        return Path(next(names))

    trainer = make_trainer(save, clock=clock)
    trainer.start()
    clock.now = 110.0
    assert begun.wait(DEADLINE_S)
    with ThreadPoolExecutor(1, thread_name_prefix="asker") as threads:
        asked = threads.submit(trainer.save)
        await_asker()
        go_on.set()
        assert asked.result(DEADLINE_S) == Path("b")


def await_asker() -> None:
    """Wait until the thread of that name waits for a checkpoint; nothing tells of it but its stack."""
    (asker,) = (thread for thread in threading.enumerate() if thread.name.startswith("asker"))
    assert asker.ident is not None
    while True:
        frame = sys._current_frames()[asker.ident]
        if frame.f_code.co_name == "wait" and frame.f_back and frame.f_back.f_code.co_name == "wait_for":
            return
        threading.Event().wait(0.001)


def test_checkpoints_are_due_by_the_clock(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    clock, saved = ManualClock(100.0), Saved()
    trainer = make_trainer(saved, clock=clock)
    trainer.start()
    clock.now = 110.0
    assert saved.updates.get(timeout=DEADLINE_S) == 0
    clock.now = 119.0
    trainer.save()
    assert saved.updates.get(timeout=DEADLINE_S) == 0
    clock.now = 128.0  # 9 s after the last one, which was asked for
    trainer.stop()
    assert saved.updates.empty()


def test_after_the_end_a_checkpoint_is_refused(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    trainer.start()
    trainer.stop()
    trainer.stop()
    with pytest.raises(ConflictError, match="training has ended"):
        trainer.save()


class Turnstile:
    """Lets the trainer's thread write a checkpoint when the test says so."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.open = threading.Event()

    def __call__(self, updates: int) -> Path:
        self.arrived.set()
        assert self.open.wait(DEADLINE_S)
        return Path(f"/checkpoints/{updates}")


def test_a_checkpoint_that_is_asked_for_while_it_stops_comes_or_is_refused(make_trainer: MakeTrainer) -> None:
    turnstile = Turnstile()
    trainer = make_trainer(turnstile)
    trainer.start()
    outcomes: queue.Queue[Path | ConflictError] = queue.Queue()

    def save() -> None:
        try:
            outcomes.put(trainer.save())
        except ConflictError as error:
            outcomes.put(error)

    savers = [threading.Thread(target=save) for _ in range(4)]
    for saver in savers:
        saver.start()
    assert turnstile.arrived.wait(DEADLINE_S)
    stopping = threading.Thread(target=trainer.stop)
    stopping.start()
    turnstile.open.set()
    for _ in savers:
        outcome = outcomes.get(timeout=DEADLINE_S)
        assert isinstance(outcome, ConflictError) or outcome == Path("/checkpoints/0")
    for thread in (stopping, *savers):
        thread.join(DEADLINE_S)
    with pytest.raises(ConflictError, match="training has ended"):
        trainer.save()


def test_stopping_while_paused_does_not_hang(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    trainer.start()
    trainer.pause()
    trainer.stop()
    assert trainer.fault is None


def test_a_full_disk_refuses_checkpoints_until_there_is_room(
    make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    full = [True]

    def save(updates: int) -> Path:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return Path("/checkpoints/0")

    trainer = make_trainer(save)
    trainer.start()
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"cannot be written \(No space left on device\): make room"):
            trainer.save()
    full[0] = False
    assert trainer.save() == Path("/checkpoints/0")
    assert trainer.fault is None
    assert [record.message for record in caplog.records] == [
        "the checkpoint cannot be written (No space left on device); trying again",
        "the checkpoint is written again",
    ]


def test_a_checkpoint_that_failed_is_tried_again_before_the_next_one_is_due(make_trainer: MakeTrainer) -> None:
    clock, attempts = ManualClock(100.0), queue.Queue[float]()

    def save(updates: int) -> Path:
        attempts.put(clock.now)
        if clock.now < 110.0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return Path("/checkpoints/0")

    seldom = CONFIG.checkpoint.model_copy(update={"period_s": 60.0})
    trainer = make_trainer(save, clock=clock, config=CONFIG.model_copy(update={"checkpoint": seldom}))
    trainer.start()
    with pytest.raises(UnavailableError):
        trainer.save()
    clock.now = 110.0
    assert [attempts.get(timeout=DEADLINE_S) for _ in range(2)] == [100.0, 110.0]


def test_a_failing_update_is_a_fault(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    other = replace(SPEC, observations=ArraySpec((9,), "float32"))
    trainer = make_trainer(algorithm=make_algorithm(CONFIG, other))
    fill(replay, range(1, 9))
    trainer.start()
    await_samples(replay.limiter, 64)
    # It failed in the update that these samples were for, so it never comes to the checkpoint.
    with pytest.raises(ConflictError, match="training has ended"):
        trainer.save()
    assert "shapes cannot be multiplied" in str(trainer.fault)
    assert trainer.updates == 0


class Scripted(DQN):
    """Gives the same priority to all, and notes what it is normalized with."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.normalized: list[NDArray[Any]] = []

    def update(self, batch: NStepBatch, weights: NDArray[np.float32]) -> Losses:
        return replace(super().update(batch, weights), priorities=np.full(len(weights), 7.0, np.float32))

    def normalize(self, mean: NDArray[Any], deviation: NDArray[Any]) -> None:
        self.normalized.append(mean.copy())


def counting_replay(directory: Path) -> tuple[ReplayStore, ReplayBuffer]:
    """A replay with priorities that counts observations."""
    store = ReplayStore.open(directory, SPEC, 1000)
    sampler = PrioritizedSampler(store, np.random.default_rng(0), 1.0)
    limiter = RateLimiter(4.0, 8, 1000.0, ManualClock())
    return store, ReplayBuffer(store, sampler, limiter, Returns(3, 0.9), ObservationMoments(SPEC.observations.shape))


def test_new_priorities_are_written_back(tmp_path: Path, publisher: Publisher) -> None:
    store, buffer = counting_replay(tmp_path)
    algorithm = Scripted(CONFIG, SPEC, CPU)
    batches = SampledBatches(CONFIG, algorithm, buffer, CPU)
    trainer = Trainer(CONFIG, algorithm, batches, publisher, never_quantization_aware(), Saved())
    fill(buffer, range(1, 9))
    trainer.start()
    await_samples(buffer.limiter, UPDATES_WITH_64_TRANSITIONS * 8)
    trainer.stop()
    priorities = store.priorities[np.flatnonzero(store.flags & VALID)].copy()
    buffer.close()
    # Nearly all of 64 transitions are among 1216 samples, and 1.0 is what a new one has.
    assert (priorities > 1.0).mean() > 0.9


def test_the_normalizer_goes_on_with_the_observations_that_come(tmp_path: Path, publisher: Publisher) -> None:
    _, buffer = counting_replay(tmp_path)
    algorithm = Scripted(CONFIG.model_copy(update={"normalize_observations": True}), SPEC, CPU)
    batches = SampledBatches(CONFIG, algorithm, buffer, CPU)
    trainer = Trainer(CONFIG, algorithm, batches, publisher, never_quantization_aware(), Saved())
    fill(buffer, range(1, 9))
    trainer.start()
    await_samples(buffer.limiter, UPDATES_WITH_64_TRANSITIONS * 8)
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


def test_only_updates_of_its_own_are_made_by_a_process(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    trainer = make_trainer(updates=1000)
    assert not trainer.made_updates
    fill(replay, range(1, 9))
    trainer.start()
    await_samples(replay.limiter, 64)
    trainer.stop()
    assert trainer.made_updates
