"""The training loop: wait for data, learn, publish, save. One thread owns the algorithm.

Off-policy: during the updates on one batch, another thread draws the next batch. A batch has the minibatches of several
updates. Therefore the priorities of a draw are one batch old, at most 16 updates. This delay is shorter than the delay
between an actor's step and its arrival. A batch that was drawn ahead is dropped before a checkpoint. This learner and a
learner that restores the checkpoint therefore continue with the same draws.

On-policy: the trainer gets a rollout from the queue and learns from it. Then it publishes a policy.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.config.run_config import RunConfig
from actorq.domain.limits import MAX_FIGURES
from actorq.errors import ConflictError, InvalidInputError, UnavailableError
from actorq.statefiles.tolerance import Tolerated
from learner_service.algorithms.base import AnyAlgorithm
from learner_service.policy.policy_graph import calibration_batch, snapshot_parameters, with_a_row
from learner_service.quantization.quantization_aware import QuantizationAware
from learner_service.training.batches import Batches
from learner_service.training.publisher import Publisher, Snapshot
from learner_service.training.stored_sequences import newest_sequences

_log = logging.getLogger(__name__)

# Share of the newest batch in the running mean of the loss.
_LOSS_SHARE = 0.05
# Time after which a failed checkpoint is tried again.
_SAVE_AGAIN_S = 10.0
# Longest wait for data before the loop checks for requests to pause, save or stop.
_WAIT_S = 0.1


@dataclass(eq=False)
class Trainer:
    """Runs on its own thread from `start` to `stop`. The control methods are thread-safe.

    quantization_aware: decides which updates compute with the actors' rounded policy.
    kept: selects observations [B, ...] for a policy's fidelity, bool[B].
    write: writes a checkpoint after the given number of updates, and returns its folder. Runs on the trainer's thread.
    """

    config: RunConfig
    algorithm: AnyAlgorithm
    batches: Batches
    publisher: Publisher
    quantization_aware: QuantizationAware
    write: Callable[[int], Path]
    updates: int = 0
    clock: Callable[[], float] = time.monotonic
    on_published: Callable[[int], None] = lambda version: None
    kept: Callable[[NDArray[np.generic]], NDArray[np.bool_]] = lambda rows: np.ones(len(rows), np.bool_)

    def __post_init__(self) -> None:
        self.paused = False
        """Whether `pause` was called."""
        self.fault: BaseException | None = None
        """The error that ended the loop; None if there was none."""
        self._changed = threading.Condition()
        self._stopped = False
        self._saves_asked = 0
        self._saved_at = self.clock()
        self._saves = 0
        self._saved_path: Path | None = None
        self._checkpoint = Tolerated("the checkpoint")
        self._idle = True
        self._ended = False
        self._updates_before = self.updates
        self.loss = 0.0
        self.figures: Mapping[str, float] = {}
        """The algorithm's figures of the newest batch or rollout."""
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    def start(self) -> None:
        """Publish the present policy, so that actors can act, and start training."""
        self.publish()
        self._thread.start()

    def pause(self) -> int:
        """Pause until `resume`. Waits for the current updates or for `resume`, and returns the updates so far."""
        with self._changed:
            self.paused = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._idle or self._ended or not self.paused)
            return self.updates

    def resume(self) -> None:
        """Resume training."""
        with self._changed:
            self.paused = False
            self._changed.notify_all()

    def save(self) -> Path:
        """Write a checkpoint between updates. Raises ConflictError at the end, UnavailableError if the disk fails."""
        with self._changed:
            self._saves_asked += 1
            wanted = self._saves_asked
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
            self._stopped = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self.batches.close()

    @property
    def made_updates(self) -> bool:
        """Whether this process has made updates."""
        return self.updates > self._updates_before

    def publish(self) -> int:
        """Offer the present policy as the newest version. Returns its number."""
        (rows, states), spec = self._calibration(), self.batches.buffer.spec
        calibration = calibration_batch(rows, spec, takes_noise(self.algorithm), self.updates, states)
        self.quantization_aware.published(rows, states)
        parameters = snapshot_parameters(self.algorithm.policy)
        snapshot = Snapshot(self.updates, parameters, calibration, time.time(), self.sequences())
        version = self.publisher.offer(snapshot)
        self.batches.published(version, parameters)
        self.on_published(version)
        return version

    def _calibration(self) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """Observations to measure a policy's fidelity, and the states before them if it has a memory.

        They are of the last updates, otherwise the newest stored ones, with states of zeros.
        """
        buffer, size = self.batches.buffer, self.config.publication.calibration_size
        observed, states = self.batches.observed(size), self.batches.observed_states(size)
        if observed is None:
            observed = buffer.newest_observations(size)
        kept = self.kept(observed)
        rows = with_a_row(observed if kept.all() else observed[kept], buffer.spec)
        if (state_size := self.config.memory.state_size) == 0:
            return rows, None
        return rows, np.zeros((len(rows), state_size), np.float32) if states is None else states[kept]

    def sequences(self) -> dict[str, NDArray[Any]]:
        """Stored sequences of steps to judge the state of a policy with memory; empty without."""
        size = self.config.memory.state_size
        if not size:
            return {}
        return newest_sequences(self.batches.buffer, size, takes_noise(self.algorithm), self.updates, self.kept)

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._save_if_asked_or_due()
                if self._may_train() and self.batches.fetch(_WAIT_S):
                    self._train()
        except BaseException as error:
            _log.exception("training failed")
            self.fault = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _may_train(self) -> bool:
        """Whether training is not paused. While paused, notifies the callers of `pause` and waits for a change."""
        with self._changed:
            self._idle = self.paused
            if self._idle:
                self._changed.notify_all()
                self._changed.wait(_WAIT_S)
            return not self._idle

    def _train(self) -> None:
        batches, steps = self.batches, self.batches.steps
        if self.updates == 0 and batches.normalizes_first:
            self._normalize()
        batches.prepare()
        # The first updates of this process start the mean.
        share = _LOSS_SHARE if self.made_updates else 1.0
        with self.quantization_aware.applied(self.updates, steps):
            learned = batches.learn(min(1.0, steps / self.config.budget))
        if not math.isfinite(learned.loss):
            # After divergence, no priority is set, and nothing is published or saved. The quantizer would refuse the
            # policy, and actors would wait for a new policy.
            raise InvalidInputError(
                f"training has diverged: the loss after update {self.updates + learned.updates} is {learned.loss}; try "
                "a smaller learning rate, or look for absurd numbers in observations and rewards"
            )
        batches.finish()
        self.loss += share * (learned.loss - self.loss)
        self.figures = dict(islice(learned.figures.items(), MAX_FIGURES))
        before, self.updates = self.updates, self.updates + learned.updates
        if batches.is_due(before, self.updates):
            self._normalize()
            self.publish()

    def _normalize(self) -> None:
        """Set the normalizer to the mean and deviation of all counted observations.

        Call this method only together with updates. A resumed run gets its normalizer from the checkpoint, with its
        networks.
        """
        moments = self.batches.buffer.observation_moments()
        if moments is not None:
            self.algorithm.normalize(*moments)

    def _save_if_asked_or_due(self) -> None:
        period = self.config.checkpoint.period_s
        due = self.clock() - self._saved_at >= period
        # The requests are read before the write, so a request that comes meanwhile gets a later checkpoint.
        asked = self._saves_asked
        if not (due or asked > self._saves):
            return
        self.batches.discard()
        saved = self._checkpoint.attempt(self._write_checkpoint)
        self._saved_at = self.clock() - (0.0 if saved else max(0.0, period - _SAVE_AGAIN_S))
        with self._changed:
            self._saves = asked
            self._changed.notify_all()

    def _write_checkpoint(self) -> None:
        self._saved_path = self.write(self.updates)


def takes_noise(algorithm: AnyAlgorithm) -> bool:
    """Whether the policy has noise as its second input. Policies of on-policy algorithms do not."""
    return bool(getattr(algorithm, "takes_noise", False))
