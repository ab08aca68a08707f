"""The training loop: wait for data, sample, update, publish, save. One thread owns the algorithm."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.config import RunConfig
from actorq.errors import ConflictError
from learner_service.algorithms import Algorithm
from learner_service.policy_graph import snapshot_parameters
from learner_service.publisher import Publisher, Snapshot
from learner_service.quantization_aware import QuantizationAware
from learner_service.replay import ReplayBuffer

_log = logging.getLogger(__name__)

# Updates per call of the algorithm: sampling many minibatches at once spreads the cost of the sum tree.
_UPDATES_PER_SAMPLE = 8
# How long the loop waits for data before it looks again whether it should pause, save or stop.
_WAIT_S = 0.1


@dataclass
class Requests:
    """What others want of the trainer; read between two updates."""

    paused: bool = False
    stop: bool = False
    save: bool = False


class Trainer:
    """Runs in its own thread from `start` to `stop`; the control methods may be called from any thread.

    quantization_aware: decides which updates run the policy as its actors run it.
    save: writes a checkpoint of the state after so many updates and returns its folder; called on the trainer's thread.
    """

    def __init__(
        self,
        config: RunConfig,
        algorithm: Algorithm,
        replay: ReplayBuffer,
        publisher: Publisher,
        quantization_aware: QuantizationAware,
        save: Callable[[int], Path],
        updates: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._algorithm = algorithm
        self._replay = replay
        self._publisher = publisher
        self._quantization_aware = quantization_aware
        self._save = save
        self._clock = clock
        self._requests = Requests()
        self._changed = threading.Condition()
        self._saved_at = clock()
        self._saved_path: Path | None = None
        self._recent: NDArray[Any] | None = None
        self._fault: BaseException | None = None
        self._ended = False
        self.updates = updates
        self.loss = 0.0
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    def start(self) -> None:
        """Publish the current policy, so that actors can act, and begin to train."""
        self.publish()
        self._thread.start()

    def pause(self) -> None:
        """Stop updating after the current updates."""
        self._request(paused=True)

    def resume(self) -> None:
        """Go on updating."""
        self._request(paused=False)

    def save(self) -> Path:
        """Write a checkpoint between two updates and return its folder."""
        with self._changed:
            self._saved_path = None
            self._requests.save = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._saved_path is not None or self._ended)
            if self._saved_path is None:
                raise ConflictError("training has ended: its last checkpoint is on disk or about to be")
            return self._saved_path

    def stop(self) -> None:
        """End the loop after the current updates and wait for it; the caller saves and publishes last."""
        self._request(stop=True)
        if self._thread.is_alive():
            self._thread.join()

    @property
    def paused(self) -> bool:
        """Whether `pause` was called."""
        return self._requests.paused

    @property
    def fault(self) -> BaseException | None:
        """What ended the loop, if it did not end by `stop`."""
        return self._fault

    def publish(self) -> int:
        """Offer the current policy as the newest version; returns its number."""
        calibration = self._calibration()
        self._quantization_aware.published(calibration)
        return self._publisher.offer(
            Snapshot(
                learner_step=self.updates,
                parameters=snapshot_parameters(self._algorithm.policy),
                calibration=calibration,
                at=time.time(),
            )
        )

    def _calibration(self) -> NDArray[Any]:
        """Observations to calibrate on: of the last updates, else the newest stored, else a single one of zeros."""
        size, spec = self._config.publication.calibration_size, self._replay.spec.observations
        recent = self._replay.newest_observations(size) if self._recent is None else self._recent[:size]
        return np.ascontiguousarray(recent) if len(recent) else np.zeros((1, *spec.shape), spec.dtype)

    def _run(self) -> None:
        try:
            while not self._requests.stop:
                self._save_if_asked_or_due()
                if self._requests.paused:
                    with self._changed:
                        self._changed.wait_for(self._has_work, _WAIT_S)
                elif self._replay.limiter.await_sample(_UPDATES_PER_SAMPLE * self._algorithm.batch_size, _WAIT_S):
                    self._train()
        except BaseException as error:
            _log.exception("training has failed")
            self._fault = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _has_work(self) -> bool:
        return not self._requests.paused or self._requests.stop or self._requests.save

    def _train(self) -> None:
        batch, sampled = self._replay.sample(_UPDATES_PER_SAMPLE, self._algorithm.batch_size)
        with self._quantization_aware.applied(self.updates, self._replay.total_transitions):
            losses = self._algorithm.update(batch, sampled.weights)
        self._replay.update_priorities(sampled, losses.priorities)
        self._recent = batch.observations
        before, self.updates = self.updates, self.updates + _UPDATES_PER_SAMPLE
        self.loss += 0.05 * (losses.loss - self.loss)
        period = self._config.publication.period_updates
        if self.updates // period > before // period:
            self.publish()

    def _save_if_asked_or_due(self) -> None:
        due = self._clock() - self._saved_at >= self._config.checkpoint.period_s
        if not (due or self._requests.save):
            return
        path = self._save(self.updates)
        self._saved_at = self._clock()
        with self._changed:
            self._requests.save = False
            self._saved_path = path
            self._changed.notify_all()

    def _request(self, paused: bool | None = None, stop: bool = False) -> None:
        with self._changed:
            self._requests.paused = self._requests.paused if paused is None else paused
            self._requests.stop = self._requests.stop or stop
            self._changed.notify_all()
