"""The run: the central object of the learner, from the first actor to the end or an interruption."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.policy import PolicyGraph
from actorq.domain.status import ActorReport, EnvironmentReset, Membership, Receipt, RunState
from actorq.domain.trajectory import EnvironmentSpec, Evaluation, Role, Segment
from actorq.errors import ConflictError, UnavailableError
from actorq.rundirectory import RunDirectory
from actorq.statefiles.tolerance import Tolerated
from learner_service.actors.credits import ActorStream
from learner_service.actors.members import Member, taken_over
from learner_service.actors.storage_thread import StorageThread
from learner_service.actors.streams import Streams
from learner_service.objectstorage.best_policy import BestPolicy
from learner_service.objectstorage.policy_export import PolicyExport
from learner_service.objectstorage.uploader import Uploader
from learner_service.objectstorage.volume import open_volume
from learner_service.run.identity import RunIdentity, check_same_run
from learner_service.run.judge import Judge
from learner_service.run.membership import membership
from learner_service.run.outcome import Outcome
from learner_service.run.preparation import Preparation, newest_state
from learner_service.run.records import Records
from learner_service.training.training import Training

_log = logging.getLogger(__name__)

# Time limits at the end of a run: for the evaluation of its last policy, its publication, the export of the best one,
# and the last upload.
_FINAL_EVALUATION_S = 10.0
_FINAL_PUBLICATION_S = 5.0
_FINAL_EXPORT_S = 15.0
_FINAL_UPLOAD_S = 10.0
_MOVING = "the learner is moving; the run continues when it is back"


def _log_failure(error: BaseException) -> None:
    _log.warning("the run's clock could not be written: %s", error)


class Run:
    """The learner's central object: the servicers call it, and it calls the parts. Lives on the event loop.

    Coroutine methods wait for threads. All others return at once.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        client: QuantizerClient,
        resume: bool,
        node: str = "",
        stays_over: bool = False,
    ) -> None:
        """stays_over: a finished run stays over unless its target or budget has changed. Otherwise it trains on."""
        self._config = config
        self.policy_export = PolicyExport(config, RunDirectory(directory).evaluations, client)
        volume = open_volume(config.checkpoint, directory)
        if volume is not None:
            volume.prepare(resume)
        identity = RunIdentity.claim(directory, resume)
        restored = newest_state(config, directory) if resume else None
        values = restored.values if restored else {}
        self.records = Records(config, identity, values, node)
        self.outcome: RunState | None = None
        self._state_when_over: RunState | None = None
        self.interrupted = False
        """Whether this learner leaves a run that is not over."""
        self.ended = asyncio.Event()
        """Set when everything is saved: the run is over, or this learner leaves it."""
        self.uploader: Uploader | None = None
        """Copies checkpoints to object storage; None without it."""
        if volume is not None:
            volume.begin(identity.run_id)
            best = BestPolicy(directory, client, self.records.evaluations)
            self.uploader = Uploader(volume, identity.run_id, config.checkpoint, best.update)
        self.preparation = Preparation(
            self.records, client, restored, self.take_receipt, self._take_training, self._upload
        )
        check_same_run(config, values, self.preparation.known)
        self._beats = Tolerated("the run's clock or evaluations")
        self.restored = asyncio.Event()
        if self.preparation.known is None:
            self.restored.set()
        self._storage = StorageThread()
        self._streams = Streams(self._storage)
        self._judge = Judge(
            self.records,
            self._storage,
            lambda: self.training,
            lambda: self.target_return,
            partial(self.finish, RunState.SOLVED),
        )
        self._finishing: asyncio.Task[None] | None = None
        self._fault: BaseException | None = None
        if stays_over:
            self._stay_over(Outcome.read(directory))
        if self.wants_actors:
            Outcome.forget(directory)

    @property
    def training(self) -> Training | None:
        """The parts that depend on the environment; None before they are built."""
        return self.preparation.training

    @property
    def wants_actors(self) -> bool:
        """Whether the run needs actors, now or with the next learner."""
        return self.outcome is None

    @property
    def target_return(self) -> float | None:
        """The mean return that ends the run: the configured one, else the environment's threshold."""
        if self._config.target_return is not None or self.training is None:
            return self._config.target_return
        return self.training.spec.reward_threshold

    @property
    def state(self) -> RunState:
        """The present state of the run."""
        if self._state_when_over is not None:
            return self._state_when_over
        if self.outcome is not None:
            return RunState.STOPPING
        if self.interrupted:
            return RunState.INTERRUPTED
        if self.training is None:
            return RunState.WAITING_FOR_ACTORS
        if self.training.trainer.paused:
            return RunState.PAUSED
        return RunState.COLLECTING if self.training.is_collecting else RunState.TRAINING

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation that solved the run, else the newest one. Another one may arrive while the run ends."""
        return self._judge.solved_by or self.records.evaluations.newest

    @property
    def flagged_evaluation(self) -> str:
        """The newest evaluation and the reason, if it is implausible; else empty."""
        return self._judge.flagged

    @property
    def refused_segments(self) -> int:
        """Number of refused segments since the training was built."""
        return self._streams.refused_segments

    @property
    def fault(self) -> BaseException | None:
        """The error that broke the run, such as settings that do not fit the environment, or a failed trainer."""
        if self._fault is not None or self.training is None:
            return self._fault
        return self.training.trainer.fault or self.training.publisher.fault

    def beat(self) -> None:
        """Write time and evaluations to the disk, and update the scaling measurements. Call once a second."""
        self._storage.submit(
            partial(self._beats.attempt, self.records.sync), self._tell_durable_evaluations, _log_failure
        )
        if self.training is not None and self.wants_actors:
            limiter, trainer = self.training.replay.limiter, self.training.trainer
            connected = self.records.members.connected("actor")
            missing = limiter.min_size_to_sample - limiter.inserts
            self.records.scaling.observe(limiter.samples, limiter.starved_seconds, connected, trainer.paused, missing)

    async def restore(self) -> None:
        """Resume from the disk, before the first actor is back. An error becomes the run's `fault`."""
        try:
            await self.preparation.restore()
        except Exception as error:
            self._fault = error
            self.ended.set()
            return
        if not self.wants_actors and self._finishing is None:
            self._be_over()

    def require_restored(self) -> None:
        """Raise UnavailableError until the run is restored from the disk.

        Before that, the learner does not know the run's progress or an actor's stored sequences.
        """
        if not self.restored.is_set():
            raise UnavailableError("the learner is restoring its run")

    def require_here(self) -> None:
        """Raise UnavailableError once this learner has begun to leave. The next learner takes the call."""
        if self.interrupted:
            raise UnavailableError(_MOVING)

    def join(self, name: str, incarnation: int, role: Role, nonce: int = 0) -> Membership:
        """Admit an actor or evaluator. Ends the stream of an older process with the same name."""
        if self.outcome is not None:
            raise UnavailableError("the run is over")
        self.require_here()
        self.require_restored()
        newest_stored = self.records.evaluations.newest_incarnation(name)
        if self.training is not None:
            newest_stored = max(newest_stored, self.training.intake.newest_incarnation(name))
        before = self.records.members.known(name)
        member = self.records.members.join(name, incarnation, role, nonce, newest_stored)
        if before is not None and before is not member:
            self._streams.end(before, taken_over(name, before.incarnation))
        steps = self.training.replay.total_transitions if self.training else 0
        return membership(self._config, self.records.identity, member, self._resume_after(member), steps)

    async def open_stream(
        self, name: str, incarnation: int, spec: EnvironmentSpec, lost_through: int = 0
    ) -> ActorStream:
        """Open an actor's stream. The first environment with a possible training becomes the run's.

        lost_through: the highest acknowledged sequence that the actor no longer has and that is not stored, or 0.
        """
        self.require_here()
        member = self.records.members.connect(name, incarnation)
        try:
            await self.preparation.prepare(spec, name)
            self.require_here()
            # Meanwhile another process may have joined with the same name.
            self.records.members.connect(name, incarnation)
        except BaseException:
            self._disconnect(member)
            raise
        stream = self._streams.open(member, self._go_on_after(member, lost_through), stop=self.outcome is not None)
        self._tell_durable()
        return stream

    def close_stream(self, stream: ActorStream) -> None:
        """Close an actor's stream that has ended."""
        self._streams.close(stream)
        self._disconnect(stream.member)

    async def may_receive(self) -> None:
        """Wait until there is room for one more message of a stream."""
        await self._storage.room()

    def insert(
        self, stream: ActorStream, sequence: int, size: Callable[[], int], decode: Callable[[], Segment]
    ) -> None:
        """Store a segment, and acknowledge it once it is stored; see `Uploads.insert`."""
        self._streams.insert(stream, sequence, size, decode)

    def evaluated(self, stream: ActorStream, evaluation: Evaluation) -> None:
        """Store an evaluation, acknowledge it, and end the run if it reaches the target.

        Raises UnavailableError once the learner leaves. The next learner then checks the target.
        """
        self.require_here()
        self._judge.take(stream, evaluation)

    def note_report(self, stream: ActorStream, report: ActorReport) -> None:
        """Record an actor's report."""
        self.records.note_report(stream.member, report)

    def take_receipt(self, receipt: Receipt) -> None:
        """Record a receipt. Quantization-aware training follows its policy."""
        self.records.note_receipt(receipt)
        if self.training is not None and (emitted := self.records.emitted) is not None:
            self.training.quantization_aware.follow(emitted)

    async def pause(self) -> int:
        """Pause training until `resume`. Returns the updates so far."""
        return await asyncio.to_thread(self._require_training().trainer.pause)

    def resume(self) -> int:
        """Resume training. Returns the updates so far."""
        training = self._require_training()
        training.trainer.resume()
        return training.trainer.updates

    async def save(self) -> tuple[Path, int]:
        """Write a checkpoint. Returns its folder and its number of updates."""
        path = await asyncio.to_thread(self._require_training().trainer.save)
        return path, int(path.name)

    async def reset_environment(self, discard: bool) -> EnvironmentReset:
        """Forget the environment. The next actor then decides it; see `Preparation.reset`."""
        self.require_here()
        if self.outcome is not None:
            raise ConflictError(f"the run is {self.state.value}: expected a run that is not over")
        return await self.preparation.reset(discard, self._forget_training)

    def interrupt(self) -> None:
        """Begin to leave a run that is not over. Sets `ended` when everything is saved."""
        if self.outcome is None and not self.interrupted:
            self.interrupted = True
            _log.info("the run is interrupted: its learner was told to end")
            self._streams.stop_credit()
            self._finishing = asyncio.get_running_loop().create_task(self._leave())

    def finish(self, outcome: RunState) -> None:
        """Begin to end the run. Sets `ended` when all is saved. The first outcome counts, but solved beats budget.

        Has no effect once the learner leaves. The next learner then ends the run.
        """
        if self.interrupted:
            return
        if self.outcome is None:
            _log.info("the run ends: %s", outcome.value)
            self.outcome = outcome
            self._streams.stop_credit()
            self._finishing = asyncio.get_running_loop().create_task(self._finish())
        elif outcome is RunState.SOLVED and self.outcome is RunState.BUDGET_ENDED:
            self.outcome = outcome

    async def farewell(self, timeout_s: float) -> None:
        """Wait until all actors know that the run is over or the learner leaves, or for `timeout_s` seconds."""
        await self._streams.until_closed(timeout_s)

    async def close(self) -> None:
        """End all threads and close all files."""
        await self._storage.close()
        if self.training is not None:
            await asyncio.to_thread(self.training.close)
        self.records.close()
        # The time until the next learner of an interrupted run is a restart, not a pause.
        self._beats.attempt(partial(self.records.clock.beat, ended=not self.interrupted))
        if self.uploader is not None:
            await asyncio.to_thread(self.uploader.close, _FINAL_UPLOAD_S)

    def _stay_over(self, ended: Outcome | None) -> None:
        if ended is not None and ended.holds_for(self._config):
            _log.info("the run is over (%s); a changed target or budget would continue it", ended.state.value)
            self.outcome = ended.state
            self.records.clock.stop(ended.elapsed_s)
            self.policy_export.url = ended.policy

    async def _finish(self) -> None:
        assert self.outcome is not None
        try:
            if self.training is not None:
                await self._finish_training(self.training)
            self.records.clock.stop()
            if self.training is not None:
                counted = None if self.flagged_evaluation else self.evaluation
                await asyncio.to_thread(self.policy_export.write, self.training.spec, counted, _FINAL_EXPORT_S)
            elapsed_s, policy = self.records.clock.elapsed_s, self.policy_export.url
            Outcome.of(self.outcome, elapsed_s, self._config, policy).write(self.records.identity.directory)
            self._upload()
        except OSError as error:
            _log.error("the run could not be ended cleanly: %s", error)
        except Exception:
            _log.exception("the run could not be ended cleanly")
        self._streams.tell_over()
        self._be_over()

    def _upload(self) -> None:
        if self.uploader is not None:
            self.uploader.request()

    def _be_over(self) -> None:
        self._state_when_over = self.outcome
        self.ended.set()

    async def _leave(self) -> None:
        try:
            await self.preparation.settle()
            if self.training is not None:
                await self._save_training(self.training)
                # A quantizer that is away gets the newest version from the next learner.
                await asyncio.to_thread(self.training.publisher.flush, _FINAL_PUBLICATION_S, wait_for_quantizer=False)
        except Exception:
            _log.exception("the run could not be saved cleanly")
        self._streams.end_all(_MOVING)
        self.ended.set()

    async def _save_training(self, training: Training) -> None:
        """End the updates and write a checkpoint. Comes first, so that nothing is lost when time runs out."""
        await asyncio.to_thread(training.trainer.stop)
        write = partial(self.preparation.save, training.trainer.updates)
        await asyncio.to_thread(Tolerated("the last checkpoint").attempt, write)

    async def _finish_training(self, training: Training) -> None:
        await self._save_training(training)
        if self.outcome is RunState.BUDGET_ENDED and self.records.members.connected("evaluator"):
            await self._evaluate_last(training.trainer.publish())
        await asyncio.to_thread(training.publisher.flush, _FINAL_PUBLICATION_S)

    async def _evaluate_last(self, version: int) -> None:
        """Wait for an evaluation of the last policy: it is the result of a run whose budget has ended."""
        self._streams.ask_for_evaluation(version)
        try:
            await self._judge.until_evaluated(version, _FINAL_EVALUATION_S)
        except TimeoutError:
            _log.warning("the last policy, version %d, was not evaluated in time", version)

    def _take_training(self, training: Training, graph: PolicyGraph) -> None:
        """Let actors send, because the training is built."""
        transitions = self._config.actor.segment_length * self._config.environments_per_actor
        self.records.scaling.samples_per_insert = training.replay.limiter.samples_per_insert
        self._streams.admit(training.intake, training.replay.limiter, transitions, self._note_stored)
        loop = asyncio.get_running_loop()
        training.flusher.on_flushed = partial(loop.call_soon_threadsafe, self._tell_durable)
        self.restored.set()
        if self.interrupted:
            self._streams.stop_credit()
        elif self.wants_actors:
            training.start(graph)

    async def _forget_training(self) -> None:
        """Make all actors rejoin after a reset. Returns when no more segments are being stored."""
        self._streams.forget("the run's environment was reset; join again")
        self.records.forget_training()
        await self._storage.settle()

    def _disconnect(self, member: Member) -> None:
        if not self._streams.has(member):
            # The actor may have opened a new stream before the end of its broken one was noticed. Then it stays.
            self.records.members.disconnect(member)
            self.records.scaling.forget(member.name)
            _log.info("%s left", member.name)

    def _note_stored(self) -> None:
        self.records.clock.note_transitions()
        # There is no training after a reset of the environment.
        if self.training is not None and self.training.replay.total_transitions >= self._config.max_environment_steps:
            self.finish(RunState.BUDGET_ENDED)

    def _resume_after(self, member: Member) -> int:
        """The highest stored sequence of this incarnation; 0 when there is none."""
        if member.role == "evaluator":
            return self.records.evaluations.last_sequence(member)
        return self.preparation.resume_after(member)

    def _go_on_after(self, member: Member, lost_through: int) -> int:
        """The sequence after which an actor's stream resumes."""
        stored = self._resume_after(member)
        if lost_through <= stored:
            return stored
        if member.role == "actor" and self.training is not None:
            self.training.intake.note_lost(member, stored, lost_through)
        return lost_through

    def _tell_durable_evaluations(self, synced: bool) -> None:
        if synced:
            self._streams.tell_durable("evaluator", self.records.evaluations.durable_sequence)

    def _tell_durable(self) -> None:
        """Tell each actor which of its segments survive a power cut, so that it forgets them."""
        durable = self.training.replay.durable_sequences() if self.training else {}
        self._streams.tell_durable("actor", lambda member: durable.get(member.source_key, 0))

    def _require_training(self) -> Training:
        self.require_here()
        if self.training is None or self.outcome is not None:
            raise ConflictError(f"the run is {self.state.value}: there is no training to control")
        return self.training
