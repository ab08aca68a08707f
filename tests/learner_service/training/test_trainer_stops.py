"""The training loop is paused, writes checkpoints and stops."""

import errno
import queue
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.spaces import ArraySpec
from actorq.errors import ConflictError, UnavailableError
from learner_service.algorithms import Losses, make_algorithm
from learner_service.algorithms.dqn import DQN
from learner_service.batch import Batch
from learner_service.replay import ReplayBuffer
from learner_service.training.trainer import Trainer
from learner_service.training.training import build_training
from tests.builders.clocks import ManualClock
from tests.learner_service.learner_parts import DEADLINE_S, SPEC, await_samples, config
from tests.learner_service.training.trainer_parts import CONFIG, CPU, MakeTrainer, Saved, fill, train


def test_without_data_the_trainer_waits_but_saves_and_stops(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
    trainer = make_trainer()
    trainer.start()
    assert trainer.save() == Path("/checkpoints/0")
    trainer.stop()
    assert (trainer.updates, trainer.fault) == (0, None)


def test_the_trainer_updates_after_resume_but_not_while_paused(make_trainer: MakeTrainer, replay: ReplayBuffer) -> None:
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


def test_a_paused_trainer_does_not_spin(make_trainer: MakeTrainer) -> None:
    trainer, others = make_trainer(), set(threading.enumerate())
    trainer.start()
    trainer.pause()
    (thread,) = set(threading.enumerate()) - others
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    before = time.clock_gettime(clock)
    threading.Event().wait(0.5)
    # CPU seconds. A thread that waits uses almost none.
    assert time.clock_gettime(clock) - before < 0.1


def save_again_and_again(trainer: Trainer) -> NoReturn:
    while True:
        trainer.save()


@pytest.mark.parametrize("prioritized", [True, False])
def test_training_that_diverges_ends_with_the_update_and_the_advice(tmp_path: Path, prioritized: bool) -> None:
    settings = {"hidden_sizes": (8,), "batch_size": 8, "learning_rate": 1e30}
    diverging = config(dqn=settings, replay={"capacity": 2_000, "min_size": 64, "prioritized": prioritized})
    with QuantizerClient("127.0.0.1:1") as client:
        training, _ = build_training(
            diverging, SPEC, tmp_path, wire.Opening("run", "int8"), client, None, lambda _: Path(), lambda _: None
        )
        assert isinstance(training.replay, ReplayBuffer)
        fill(training.replay, range(1, 9))
        training.trainer.start()
        with pytest.raises(ConflictError, match="ended"):
            save_again_and_again(training.trainer)
        training.close()
    assert re.search(r"diverged.*update \d+ .*learning rate", str(training.trainer.fault))


class Gated(DQN):
    """Its updates wait for permission."""

    def __init__(self) -> None:
        super().__init__(CONFIG, SPEC, CPU)
        self.began, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def update(self, batch: Batch, weights: NDArray[np.float32]) -> Losses:
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
        # It is requested and not yet written.
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
    train(trainer, replay, samples=64)
    assert trainer.pause() == 0
    assert trainer.fault is not None


def await_pause(trainer: Trainer) -> None:
    """Wait until a pause was requested. Only the property shows it."""
    while not trainer.paused:
        threading.Event().wait(0.001)


def test_a_save_request_during_a_save_gets_its_own_checkpoint(make_trainer: MakeTrainer) -> None:
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
    """Wait until the thread with this name waits for a checkpoint. Only its stack shows it."""
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
    clock.now = 128.0  # 9 s after the last one, which was requested
    trainer.stop()
    assert saved.updates.empty()


def test_after_the_end_a_checkpoint_is_refused(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    trainer.start()
    trainer.stop()
    trainer.stop()
    with pytest.raises(ConflictError, match="ended"):
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


def test_a_save_request_during_a_stop_is_done_or_refused(make_trainer: MakeTrainer) -> None:
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
    with pytest.raises(ConflictError, match="ended"):
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
        with pytest.raises(UnavailableError, match=r"checkpoint.*No space left on device"):
            trainer.save()
    full[0] = False
    assert trainer.save() == Path("/checkpoints/0")
    assert trainer.fault is None
    failed, mended = caplog.messages
    assert re.search("checkpoint.*No space left on device", failed)
    assert "checkpoint" in mended


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
