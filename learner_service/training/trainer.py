"""The training loop: wait for data, sample, update, publish, save. One thread owns the algorithm.

While it updates on one batch, the next is drawn on another thread; a batch of samples is several updates' minibatches.
So the rows of an update were chosen by priorities that are one batch old, at most 16 updates' worth: less than what
passes between an actor's step and its segment's arrival. Before a checkpoint what was drawn ahead is dropped, so that
the learner that wrote it and one that restores it go on with the same draws.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from actorq.config.run_config import RunConfig
from actorq.domain.policy import OBSERVATIONS_INPUT
from actorq.errors import ConflictError, UnavailableError
from actorq.statefiles.tolerance import Tolerated
from learner_service.algorithms import Algorithm
from learner_service.policy.policy_graph import calibration_batch, snapshot_parameters
from learner_service.quantization.quantization_aware import QuantizationAware
from learner_service.replay import Drawn, DynamicCapacity, Prefetcher, ReplayBuffer
from learner_service.training.device import batches_for
from learner_service.training.publisher import Publisher, Snapshot

_log = logging.getLogger(__name__)

# Updates per call of the algorithm: sampling many minibatches at once spreads the cost of the sum tree. No more than
# from one published policy to the next, though.
_MOST_UPDATES_PER_SAMPLE = 8
# Of the running mean of the loss: what the newest updates are of it.
_LOSS_SHARE = 0.05
# After which a checkpoint that could not be written is tried again.
_SAVE_AGAIN_S = 10.0
# How long the loop waits for data before it looks again whether it should pause, save or stop.
_WAIT_S = 0.1


@dataclass
class Requests:
    """What others want of the trainer; read between two updates. saves: how many checkpoints they have asked for."""

    paused: bool = False
    stop: bool = False
    saves: int = 0


class Trainer:
    """Runs in its own thread from `start` to `stop`; the control methods may be called from any thread.

    quantization_aware: decides which updates run the policy as its actors run it.
    device: where the algorithm computes; batches for a GPU are in pinned memory.
    dynamic_capacity: decides how much of the replay is kept; None for as much as there is room for.
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
        device: torch.device,
        updates: int = 0,
        dynamic_capacity: DynamicCapacity | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._algorithm = algorithm
        self._replay = replay
        self._publisher = publisher
        self._quantization_aware = quantization_aware
        self._dynamic_capacity = dynamic_capacity
        self._save = save
        self._clock = clock
        self._requests = Requests()
        self._changed = threading.Condition()
        self._saved_at = clock()
        self._saves = 0
        self._saved_path: Path | None = None
        self._checkpoint = Tolerated("the checkpoint")
        self._recent: NDArray[Any] | None = None
        self._fault: BaseException | None = None
        self._idle = True
        self._ended = False
        self.updates = updates
        self._updates_before = updates
        self.loss = 0.0
        self._updates_per_sample = min(_MOST_UPDATES_PER_SAMPLE, config.publication.period_updates)
        self._prefetcher = Prefetcher(
            replay,
            self._updates_per_sample * algorithm.batch_size,
            batches_for(device, replay.spec, replay.longest_returns),
        )
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    @property
    def batch_nbytes(self) -> int:
        """Bytes of the batches that are updated on and drawn ahead."""
        return self._prefetcher.nbytes

    def start(self) -> None:
        """Publish the current policy, so that actors can act, and begin to train."""
        self.publish()
        self._thread.start()

    def pause(self) -> int:
        """Stop updating and wait until the current updates are done; returns how many there have been.

        There are no others until `resume`, for which this does not wait if it comes first.
        """
        with self._changed:
            self._requests.paused = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._idle or self._ended or not self._requests.paused)
            return self.updates

    def resume(self) -> None:
        """Go on updating."""
        with self._changed:
            self._requests.paused = False
            self._changed.notify_all()

    def save(self) -> Path:
        """Write a checkpoint between two updates and return its folder.

        Raises ConflictError when training has ended and UnavailableError when the disk refuses it.
        """
        with self._changed:
            self._requests.saves += 1
            wanted = self._requests.saves
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._saves >= wanted or self._ended)
            if self._saves >= wanted and (error := self._checkpoint.error) is not None:
                reason = error.strerror or error
                raise UnavailableError(f"the checkpoint cannot be written ({reason}): make room and save again")
            if self._saves < wanted or self._saved_path is None:
                raise ConflictError("training has ended: its last checkpoint is on disk or about to be")
            return self._saved_path

    def stop(self) -> None:
        """End the loop after the current updates and wait for it; the caller saves and publishes last."""
        with self._changed:
            self._requests.stop = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._prefetcher.close()

    @property
    def paused(self) -> bool:
        """Whether `pause` was called."""
        return self._requests.paused

    @property
    def made_updates(self) -> bool:
        """Whether there were updates since this process started."""
        return self.updates > self._updates_before

    @property
    def fault(self) -> BaseException | None:
        """What ended the loop, if it did not end by `stop`."""
        return self._fault

    def publish(self) -> int:
        """Offer the current policy as the newest version; returns its number."""
        spec, stochastic = self._replay.spec, self._algorithm.stochastic
        calibration = calibration_batch(self._observed(), spec, stochastic, seed=self.updates)
        self._quantization_aware.published(calibration[OBSERVATIONS_INPUT])
        return self._publisher.offer(
            Snapshot(
                learner_step=self.updates,
                parameters=snapshot_parameters(self._algorithm.policy),
                calibration=calibration,
                at=time.time(),
            )
        )

    def _observed(self) -> NDArray[Any]:
        """Observations to calibrate on: of the last updates, else the newest stored."""
        size = self._config.publication.calibration_size
        return self._replay.newest_observations(size) if self._recent is None else self._recent[:size]

    def _run(self) -> None:
        try:
            while not self._requests.stop:
                self._save_if_asked_or_due()
                if self._may_train() and (drawn := self._prefetcher.take(_WAIT_S)) is not None:
                    self._train(drawn)
        except BaseException as error:
            _log.exception("training has failed")
            self._fault = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _has_work(self) -> bool:
        return not self._requests.paused or self._requests.stop or self._requests.saves > self._saves

    def _may_train(self) -> bool:
        """Whether updates may follow; if not, that is said to those who wait for it, and changes are waited for."""
        with self._changed:
            self._idle = self._requests.paused
            if self._idle:
                self._changed.notify_all()
                self._changed.wait_for(self._has_work, _WAIT_S)
            return not self._idle

    def _train(self, drawn: Drawn) -> None:
        if self.updates == 0:
            self._normalize()
        if self._dynamic_capacity is not None and self._dynamic_capacity.due:
            # What is drawn meanwhile would be with or without what is dropped, whichever thread is first.
            self._prefetcher.settle()
            self._dynamic_capacity.look()
        with self._quantization_aware.applied(self.updates, self._replay.total_transitions):
            losses = self._algorithm.update(drawn.batch, drawn.sampled.weights)
        self._prefetcher.update_priorities(drawn, losses.priorities)
        # The first updates of this process have no mean before them.
        self.loss += (1.0 if self._recent is None else _LOSS_SHARE) * (losses.loss - self.loss)
        self._recent = drawn.batch.observations
        before, self.updates = self.updates, self.updates + self._updates_per_sample
        period = self._config.publication.period_updates
        if self.updates // period > before // period:
            self._normalize()
            self.publish()

    def _normalize(self) -> None:
        """Take over the mean and deviation of all observations so far.

        Only together with updates, never because a run was resumed: its normalizer comes back with its networks.
        """
        moments = self._replay.observation_moments()
        if moments is not None:
            self._algorithm.normalize(*moments)

    def _save_if_asked_or_due(self) -> None:
        due = self._clock() - self._saved_at >= self._config.checkpoint.period_s
        # Before anything is written: what is asked for meanwhile is a checkpoint of later.
        asked = self._requests.saves
        if not (due or asked > self._saves):
            return
        self._prefetcher.discard()
        saved = self._checkpoint.attempt(self._write_checkpoint)
        period = self._config.checkpoint.period_s
        self._saved_at = self._clock() - (0.0 if saved else max(0.0, period - _SAVE_AGAIN_S))
        with self._changed:
            self._saves = asked
            self._changed.notify_all()

    def _write_checkpoint(self) -> None:
        self._saved_path = self._save(self.updates)
