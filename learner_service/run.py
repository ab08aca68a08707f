"""A run: what it is, who takes part, how it goes, and how it ends."""

import asyncio
import contextlib
import json
import logging
import time
import uuid
from pathlib import Path
from typing import Any

from actorq.client import QuantizerClient
from actorq.config import RunConfig
from actorq.errors import ConflictError, UnavailableError, UserError
from actorq.status import ActorReport, Membership, Receipt, RunSpec, RunState
from actorq.telemetry.energy import EnergyLedger, NodeEnergy
from actorq.telemetry.process_stats import ProcessStats, measure_process
from actorq.trajectory import EnvironmentSpec, Evaluation, Role, Segment
from learner_service.checkpoint import Checkpoints
from learner_service.credits import ActorStream, Credits
from learner_service.evaluations import EvaluationLog
from learner_service.events import EventLog
from learner_service.members import Member, Members
from learner_service.statistics import Samples
from learner_service.training import Training, build_training

_log = logging.getLogger(__name__)

# What a run waits at its end for the evaluation of its last policy, and for the quantizer to store it.
_FINAL_EVALUATION_S = 20.0
_FINAL_PUBLICATION_S = 5.0


class Run:
    """The learner's one domain object: servicers call it, it calls the parts. Lives on the event loop.

    Methods that are coroutines wait for threads; all others return at once.
    """

    def __init__(self, config: RunConfig, directory: Path, client: QuantizerClient, resume: bool) -> None:
        self.config = config
        self.directory = directory
        self.members = Members()
        self.ledger = EnergyLedger()
        self.processes: dict[str, ProcessStats] = {}
        self.activation = Samples()
        self.emission = Samples()
        self.receipt: Receipt | None = None
        self.training: Training | None = None
        self.outcome: RunState | None = None
        self.state_when_over: RunState | None = None
        self.over = asyncio.Event()
        self._client = client
        self._checkpoints = Checkpoints(directory / "checkpoints", config.checkpoint.keep)
        self._building = asyncio.Lock()
        self._streams: set[ActorStream] = set()
        self._credits: Credits | None = None
        self._evaluated = asyncio.Event()
        self._left = asyncio.Event()
        self._finishing: asyncio.Task[None] | None = None
        self._started = time.monotonic()
        # A run begins with its process: importing PyTorch is part of what it costs.
        self._elapsed_before = time.time() - measure_process("learner", "learner").started_at
        self.run_id = _claim_directory(directory, resume)
        self._restored = self._checkpoints.load_newest() if resume else None
        if self._restored is not None:
            self._restore_values(self._restored.values)
        self._known_spec = _read_spec(directory)
        self.evaluations = EvaluationLog(directory / "evaluations.jsonl")
        self.events = EventLog(directory / "events")

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run over all lives of the learner."""
        return self._elapsed_before + time.monotonic() - self._started

    @property
    def target_return(self) -> float | None:
        """The mean return that ends the run: as configured, else the environment's own threshold."""
        if self.config.target_return is not None or self.training is None:
            return self.config.target_return
        return self.training.spec.reward_threshold

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

    def join(self, name: str, incarnation: int, role: Role) -> Membership:
        """Take in an actor and tell it all it needs."""
        if self.outcome is not None:
            raise UnavailableError("the run is over")
        if self._known_spec is not None and self.training is None:
            # Until its replay is open, the learner cannot tell what it has stored of this actor.
            raise UnavailableError("the learner is restoring its run")
        member = self.members.join(name, incarnation, role)
        config = self.config
        return Membership(
            run=RunSpec(
                run_id=self.run_id,
                environment_id=config.environment,
                seed=config.seed,
                environments_per_actor=config.environments_per_actor,
                segment_length=config.actor.segment_length,
                max_segment_bytes=config.actor.max_segment_bytes,
                queue_segments=config.actor.queue_segments,
                scheme=config.scheme,
                evaluation_episodes=config.evaluation.episodes,
                evaluation_period_updates=config.evaluation.period_updates,
                report_period_s=config.actor.report_period_s,
            ),
            actor_index=member.index,
            epsilons=config.epsilons(member.index) if role == "actor" else (),
            resume_after_sequence=self._resume_after(member),
        )

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
            _log.info("%s left", stream.member.name)

    def insert(self, stream: ActorStream, segment: Segment) -> None:
        """Store a segment and acknowledge it; raises ConflictError when it came without credit or out of order."""
        assert self.training is not None
        assert self._credits is not None
        if segment.sequence <= stream.acknowledged:
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
        assert self.training is not None
        if evaluation.sequence <= stream.acknowledged:
            stream.acknowledge(stream.acknowledged)
            return
        steps = self.training.replay.total_transitions
        _log.info("version %d: return %.1f", evaluation.policy_version, evaluation.mean_return)
        self.evaluations.append(stream.member, evaluation, steps, self.elapsed_s)
        self.events.evaluation(evaluation, steps, time.time())
        self.training.publisher.evaluated(evaluation)
        stream.acknowledge(evaluation.sequence)
        self._evaluated.set()
        if self.target_return is not None and evaluation.mean_return >= self.target_return:
            self.finish(RunState.SOLVED)

    def note_report(self, stream: ActorStream, report: ActorReport) -> None:
        """Note how an actor says it is."""
        self.members.report(stream.member, report)
        self.activation.add(report.activation_seconds)
        self.note_process(report.process)

    def note_process(self, stats: ProcessStats) -> None:
        """Note a process's own report of its resources."""
        # Peaks belong to the name, not to the life: a restarted process starts small.
        known = self.processes.get(stats.name)
        peak = max(stats.peak_resident_bytes, known.peak_resident_bytes if known else 0)
        self.processes[stats.name] = ProcessStats(**{**vars(stats), "peak_resident_bytes": peak})
        self.ledger.report_process(stats.name, stats.role, stats.node, stats.cpu_seconds, incarnation=stats.incarnation)

    def report_energy(self, energy: NodeEnergy, processes: tuple[ProcessStats, ...]) -> None:
        """Take a node's energy from its meter, which is the first of `processes`."""
        self.note_process(measure_process("learner", "learner"))
        for stats in processes:
            self.note_process(stats)
        self.ledger.report_node(energy, meter=processes[0].incarnation if processes else energy.node)

    def pause(self) -> int:
        """Stop updating; returns the updates so far."""
        training = self._require_training()
        training.trainer.pause()
        return training.trainer.updates

    def resume(self) -> int:
        """Go on updating; returns the updates so far."""
        training = self._require_training()
        training.trainer.resume()
        return training.trainer.updates

    async def save(self) -> tuple[Path, int]:
        """Write a checkpoint; returns its folder and the updates in it."""
        path = await asyncio.to_thread(self._require_training().trainer.save)
        return path, int(path.name)

    def finish(self, outcome: RunState) -> None:
        """Begin to end the run; `over` is set when all is saved. The first outcome counts, but solved beats budget."""
        if self.outcome is None:
            _log.info("the run ends: %s", outcome.value)
            self.outcome = outcome
            self._finishing = asyncio.get_running_loop().create_task(self._finish())
        elif outcome is RunState.SOLVED and self.outcome is RunState.BUDGET_ENDED:
            self.outcome = outcome

    async def restore(self) -> None:
        """Go on at once with what is on disk, before the first actor is back."""
        if self._known_spec is not None:
            await self._prepare(self._known_spec)

    async def farewell(self, timeout_s: float) -> None:
        """Wait until all actors have heard that the run is over and left, at most `timeout_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._streams:
                    self._left.clear()
                    await self._left.wait()

    def fault(self) -> BaseException | None:
        """What broke the run from inside, such as a failed trainer."""
        if self.training is None:
            return None
        return self.training.trainer.fault or self.training.publisher.fault

    async def _finish(self) -> None:
        try:
            if self.training is not None:
                await self._finish_training(self.training)
        except Exception:
            _log.exception("the run could not be ended cleanly")
        for stream in self._streams:
            stream.stop = True
            stream.changed.set()
        self.note_process(measure_process("learner", "learner"))
        self.state_when_over = self.outcome
        self.over.set()

    async def _finish_training(self, training: Training) -> None:
        await asyncio.to_thread(training.trainer.stop)
        if self.outcome is RunState.BUDGET_ENDED and self.members.connected("evaluator"):
            await self._evaluate_last(training.trainer.publish())
        self._write_checkpoint(training.trainer.updates)
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
        async with self._building:
            if self.training is None:
                if spec.environment_id != self.config.environment:
                    raise ConflictError(
                        f"environment: the run is on {self.config.environment}, got {spec.environment_id}"
                    )
                training = await asyncio.to_thread(
                    build_training,
                    self.config,
                    spec,
                    self.directory,
                    self.run_id,
                    self._client,
                    self._restored,
                    self._write_checkpoint,
                    self._take_receipt,
                )
                _write_spec(self.directory, spec)
                transitions = self.config.actor.segment_length * self.config.environments_per_actor
                self._credits = Credits(training.replay.limiter, transitions, asyncio.get_running_loop())
                self.training = training
            elif spec != self.training.spec:
                raise ConflictError(f"environment: the run is on {self.training.spec}, got {spec}")
            return self.training

    def _take_receipt(self, receipt: Receipt) -> None:
        self.receipt = receipt
        self.emission.add((receipt.emit_seconds,))
        self.note_process(receipt.process)

    def _write_checkpoint(self, updates: int) -> Path:
        assert self.training is not None
        values = {
            "elapsed_s": self.elapsed_s,
            "energy": self.ledger.state(),
        }
        return self._checkpoints.save(self.training.state(updates, values))

    def _restore_values(self, values: dict[str, Any]) -> None:
        for name, configured in (("environment", self.config.environment), ("algorithm", self.config.algorithm)):
            if values[name] != configured:
                raise UserError(
                    f"the checkpoint is of {name} {values[name]!r}, the configuration says {configured!r}; resume with "
                    f"--{name} {values[name]}, or start a new run in another --run-directory"
                )
        self._elapsed_before += values["elapsed_s"]
        self.ledger = EnergyLedger.from_state(values["energy"])

    def _resume_after(self, member: Member) -> int:
        """The highest sequence that is stored of this incarnation, 0 when there is none."""
        if member.role == "evaluator":
            return self.evaluations.last_sequence(member)
        return self.training.intake.resume_after(member) if self.training else 0

    def _require_training(self) -> Training:
        if self.training is None or self.outcome is not None:
            raise ConflictError(f"the run is {self.state.value}: there is no training to control")
        return self.training


def _claim_directory(directory: Path, resume: bool) -> str:
    """Return the run's id, making it on the first start; never takes over another run's directory by accident."""
    identity = directory / "run.json"
    if identity.exists():
        if not resume:
            raise UserError(
                f"--run-directory: {directory} holds a run already; add --resume to go on with it, or name another one"
            )
        return str(json.loads(identity.read_text(encoding="utf-8"))["run_id"])
    directory.mkdir(parents=True, exist_ok=True)
    run_id = uuid.uuid4().hex
    partial = identity.with_suffix(".partial")
    partial.write_text(json.dumps({"run_id": run_id, "started_at": time.time()}), encoding="utf-8")
    partial.replace(identity)
    return run_id


def _write_spec(directory: Path, spec: EnvironmentSpec) -> None:
    partial = directory / "environment.partial"
    partial.write_text(json.dumps(spec.to_json()), encoding="utf-8")
    partial.replace(directory / "environment.json")


def _read_spec(directory: Path) -> EnvironmentSpec | None:
    path = directory / "environment.json"
    return EnvironmentSpec.from_json(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
