"""The actors and evaluators of a run: they join, open streams, and resume after what is stored."""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from actorq.domain.policy import MAX_VERSION_STEP
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Membership, RunState
from actorq.domain.trajectory import Evaluation, Role
from actorq.errors import NotFoundError, UnavailableError
from learner_service.actors.credits import ActorStream
from learner_service.actors.members import Member, taken_over
from learner_service.actors.storage_thread import StorageThread
from learner_service.actors.streams import Streams
from learner_service.replay import MOST_ACTORS, LastSequences, actor_key
from learner_service.run.judge import Judge
from learner_service.run.lifecycle import Lifecycle
from learner_service.run.membership import membership
from learner_service.run.preparation import Preparation
from learner_service.run.records import Records
from learner_service.training.training import Training

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Connections:
    """Admits actors and evaluators, and gives the run what their streams bring. Lives on the event loop."""

    records: Records
    preparation: Preparation
    lifecycle: Lifecycle
    judge: Judge
    streams: Streams
    storage: StorageThread

    def join(self, name: str, incarnation: int, role: Role, nonce: int = 0, owner: str = "") -> Membership:
        """Admit an actor or evaluator. Ends the stream of an older process with the same name.

        owner: see Members.join.
        """
        if not self.lifecycle.wants_actors:
            raise UnavailableError("the run is over")
        self.lifecycle.require_here()
        self.lifecycle.require_restored()
        records, training = self.records, self.preparation.training
        before = records.members.known(name)
        tables: dict[Role, LastSequences] = {"evaluator": records.evaluations.sequences}
        if training is not None:
            tables["actor"] = training.replay.sequences
        if incarnation and role in tables and (before is None or before.incarnation != incarnation):
            _require_remembered(tables[role], name, incarnation)
        newest_stored = max(table.newest_incarnation(actor_key(name)) for table in tables.values())
        member = records.members.join(name, incarnation, role, nonce, newest_stored, owner)
        if before is not None and before is not member:
            self.streams.end(before, taken_over(name, before.incarnation))
            records.scaling.forget(name)
        steps = training.replay.total_transitions if training else 0
        return membership(self.records.config, records.identity, member, self._resume_after(member), steps)

    def check_state(self, name: str, epoch: int, newest_version: int) -> None:
        """Compare the run with what an actor knows of it, and note what this learner did not know.

        epoch, newest_version: the highest that the actor has met.

        Raises UnavailableError when the actor has joined a learner of a higher epoch, which goes on with the run.
        """
        records, training = self.records, self.preparation.training
        own = records.identity.lineage.epoch
        if epoch > own:
            records.outdated = f"{name} has joined a learner of epoch {epoch}, this one has {own}"
            raise UnavailableError(
                f"this learner has epoch {own} of its run, and {name} has joined one of epoch {epoch}, which goes on "
                "with the run: end this one"
            )
        if training is None:
            return
        known = training.publisher.known_version
        if known < newest_version <= known + MAX_VERSION_STEP:
            training.publisher.raise_to(newest_version)
            records.outdated = (
                f"{name} has version {newest_version}, this learner knew {known}; was its folder restored from a copy "
                "without `actorq restore`?"
            )
            _log.warning("%s", records.outdated)

    async def open_stream(
        self, name: str, incarnation: int, spec: EnvironmentSpec, lost_through: int = 0
    ) -> ActorStream:
        """Open an actor's stream. The first environment with a possible training becomes the run's.

        lost_through: the highest acknowledged sequence that the actor no longer has and that is not stored, or 0.
        """
        self.lifecycle.require_here()
        member = self.records.members.connect(name, incarnation)
        try:
            await self.preparation.prepare(spec, name)
            self.lifecycle.require_here()
            # Meanwhile another process may have joined with the same name.
            self.records.members.connect(name, incarnation)
        except BaseException:
            self._disconnect(member)
            raise
        resume_after = self._go_on_after(member, lost_through)
        stream = self.streams.open(member, resume_after, stop=not self.lifecycle.wants_actors)
        self._tell_durable()
        return stream

    def close_stream(self, stream: ActorStream) -> None:
        """Close an actor's stream that has ended."""
        self.streams.close(stream)
        self._disconnect(stream.member)

    def evaluated(self, stream: ActorStream, evaluation: Evaluation) -> None:
        """Store an evaluation, acknowledge it, and end the run if it reaches the target.

        Raises UnavailableError once the learner leaves. The next learner then checks the target.
        """
        self.lifecycle.require_here()
        self.judge.take(stream, evaluation)

    def admit(self, training: Training) -> None:
        """Let actors send, because the training is built."""
        training.replay.sequences.is_member = self.records.members.has_key
        config = self.records.config
        transitions = config.actor.segment_length * config.environments_per_actor
        self.streams.admit(training.intake, training.replay.limiter, transitions, self._note_stored)
        loop = asyncio.get_running_loop()
        training.flusher.on_flushed = partial(loop.call_soon_threadsafe, self._tell_durable)
        if self.lifecycle.interrupted:
            self.streams.stop_credit()

    def _tell_durable(self) -> None:
        """Tell each actor which of its segments survive a power cut, so that it forgets them."""
        training = self.preparation.training
        durable = training.replay.durable_sequences() if training else {}
        self.streams.tell_durable("actor", lambda member: durable.get(member.source_key, 0))

    def _disconnect(self, member: Member) -> None:
        # The actor may have opened a new stream before the end of its broken one was noticed. Then it stays.
        if not self.streams.has(member) and self.records.members.disconnect(member):
            self.records.scaling.forget(member.name)
            _log.info("%s left", member.name)

    def _note_stored(self) -> None:
        self.records.clock.note_transitions()
        training = self.preparation.training
        # There is no training after a reset of the environment.
        if training is not None and training.replay.total_transitions >= self.records.config.max_environment_steps:
            self.lifecycle.finish(RunState.BUDGET_ENDED)

    def _resume_after(self, member: Member) -> int:
        """The highest stored sequence of this incarnation; 0 when there is none."""
        if member.role == "evaluator":
            return self.records.evaluations.sequences.last(*member.source_key)
        return self.preparation.resume_after(member)

    def _go_on_after(self, member: Member, lost_through: int) -> int:
        """The sequence after which an actor's stream resumes."""
        stored, training = self._resume_after(member), self.preparation.training
        if lost_through <= stored:
            return stored
        if member.role == "actor" and training is not None:
            training.intake.note_lost(member, stored, lost_through)
        return lost_through


def _require_remembered(sequences: LastSequences, name: str, incarnation: int) -> None:
    """Raise NotFoundError when the last sequence of an incarnation may be forgotten: its data could be stored twice."""
    if sequences.may_have_forgotten(actor_key(name), incarnation):
        raise NotFoundError(
            f"actor {name!r} with incarnation {incarnation}: the learner keeps the last sequences of {MOST_ACTORS} "
            "actors, and has forgotten those of older ones; start it again, so that it joins with 0"
        )
