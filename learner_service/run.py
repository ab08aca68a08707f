"""A run: who takes part, how it goes, and how it ends."""

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from actorq.client import QuantizerClient
from actorq.config import RunConfig
from actorq.errors import ConflictError, InvalidInputError, UnavailableError
from actorq.policy import PolicyDescriptor
from actorq.status import ActorReport, Membership, Receipt, RunState
from actorq.telemetry.energy import EnergyLedger
from actorq.telemetry.process_stats import measure_process
from actorq.trajectory import EnvironmentSpec, Evaluation, Role, Segment
from learner_service.checkpoint import Checkpoints
from learner_service.credits import ActorStream, Credits
from learner_service.evaluations import EvaluationLog
from learner_service.events import EventLog
from learner_service.identity import RunClock, RunIdentity, check_same_run
from learner_service.members import Member, Members
from learner_service.membership import membership
from learner_service.outcome import Outcome
from learner_service.resources import Resources
from learner_service.scaling import ScalingSignal
from learner_service.schemes import acting_schemes, policy_of
from learner_service.statistics import Samples
from learner_service.training import Training, build_training

_log = logging.getLogger(__name__)

# What a run waits at its end for the evaluation of its last policy, and for the quantizer to store it.
_FINAL_EVALUATION_S = 10.0
_FINAL_PUBLICATION_S = 5.0


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
        self.clock = RunClock(directory, measure_process("learner", "learner").started_at)
        self.members = Members()
        self.activation = Samples()
        self.emission = Samples()
        self.receipt: Receipt | None = None
        self.refused_segments = 0
        self.training: Training | None = None
        self.outcome: RunState | None = None
        self.state_when_over: RunState | None = None
        self.over = asyncio.Event()
        self.scaling = ScalingSignal(config.rate_limiter.samples_per_insert, time.monotonic)
        self._interrupted = False
        self._client = client
        self._checkpoints = Checkpoints(directory / "checkpoints", config.checkpoint.keep)
        self._restored = self._checkpoints.load_newest() if resume else None
        self._known_spec = self.identity.read_environment()
        check_same_run(config, self._restored.values if self._restored else {}, self._known_spec)
        energy = EnergyLedger.from_state(self._restored.values["energy"]) if self._restored else None
        self.resources = Resources(energy, node)
        self.evaluations = EvaluationLog(directory / "evaluations.jsonl")
        self.events = EventLog(directory / "events")
        self.restored = asyncio.Event()
        if self._known_spec is None:
            self.restored.set()
        self._building: asyncio.Task[Training] | None = None
        self._streams: set[ActorStream] = set()
        self._credits: Credits | None = None
        self._evaluated = asyncio.Event()
        self._left = asyncio.Event()
        self._finishing: asyncio.Task[None] | None = None
        self._fault: BaseException | None = None
        if stays_over:
            self._stay_over(Outcome.read(directory))
        if self.wants_actors:
            Outcome.forget(directory)

    @property
    def wants_actors(self) -> bool:
        """Whether there is anything for actors to do."""
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
        if self.training is None:
            return RunState.WAITING_FOR_ACTORS
        if self.training.trainer.paused:
            return RunState.PAUSED
        collecting = self.training.replay.total_transitions < self.config.replay.min_size
        return RunState.COLLECTING if collecting else RunState.TRAINING

    @property
    def fault(self) -> BaseException | None:
        """What broke the run from inside, such as settings that do not fit the environment, or a failed trainer."""
        if self._fault is not None or self.training is None:
            return self._fault
        return self.training.trainer.fault or self.training.publisher.fault

    def beat(self) -> None:
        """Once a second: keep the time, and measure who waits for whom."""
        self.clock.beat()
        if self.training is not None and self.wants_actors:
            limiter, trainer = self.training.replay.limiter, self.training.trainer
            connected = self.members.connected("actor")
            missing = limiter.min_size_to_sample - limiter.inserts
            self.scaling.observe(limiter.samples, limiter.starved_seconds, connected, trainer.paused, missing)

    async def restore(self) -> None:
        """Go on at once with what is on disk, before the first actor is back."""
        if self._known_spec is not None:
            await self._prepare(self._known_spec)
        if not self.wants_actors and self._finishing is None:
            self._be_over()

    def require_restored(self) -> None:
        """Raise UnavailableError while what is on disk is not back yet.

        Until its replay is open, the learner cannot tell how far the run has come, nor what it has stored of an actor.
        """
        if not self.restored.is_set():
            raise UnavailableError("the learner is restoring its run")

    def join(self, name: str, incarnation: int, role: Role) -> Membership:
        """Take in an actor and tell it all it needs."""
        if self.outcome is not None:
            raise UnavailableError("the run is over")
        self.require_restored()
        member = self.members.join(name, incarnation, role)
        steps = self.training.replay.total_transitions if self.training else 0
        return membership(self.config, self.identity, member, self._resume_after(member), steps)

    async def open_stream(self, name: str, incarnation: int, spec: EnvironmentSpec) -> ActorStream:
        """An actor opened its stream; the first one's environment is the run's."""
        member = self.members.connect(name, incarnation)
        try:
            await self._prepare(spec)
        except BaseException:
            self.members.disconnect(member)
            raise
        stream = ActorStream(member, self._resume_after(member))
        self._streams.add(stream)
        stream.stop = self.outcome is not None
        if member.role == "actor" and self._credits is not None:
            self._credits.open(stream)
        return stream

    def close_stream(self, stream: ActorStream) -> None:
        """An actor's stream ended, for whatever reason."""
        self._streams.discard(stream)
        self._left.set()
        if stream.member.role == "actor" and self._credits is not None:
            self._credits.close(stream)
        if all(other.member is not stream.member for other in self._streams):
            # Not so when the actor has opened another stream before this broken one was noticed.
            self.members.disconnect(stream.member)
            self.scaling.forget(stream.member.name)
            _log.info("%s left", stream.member.name)

    def insert(self, stream: ActorStream, segment: Segment) -> None:
        """Store a segment and acknowledge it; raises ConflictError when it came without credit or out of order."""
        assert self.training is not None
        assert self._credits is not None
        if segment.sequence <= stream.acknowledged:
            self.training.intake.note_duplicate(stream.member, segment)
            stream.acknowledge(stream.acknowledged)
            return
        if segment.sequence != stream.acknowledged + 1 or not self._credits.take(stream, segment.sequence):
            raise ConflictError(
                f"segment: expected sequence {stream.acknowledged + 1} with credit through {stream.credit}, got "
                f"{segment.sequence}"
            )
        self.training.intake.insert(stream.member, segment, self._credits.segment_transitions)
        self._credits.stored(stream, segment.sequence)
        if self.training.replay.total_transitions >= self.config.max_environment_steps:
            self.finish(RunState.BUDGET_ENDED)

    def evaluated(self, stream: ActorStream, evaluation: Evaluation) -> None:
        """Note an evaluation, acknowledge it, and end the run when it reached the target."""
        training = self.training
        assert training is not None
        if evaluation.sequence <= stream.acknowledged:
            stream.acknowledge(stream.acknowledged)
            return
        acting = acting_schemes(self.config.scheme)
        if stream.member.role != "evaluator" or evaluation.scheme not in acting or evaluation.policy_version < 1:
            raise InvalidInputError(
                f"evaluation: expected an evaluator's, of a published {' or '.join(acting)} policy, got the "
                f"{stream.member.role}'s of version {evaluation.policy_version} {evaluation.scheme!r}"
            )
        steps = training.replay.total_transitions
        _log.info("version %d: return %.1f", evaluation.policy_version, evaluation.mean_return)
        self.evaluations.append(stream.member, evaluation, steps, self.clock.elapsed_s)
        self.events.evaluation(evaluation, steps, time.time())
        training.publisher.evaluated(evaluation)
        stream.acknowledge(evaluation.sequence)
        self._evaluated.set()
        if self.target_return is not None and evaluation.mean_return >= self.target_return:
            self.finish(RunState.SOLVED)

    def note_report(self, stream: ActorStream, report: ActorReport) -> None:
        """Note how an actor says it is."""
        self.members.report(stream.member, report)
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

    def finish(self, outcome: RunState, interrupted: bool = False) -> None:
        """Begin to end the run; `over` is set when all is saved. The first outcome counts, but solved beats budget.

        interrupted: it is only this learner that ends; the run is to be gone on with.
        """
        if self.outcome is None:
            self._interrupted = interrupted
            _log.info("the run ends: %s", outcome.value)
            self.outcome = outcome
            if self._credits is not None:
                self._credits.stop()
            self._finishing = asyncio.get_running_loop().create_task(self._finish())
        elif outcome is RunState.SOLVED and self.outcome is RunState.BUDGET_ENDED:
            self.outcome = outcome

    async def farewell(self, timeout_s: float) -> None:
        """Wait until all actors have heard that the run is over and left, at most `timeout_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._streams:
                    self._left.clear()
                    await self._left.wait()

    async def close(self) -> None:
        """End all threads and close all files."""
        if self.training is not None:
            await asyncio.to_thread(self.training.close)
        self.events.close()
        self.evaluations.close()
        self.clock.beat(ended=True)

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
            if not self._interrupted:
                Outcome.of(self.outcome, self.clock.elapsed_s, self.config).write(self.identity.directory)
        except Exception:
            _log.exception("the run could not be ended cleanly")
        for stream in self._streams:
            stream.stop = True
            stream.changed.set()
        self.resources.note_self()
        self._be_over()

    def _be_over(self) -> None:
        self.state_when_over = self.outcome
        self.over.set()

    async def _finish_training(self, training: Training) -> None:
        await asyncio.to_thread(training.trainer.stop)
        # First of all, so that nothing is lost when there is no time for the rest.
        await asyncio.to_thread(self._write_checkpoint, training.trainer.updates)
        if self.outcome is RunState.BUDGET_ENDED and self.members.connected("evaluator"):
            await self._evaluate_last(training.trainer.publish())
        await asyncio.to_thread(training.publisher.flush, _FINAL_PUBLICATION_S)

    async def _evaluate_last(self, version: int) -> None:
        """The budget is used up: what the run has learned is what its last policy can do."""
        for stream in self._streams:
            if stream.member.role == "evaluator":
                stream.evaluate_version = version
                stream.changed.set()
        try:
            async with asyncio.timeout(_FINAL_EVALUATION_S):
                while (newest := self.evaluations.newest) is None or newest.policy_version < version:
                    self._evaluated.clear()
                    await self._evaluated.wait()
        except TimeoutError:
            _log.warning("the last policy, version %d, was not evaluated in time", version)

    async def _prepare(self, spec: EnvironmentSpec) -> Training:
        if spec.environment_id != self.config.environment:
            raise ConflictError(f"environment: the run is on {self.config.environment}, got {spec.environment_id}")
        if self._building is None:
            self._building = asyncio.create_task(self._build(spec))
        # Shielded: an actor that leaves meanwhile must not take with it what all the others wait for.
        training = await asyncio.shield(self._building)
        if spec != training.spec:
            raise ConflictError(f"environment: the run is on {training.spec}, got {spec}")
        return training

    async def _build(self, spec: EnvironmentSpec) -> Training:
        loop = asyncio.get_running_loop()

        def on_receipt(receipt: Receipt) -> None:
            loop.call_soon_threadsafe(self.take_receipt, receipt)

        try:
            training, graph = await asyncio.to_thread(
                build_training,
                self.config,
                spec,
                self.identity.directory,
                self.identity.run_id,
                self._client,
                self._restored,
                self._write_checkpoint,
                on_receipt,
            )
        except Exception as error:
            # What an actor's environment brings to light is the run's fault, not the actor's.
            self._fault = error
            self.over.set()
            raise
        self.identity.write_environment(spec)
        transitions = self.config.actor.segment_length * self.config.environments_per_actor
        self._credits = Credits(training.replay.limiter, transitions, loop)
        self.training = training
        self.restored.set()
        if self.wants_actors:
            training.start(graph)
        return training

    def _write_checkpoint(self, updates: int) -> Path:
        """Called on the trainer's thread, or on another when that has ended."""
        assert self.training is not None
        return self._checkpoints.save(self.training.state(updates, {"energy": self.resources.state()}))

    def _resume_after(self, member: Member) -> int:
        """The highest sequence that is stored of this incarnation, 0 when there is none."""
        if member.role == "evaluator":
            return self.evaluations.last_sequence(member)
        return self.training.intake.resume_after(member) if self.training else 0

    def _require_training(self) -> Training:
        if self.training is None or self.outcome is not None:
            raise ConflictError(f"the run is {self.state.value}: there is no training to control")
        return self.training
