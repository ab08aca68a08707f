"""The life of a run in this learner: training begins, and at the end the run is over or left to the next learner."""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from actorq.domain.policy import PolicyGraph
from actorq.domain.status import RunState
from actorq.errors import UnavailableError
from actorq.statefiles.tolerance import Tolerated
from learner_service.actors.streams import Streams
from learner_service.objectstorage.policy_export import PolicyExport
from learner_service.objectstorage.uploader import Uploader
from learner_service.run.judge import Judge
from learner_service.run.outcome import Commands, Outcome
from learner_service.run.records import Records
from learner_service.training.checkpoint import Checkpoints
from learner_service.training.training import Training

_log = logging.getLogger(__name__)

# Time limits at the end of a run: evaluation of the last policy, its publication, and export of the best policy.
_FINAL_EVALUATION_S = 10.0
_FINAL_PUBLICATION_S = 5.0
_FINAL_EXPORT_S = 15.0
_MOVING = "the learner is moving; the run continues when it is back"
_FAILED = "the learner has failed"


def written_at_the_end(name: str, lingers: bool) -> Tolerated:
    """A write of a file at the end of a run. Only a learner that lingers repeats it."""
    return Tolerated(name, "trying again" if lingers else "the run ends without it")


@dataclass(eq=False)
class Lifecycle:
    """Begins the training of a run, and ends or interrupts the run with everything saved. Lives on the event loop.

    restored: set when the run is restored from the disk. A new run is restored from the start.
    outcome: the reason why the run is over or ends now; None before.
    interrupted: whether this learner leaves a run that is not over. commands: the operators' commands, also those to
        earlier learners.
    ended: set when everything is saved: the run is over, or this learner leaves it. Also set after a fault.
    export: exports the best policy at the end. uploader: None without object storage.
    stays_over: a finished run stays over unless its target or budget has changed. Otherwise it continues training.
    """

    records: Records
    streams: Streams
    judge: Judge
    checkpoints: Checkpoints
    export: PolicyExport
    uploader: Uploader | None
    stays_over: bool

    def __post_init__(self) -> None:
        self.restored = asyncio.Event()
        self.outcome: RunState | None = None
        self.interrupted = False
        self.ended = asyncio.Event()
        self._state_when_over: RunState | None = None
        self._unwritten: Outcome | None = None
        self._outcome_writes = written_at_the_end("outcome.json", self.stays_over)
        self._fault: BaseException | None = None
        self._finishing: asyncio.Task[None] | None = None
        self._directory = self.records.identity.directory
        self._changes: set[asyncio.Task[Any]] = set()
        self.commands = Commands(self._directory)
        ended = Outcome.read(self._directory)
        if self.stays_over and ended is not None and ended.holds_for(self.records.config):
            _log.info("the run is over (%s); a changed target or budget would continue it", ended.state.value)
            self.outcome = ended.state
            self.records.clock.stop(ended.elapsed_s)
            self.export.url = ended.policy
        else:
            if ended is not None:
                # The run ended after the command, and should continue now.
                self.commands.write(paused=False, stopped=False)
            Outcome.forget(self._directory)

    @property
    def wants_actors(self) -> bool:
        """Whether the run needs actors, now or with the next learner."""
        return self.outcome is None

    @property
    def state(self) -> RunState:
        """The present state of the run."""
        training = self.records.training
        if self._state_when_over is not None:
            return self._state_when_over
        if self.outcome is not None:
            return RunState.STOPPING
        if self.interrupted:
            return RunState.INTERRUPTED
        if training is None:
            return RunState.WAITING_FOR_ACTORS
        if training.trainer.paused:
            return RunState.PAUSED
        return RunState.COLLECTING if training.is_collecting else RunState.TRAINING

    @property
    def fault(self) -> BaseException | None:
        """The error that broke the run, such as settings that do not fit the environment, or a failed trainer."""
        training = self.records.training
        if self._fault is not None or training is None:
            return self._fault
        return training.trainer.fault or training.publisher.fault

    def begin(self, training: Training, graph: PolicyGraph) -> None:
        """Let actors send, and start training. The training has been built."""
        records, config = self.records, self.records.config
        records.training = training
        records.scaling.samples_per_insert = training.replay.limiter.samples_per_insert
        training.replay.sequences.is_member = records.members.has_key
        transitions = config.actor.segment_length * config.environments_per_actor
        self.streams.admit(training.intake, training.replay.limiter, transitions, self._record_stored)
        training.flusher.on_flushed = partial(asyncio.get_running_loop().call_soon_threadsafe, self.tell_durable)
        if self.interrupted:
            self.streams.stop_credit()
        self.restored.set()
        if self.wants_actors and not self.interrupted:
            training.trainer.paused = self.commands.paused or self.commands.stopped
            training.start(graph)

    def change(self, task: asyncio.Task[Any]) -> None:
        """Record a build or a reset in progress. A learner that leaves the run waits for its end."""
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    def save(self, training: Training, updates: int) -> Path:
        """Write a checkpoint. Call on the trainer's thread, or on any thread once the trainer has ended."""
        path = self.checkpoints.save(training.state(updates, self.records.values()))
        self.upload()
        return path

    def upload(self) -> None:
        """Copy the run's files to object storage soon, if it has one. Thread-safe."""
        if self.uploader is not None:
            self.uploader.request()

    def tell_durable(self) -> None:
        """Inform each actor which of its segments survive a power cut, so that it forgets them."""
        if (training := self.records.training) is not None:
            self.streams.tell_durable("actor", training.replay.durable_sequences())

    def resume(self) -> None:
        """End a restored run that is over, or that an operator has stopped."""
        if not self.wants_actors and self._finishing is None:
            self._be_over()
        elif self.commands.stopped:
            self.finish(RunState.STOPPED)

    async def until_restored(self) -> None:
        """Wait until the run is restored. Raises UnavailableError when this learner leaves the run first."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self.restored, self.ended)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not self.restored.is_set():
            self.require_here()

    def require_restored(self) -> None:
        """Raise UnavailableError until the run's progress and the actors' stored sequences are read from the disk."""
        if not self.restored.is_set():
            raise UnavailableError("the learner is restoring its run")

    def require_here(self) -> None:
        """Raise UnavailableError after this learner has begun to leave or has failed.

        The next learner answers the call.
        """
        if self.interrupted:
            raise UnavailableError(_MOVING)
        if self.fault is not None:
            raise UnavailableError(_FAILED)

    def interrupt(self) -> None:
        """Begin to leave a run that is not over. Sets `ended` when everything is saved. No effect after a fault."""
        if self.wants_actors and not self.interrupted and self.fault is None:
            self.interrupted = True
            _log.info("the run is interrupted, because its learner was asked to end")
            self.streams.stop_credit()
            self._finishing = asyncio.get_running_loop().create_task(self._leave())

    def fail(self, fault: BaseException) -> None:
        """Leave a run that `fault` has broken. End all streams, so that none of them delays the next learner."""
        self._fault = self._fault or fault
        self.streams.stop_credit()
        self.streams.end_all(_FAILED)
        self.ended.set()

    def finish(self, outcome: RunState) -> None:
        """Begin to end the run. Sets `ended` when all is saved. The first outcome counts, but solved replaces budget.

        Has no effect after the learner has begun to leave, or after a fault. The next learner then ends the run.
        """
        if self.interrupted or self.fault is not None:
            return
        if self.outcome is None:
            _log.info("the run ends: %s", outcome.value)
            self.outcome = outcome
            self.streams.stop_credit()
            self._finishing = asyncio.get_running_loop().create_task(self._finish())
        elif outcome is RunState.SOLVED and self.outcome is RunState.BUDGET_ENDED:
            self.outcome = outcome

    async def stop(self) -> RunState:
        """End the run by an operator's command, with this learner or the next one. Returns the outcome.

        Raises UnavailableError when the command cannot be written, or another learner must execute it.
        """
        self.require_here()
        if self.outcome is None:
            await asyncio.to_thread(self.commands.write, stopped=True)
            # The next learner ends an interrupted run.
            self.finish(RunState.STOPPED)
        return self.outcome or RunState.STOPPED

    def write_outcome(self) -> bool:
        """Write the outcome of a run that is over, unless it is written. Returns False when the disk refuses."""
        if self._unwritten is not None:
            if not self._outcome_writes.attempt(partial(self._unwritten.write, self._directory)):
                return False
            self._unwritten = None
            self.upload()
        return True

    def _record_stored(self) -> None:
        self.records.clock.record_transitions()
        training = self.records.training
        # After a reset of the environment there is no training.
        if training is not None and training.replay.total_transitions >= self.records.config.max_environment_steps:
            self.finish(RunState.BUDGET_ENDED)

    async def _finish(self) -> None:
        records = self.records
        assert self.outcome is not None
        try:
            if (training := records.training) is not None:
                await self._save_training(training)
                if training.trainer.fault is not None:
                    # The run is not over: the next learner continues from the newest checkpoint.
                    self.outcome = None
                    self.ended.set()
                    return
                if self.outcome is RunState.BUDGET_ENDED and records.members.connected("evaluator"):
                    await self._evaluate_last(training.trainer.publish())
                await asyncio.to_thread(training.publisher.flush, _FINAL_PUBLICATION_S)
            Tolerated("the run's clock").attempt(records.clock.stop)
            if training is not None:
                counted = None if self.judge.flagged else self.judge.evaluation
                await asyncio.to_thread(self.export.write, training.spec, counted, _FINAL_EXPORT_S)
            self._unwritten = Outcome.of(self.outcome, records.clock.elapsed_s, records.config, self.export.url)
            self.write_outcome()
        except Exception:
            _log.exception("the run could not be ended cleanly")
        self.streams.tell_over()
        self._be_over()

    def _be_over(self) -> None:
        self._state_when_over = self.outcome
        self.ended.set()

    async def _leave(self) -> None:
        try:
            if self._changes:
                await asyncio.wait(self._changes)
            if (training := self.records.training) is not None:
                await self._save_training(training)
                # An unreachable quantizer gets the newest version from the next learner.
                await asyncio.to_thread(training.publisher.flush, _FINAL_PUBLICATION_S, wait_for_quantizer=False)
        except Exception:
            _log.exception("the run could not be saved cleanly")
        self.streams.end_all(_MOVING)
        self.ended.set()

    async def _save_training(self, training: Training) -> None:
        """End the updates and write a checkpoint. Runs first, so that nothing is lost when time runs out.

        Networks of a failed trainer are not saved, because the next learner would fail with them.
        """
        await asyncio.to_thread(training.trainer.stop)
        if training.trainer.fault is not None:
            return
        write = partial(self.save, training, training.trainer.updates)
        await asyncio.to_thread(Tolerated("the last checkpoint", "the previous checkpoint is used").attempt, write)

    async def _evaluate_last(self, version: int) -> None:
        """Wait for an evaluation of the last policy, which is the result of a run whose budget has ended."""
        self.streams.ask_for_evaluation(version)
        try:
            await self.judge.until_evaluated(version, _FINAL_EVALUATION_S)
        except TimeoutError:
            _log.warning("the last policy, version %d, was not evaluated in time", version)
