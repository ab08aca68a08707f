"""The training loop: wait for data, sample, update, publish, save. One thread owns the algorithm.

During the updates on one batch, another thread draws the next batch. A batch has the minibatches of several updates.
The priorities of a draw are therefore one batch old, at most 16 updates. This is less than the delay between an actor's
step and its arrival. A batch that was drawn ahead is dropped before a checkpoint. So this learner and one that restores
the checkpoint continue with the same draws.
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

# Most updates per call of the algorithm, within one publication period. Sampling many minibatches at once spreads the
# cost of the sum tree.
_MOST_UPDATES_PER_SAMPLE = 8
# Share of the newest updates in the running mean of the loss.
_LOSS_SHARE = 0.05
# Time after which a failed checkpoint is tried again.
_SAVE_AGAIN_S = 10.0
# Longest wait for data before the loop checks for requests to pause, save or stop.
_WAIT_S = 0.1


@dataclass
class Requests:
    """Requests to the trainer, read between two updates. saves: number of requested checkpoints so far."""

    paused: bool = False
    stop: bool = False
    saves: int = 0


class Trainer:
    """Runs on its own thread from `start` to `stop`. The control methods are thread-safe.

    quantization_aware: decides which updates compute with the actors' rounded policy.
    device: of the algorithm. Batches for a GPU are in pinned memory.
    dynamic_capacity: drops old transitions from the replay; None to keep all that fit.
    save: writes a checkpoint after the given number of updates, and returns its folder. Runs on the trainer's thread.
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
        """Bytes of the batch in use and the batch drawn ahead."""
        return self._prefetcher.nbytes

    def start(self) -> None:
        """Publish the current policy, so that actors can act, and start training."""
        self.publish()
        self._thread.start()

    def pause(self) -> int:
        """Pause training until `resume`. Waits for the updates under way, and returns the number of updates so far.

        Returns early when `resume` is called meanwhile.
        """
        with self._changed:
            self._requests.paused = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._idle or self._ended or not self._requests.paused)
            return self.updates

    def resume(self) -> None:
        """Resume training."""
        with self._changed:
            self._requests.paused = False
            self._changed.notify_all()

    def save(self) -> Path:
        """Write a checkpoint between two updates, and return its folder.

        Raises ConflictError when training has ended, and UnavailableError when the disk fails.
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
                raise ConflictError("training has ended: its last checkpoint is on disk, or will be soon")
            return self._saved_path

    def stop(self) -> None:
        """End the loop after the current updates, and wait for it. The caller then saves and publishes."""
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
        """The error that ended the loop; None if there was none."""
        return self._fault

    def publish(self) -> int:
        """Offer the current policy as the newest version. Returns its number."""
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
        """Observations for calibration: those of the last updates, else the newest stored ones."""
        size = self._config.publication.calibration_size
        return self._replay.newest_observations(size) if self._recent is None else self._recent[:size]

    def _run(self) -> None:
        try:
            while not self._requests.stop:
                self._save_if_asked_or_due()
                if self._may_train() and (drawn := self._prefetcher.take(_WAIT_S)) is not None:
                    self._train(drawn)
        except BaseException as error:
            _log.exception("training failed")
            self._fault = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _may_train(self) -> bool:
        """Whether training is not paused. While paused, notifies the callers of `pause` and waits for a change."""
        with self._changed:
            self._idle = self._requests.paused
            if self._idle:
                self._changed.notify_all()
                self._changed.wait(_WAIT_S)
            return not self._idle

    def _train(self, drawn: Drawn) -> None:
        if self.updates == 0:
            self._normalize()
        if self._dynamic_capacity is not None and self._dynamic_capacity.due:
            # Finish the draw in progress first. Otherwise the timing of threads decides if it sees dropped transitions.
            self._prefetcher.settle()
            self._dynamic_capacity.look()
        with self._quantization_aware.applied(self.updates, self._replay.total_transitions):
            losses = self._algorithm.update(drawn.batch, drawn.sampled.weights)
        self._prefetcher.update_priorities(drawn, losses.priorities)
        # The first updates of this process start the mean.
        self.loss += (1.0 if self._recent is None else _LOSS_SHARE) * (losses.loss - self.loss)
        self._recent = drawn.batch.observations
        before, self.updates = self.updates, self.updates + self._updates_per_sample
        period = self._config.publication.period_updates
        if self.updates // period > before // period:
            self._normalize()
            self.publish()

    def _normalize(self) -> None:
        """Set the normalizer to the mean and deviation of all observations so far.

        Call it together with updates only. A resumed run gets its normalizer from the checkpoint, with its networks.
        """
        moments = self._replay.observation_moments()
        if moments is not None:
            self._algorithm.normalize(*moments)

    def _save_if_asked_or_due(self) -> None:
        due = self._clock() - self._saved_at >= self._config.checkpoint.period_s
        # Read before writing: a request that comes meanwhile gets a later checkpoint.
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
