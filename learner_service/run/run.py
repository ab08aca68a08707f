"""A run: who takes part, how it goes, and how it ends or is interrupted."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.policy import PolicyDescriptor, PolicyGraph
from actorq.domain.status import ActorReport, EnvironmentReset, Membership, Receipt, RunState
from actorq.domain.trajectory import EnvironmentSpec, Evaluation, Role, Segment
from actorq.errors import ConflictError, UnavailableError
from actorq.statefiles.tolerance import Tolerated
from actorq.telemetry.energy import EnergyLedger
from actorq.telemetry.process_stats import measure_process
from learner_service.actors.credits import ActorStream
from learner_service.actors.members import Member, Members, taken_over
from learner_service.actors.schemes import policy_of
from learner_service.actors.storage_thread import StorageThread
from learner_service.actors.streams import Streams
from learner_service.reporting.events import EventLog
from learner_service.reporting.meters import Samples
from learner_service.reporting.resources import Resources
from learner_service.run.evaluations import EvaluationLog
from learner_service.run.identity import RunClock, RunIdentity, check_same_run
from learner_service.run.judge import Judge
from learner_service.run.membership import membership
from learner_service.run.outcome import Outcome
from learner_service.run.preparation import Parts, Preparation
from learner_service.run.scaling import ScalingSignal
from learner_service.training.training import Training

_log = logging.getLogger(__name__)

# What a run waits at its end for the evaluation of its last policy, and for the quantizer to store it.
_FINAL_EVALUATION_S = 10.0
_FINAL_PUBLICATION_S = 5.0
_MOVING = "the learner is moving; the run goes on when it is back"


def _log_failure(error: BaseException) -> None:
    _log.warning("the run's clock could not be written: %s", error)


class Run:
    """The learner's one domain object: servicers call it, it calls the parts. Lives on the event loop.

    Methods that are coroutines wait for threads; all others return at once.
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
        """A run that has ended trains on, unless it `stays_over`; then it does so if what ends it was changed."""
        self.config = config
        self.identity = RunIdentity.claim(directory, resume)
        self.members = Members(self.identity.lives, time.monotonic)
        self.activation = Samples()
        self.emission = Samples()
        self.receipt: Receipt | None = None
        self.outcome: RunState | None = None
        self.state_when_over: RunState | None = None
        self.interrupted = False
        """Whether this learner leaves a run that is not over."""
        self.ended = asyncio.Event()
        """Everything is saved: the run is over, or this learner is about to leave it."""
        self.scaling = ScalingSignal(config.rate_limiter.samples_per_insert, time.monotonic)
        self._beats = Tolerated("the run's clock or evaluations")
        self.evaluations = EvaluationLog(directory / "evaluations.jsonl")
        parts = Parts(
            config, self.identity, client, self.evaluations, self._values, self.take_receipt, self._take_training
        )
        self.preparation = Preparation(parts, resume)
        restored = self.preparation.restored
        check_same_run(config, restored.values if restored else {}, self.preparation.known)
        self.resources = Resources(EnergyLedger.from_state(restored.values["energy"]) if restored else None, node)
        known_s = max(self.evaluations.elapsed_s, restored.values.get("elapsed_s", 0.0) if restored else 0.0)
        self.clock = RunClock(directory, measure_process("learner", "learner").started_at, known_s=known_s)
        self.clock.first_transition_s = restored.values.get("first_transition_s") if restored else None
        self.events = EventLog(directory / "events")
        self.restored = asyncio.Event()
        if self.preparation.known is None:
            self.restored.set()
        self._storage = StorageThread()
        self._streams = Streams(self._storage)
        self._judge = Judge(
            config.scheme,
            self.evaluations,
            self.events,
            self._storage,
            self.clock,
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
        """The parts that know the environment; None before they are built."""
        return self.preparation.training

    @property
    def wants_actors(self) -> bool:
        """Whether there is anything for actors to do, if only with the next learner."""
        return self.outcome is None

    @property
    def target_return(self) -> float | None:
        """The mean return that ends the run: as configured, else the environment's own threshold."""
        if self.config.target_return is not None or self.training is None:
            return self.config.target_return
        return self.training.spec.reward_threshold

    @property
    def emitted(self) -> PolicyDescriptor | None:
        """The newest policy in the run's scheme, with auto in that of most actors; None before the first."""
        return policy_of(self.config.scheme, self.receipt.policies if self.receipt else (), self.members.statuses())

    @property
    def state(self) -> RunState:
        """What the run does now."""
        if self.state_when_over is not None:
            return self.state_when_over
        if self.outcome is not None:
            return RunState.STOPPING
        if self.interrupted:
            return RunState.INTERRUPTED
        if self.training is None:
            return RunState.WAITING_FOR_ACTORS
        if self.training.trainer.paused:
            return RunState.PAUSED
        collecting = self.training.replay.total_transitions < self.config.replay.min_size
        return RunState.COLLECTING if collecting else RunState.TRAINING

    @property
    def flagged_evaluation(self) -> str:
        """The newest evaluation that cannot be true, and why; empty when there is none."""
        return self._judge.flagged

    @property
    def refused_segments(self) -> int:
        """Segments that were refused since this process started."""
        return self._streams.refused_segments

    @property
    def fault(self) -> BaseException | None:
        """What broke the run from inside, such as settings that do not fit the environment, or a failed trainer."""
        if self._fault is not None or self.training is None:
            return self._fault
        return self.training.trainer.fault or self.training.publisher.fault

    def beat(self) -> None:
        """Once a second: keep time and evaluations on the disk, and measure who waits for whom."""
        self._storage.submit(partial(self._beats.attempt, self._sync), self._tell_durable_evaluations, _log_failure)
        if self.training is not None and self.wants_actors:
            limiter, trainer = self.training.replay.limiter, self.training.trainer
            connected = self.members.connected("actor")
            missing = limiter.min_size_to_sample - limiter.inserts
            self.scaling.observe(limiter.samples, limiter.starved_seconds, connected, trainer.paused, missing)

    async def restore(self) -> None:
        """Go on at once with what is on disk, before the first actor is back; what does not fit is the run's fault."""
        try:
            await self.preparation.restore()
        except Exception as error:
            self._fault = error
            self.ended.set()
            return
        if not self.wants_actors and self._finishing is None:
            self._be_over()

    def require_restored(self) -> None:
        """Raise UnavailableError while what is on disk is not back yet.

        Until its replay is open, the learner cannot tell how far the run has come, nor what it has stored of an actor.
        """
        if not self.restored.is_set():
            raise UnavailableError("the learner is restoring its run")

    def require_here(self) -> None:
        """Raise UnavailableError once this learner has begun to leave: the next one takes the call."""
        if self.interrupted:
            raise UnavailableError(_MOVING)

    def join(self, name: str, incarnation: int, role: Role, nonce: int = 0) -> Membership:
        """Take in an actor and tell it all it needs; a process with an older incarnation of its name is out at once."""
        if self.outcome is not None:
            raise UnavailableError("the run is over")
        self.require_here()
        self.require_restored()
        newest_stored = self.evaluations.newest_incarnation(name)
        if self.training is not None:
            newest_stored = max(newest_stored, self.training.intake.newest_incarnation(name))
        before = self.members.known(name)
        member = self.members.join(name, incarnation, role, nonce, newest_stored)
        if before is not None and before is not member:
            self._streams.end(before, taken_over(name, before.incarnation))
        steps = self.training.replay.total_transitions if self.training else 0
        return membership(self.config, self.identity, member, self._resume_after(member), steps)

    async def open_stream(
        self, name: str, incarnation: int, spec: EnvironmentSpec, lost_through: int = 0
    ) -> ActorStream:
        """An actor opened its stream; the first environment that the run can learn is the run's.

        lost_through: the highest acknowledged sequence that the actor has no more and that is not stored, or 0.
        """
        self.require_here()
        member = self.members.connect(name, incarnation)
        try:
            await self.preparation.prepare(spec, name)
            self.require_here()
            # Another process may have joined under the name meanwhile.
            self.members.connect(name, incarnation)
        except BaseException:
            self._disconnect(member)
            raise
        stream = self._streams.open(member, self._go_on_after(member, lost_through), stop=self.outcome is not None)
        self._tell_durable()
        return stream

    def close_stream(self, stream: ActorStream) -> None:
        """An actor's stream ended, for whatever reason."""
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
        """Note an evaluation, acknowledge it, and end the run when it reached the target.

        Raises UnavailableError once the learner leaves: the next one must see whether the target is reached.
        """
        self.require_here()
        self._judge.take(stream, evaluation)

    def note_report(self, stream: ActorStream, report: ActorReport) -> None:
        """Note how an actor says it is."""
        # Statuses tell of a thousand actors in one message: without the activations, which are counted here.
        self.members.report(stream.member, replace(report, activation_seconds=()))
        self.activation.add(report.activation_seconds)
        self.resources.note(report.process)
        if stream.member.role == "actor":
            member = stream.member
            self.scaling.note_report(member.name, member.incarnation, report.environment_steps, report.waited_seconds)

    def take_receipt(self, receipt: Receipt) -> None:
        """Note what the quantizer made of a version, and train as its actors will run it."""
        self.receipt = receipt
        if self.training is not None and (emitted := self.emitted) is not None:
            self.training.quantization_aware.follow(emitted)
        self.emission.add((receipt.emit_seconds,))
        self.resources.note(receipt.process)

    async def pause(self) -> int:
        """Stop updating; returns the updates so far, after which there is none until `resume`."""
        return await asyncio.to_thread(self._require_training().trainer.pause)

    def resume(self) -> int:
        """Go on updating; returns the updates so far."""
        training = self._require_training()
        training.trainer.resume()
        return training.trainer.updates

    async def save(self) -> tuple[Path, int]:
        """Write a checkpoint; returns its folder and the updates in it."""
        path = await asyncio.to_thread(self._require_training().trainer.save)
        return path, int(path.name)

    async def reset_environment(self, discard: bool) -> EnvironmentReset:
        """Forget the environment, so that the next actor's counts; see `Preparation.reset`."""
        self.require_here()
        if self.outcome is not None:
            raise ConflictError(f"the run is {self.state.value}: expected one that goes on")
        return await self.preparation.reset(discard, self._forget_training)

    def interrupt(self) -> None:
        """Begin to leave a run that is not over; `ended` is set when all is saved. Nothing changes for one that is."""
        if self.outcome is None and not self.interrupted:
            self.interrupted = True
            _log.info("the run is interrupted: its learner was told to end")
            self._streams.stop_credit()
            self._finishing = asyncio.get_running_loop().create_task(self._leave())

    def finish(self, outcome: RunState) -> None:
        """Begin to end the run; `ended` is set when all is saved. The first outcome counts, but solved beats budget.

        Once the learner leaves, the run goes on: the next learner ends it.
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
        """Wait until all actors have heard that the run is over or its learner leaves, at most `timeout_s` seconds."""
        await self._streams.until_closed(timeout_s)

    async def close(self) -> None:
        """End all threads and close all files."""
        await self._storage.close()
        if self.training is not None:
            await asyncio.to_thread(self.training.close)
        self.events.close()
        self.evaluations.close()
        # Until the next learner the run is not at a pause, but between two lives.
        self._beats.attempt(partial(self.clock.beat, ended=not self.interrupted))

    def _stay_over(self, ended: Outcome | None) -> None:
        if ended is not None and ended.holds_for(self.config):
            _log.info("the run is over (%s); a changed target or budget would go on with it", ended.state.value)
            self.outcome = ended.state
            self.clock.stop(ended.elapsed_s)

    async def _finish(self) -> None:
        assert self.outcome is not None
        try:
            if self.training is not None:
                await self._finish_training(self.training)
            self.clock.stop()
            Outcome.of(self.outcome, self.clock.elapsed_s, self.config).write(self.identity.directory)
        except OSError as error:
            _log.error("the run could not be ended cleanly: %s", error)
        except Exception:
            _log.exception("the run could not be ended cleanly")
        self._streams.tell_over()
        self.resources.note_self()
        self._be_over()

    def _be_over(self) -> None:
        self.state_when_over = self.outcome
        self.ended.set()

    async def _leave(self) -> None:
        try:
            await self.preparation.settle()
            if self.training is not None:
                await self._save_training(self.training)
                # The next learner publishes what a quantizer that is away has missed.
                await asyncio.to_thread(self.training.publisher.flush, _FINAL_PUBLICATION_S, wait_for_quantizer=False)
        except Exception:
            _log.exception("the run could not be saved cleanly")
        self._streams.end_all(_MOVING)
        self.resources.note_self()
        self.ended.set()

    async def _save_training(self, training: Training) -> None:
        """End the updates and write a checkpoint, before anything else: nothing is lost where time runs out."""
        await asyncio.to_thread(training.trainer.stop)
        write = partial(self.preparation.save, training.trainer.updates)
        await asyncio.to_thread(Tolerated("the last checkpoint").attempt, write)

    async def _finish_training(self, training: Training) -> None:
        await self._save_training(training)
        if self.outcome is RunState.BUDGET_ENDED and self.members.connected("evaluator"):
            await self._evaluate_last(training.trainer.publish())
        await asyncio.to_thread(training.publisher.flush, _FINAL_PUBLICATION_S)

    async def _evaluate_last(self, version: int) -> None:
        """The budget is used up: what the run has learned is what its last policy can do."""
        self._streams.ask_for_evaluation(version)
        try:
            await self._judge.until_evaluated(version, _FINAL_EVALUATION_S)
        except TimeoutError:
            _log.warning("the last policy, version %d, was not evaluated in time", version)

    def _take_training(self, training: Training, graph: PolicyGraph) -> None:
        """The training was built: let actors send."""
        transitions = self.config.actor.segment_length * self.config.environments_per_actor
        self._streams.admit(training.intake, training.replay.limiter, transitions, self._note_stored)
        loop = asyncio.get_running_loop()
        training.flusher.on_flushed = partial(loop.call_soon_threadsafe, self._tell_durable)
        self.restored.set()
        if self.interrupted:
            self._streams.stop_credit()
        elif self.wants_actors:
            training.start(graph)

    async def _forget_training(self) -> None:
        """The environment is reset: let all actors come again; returns when nothing is stored any more."""
        self._streams.forget("the run's environment was reset; join again")
        self.receipt = None
        self.scaling = ScalingSignal(self.config.rate_limiter.samples_per_insert, time.monotonic)
        await self._storage.settle()

    def _values(self) -> dict[str, object]:
        """What a checkpoint holds of the run itself; called on the trainer's thread."""
        return {
            "energy": self.resources.state(),
            "elapsed_s": self.clock.elapsed_s,
            "first_transition_s": self.clock.first_transition_s,
        }

    def _sync(self) -> None:
        self.clock.beat()
        self.evaluations.sync()

    def _disconnect(self, member: Member) -> None:
        if not self._streams.has(member):
            # Not so when the actor has opened another stream before the end of its broken one was noticed.
            self.members.disconnect(member)
            self.scaling.forget(member.name)
            _log.info("%s left", member.name)

    def _note_stored(self) -> None:
        self.clock.note_transitions()
        # There is no training when the environment was reset meanwhile.
        if self.training is not None and self.training.replay.total_transitions >= self.config.max_environment_steps:
            self.finish(RunState.BUDGET_ENDED)

    def _resume_after(self, member: Member) -> int:
        """The highest sequence that is stored of this incarnation, 0 when there is none."""
        if member.role == "evaluator":
            return self.evaluations.last_sequence(member)
        return self.preparation.resume_after(member)

    def _go_on_after(self, member: Member, lost_through: int) -> int:
        """The sequence after which an actor's stream goes on."""
        stored = self._resume_after(member)
        if lost_through <= stored:
            return stored
        if member.role == "actor" and self.training is not None:
            self.training.intake.note_lost(member, stored, lost_through)
        return lost_through

    def _tell_durable_evaluations(self, synced: bool) -> None:
        if synced:
            self._streams.tell_durable("evaluator", self.evaluations.durable_sequence)

    def _tell_durable(self) -> None:
        """Let each actor forget the segments that survive a power cut by now."""
        durable = self.training.replay.durable_sequences() if self.training else {}

        def of(member: Member) -> int:
            source = member.source(0)
            return durable.get((source.actor_key, source.incarnation), 0)

        self._streams.tell_durable("actor", of)

    def _require_training(self) -> Training:
        self.require_here()
        if self.training is None or self.outcome is not None:
            raise ConflictError(f"the run is {self.state.value}: there is no training to control")
        return self.training
