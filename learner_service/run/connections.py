"""The actors and evaluators of a run: they join, open streams, and resume after their last stored segment."""

import logging
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from actorq.config.run_config import RunConfig
from actorq.domain.policy import MAX_VERSION_STEP
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Membership, RunSpec, RunState
from actorq.domain.trajectory import Evaluation, Role
from actorq.errors import ConflictError, NotFoundError, UnavailableError
from learner_service.actors.credits import ActorStream
from learner_service.actors.members import Member, taken_over
from learner_service.actors.storage_thread import StorageThread
from learner_service.actors.streams import Streams
from learner_service.replay import MOST_ACTORS, LastSequences, actor_key
from learner_service.run.identity import RunIdentity
from learner_service.run.judge import Judge
from learner_service.run.lifecycle import Lifecycle
from learner_service.run.preparation import Preparation
from learner_service.run.records import Records
from learner_service.training.drawing import sampling_of, steps_per_policy

_log = logging.getLogger(__name__)

# Longest wait for the policy that learned from the last rollout. An actor that continues without it adds stale
# transitions.
_SYNCHRONOUS_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Connections:
    """Admits actors and evaluators, and passes the data of their streams to the run. Lives on the event loop."""

    records: Records
    preparation: Preparation
    lifecycle: Lifecycle
    judge: Judge
    streams: Streams
    storage: StorageThread

    def join(self, name: str, incarnation: int, role: Role, nonce: int = 0, owner: str = "") -> Membership:
        """Admit an actor or evaluator, and end the stream of an older process of its name. owner: see Members.join."""
        if not self.lifecycle.wants_actors:
            raise UnavailableError("the run is over")
        self.lifecycle.require_here()
        self.lifecycle.require_restored()
        records, training = self.records, self.records.training
        if role == "actor" and records.config.offline:
            raise ConflictError("the run is offline: it learns from a data set, and takes no actors")
        before = records.members.known(name)
        tables: dict[Role, LastSequences] = {"evaluator": records.evaluations.sequences}
        if training is not None:
            tables["actor"] = training.replay.sequences
        is_new = incarnation != 0 and (before is None or before.incarnation != incarnation)
        # Otherwise the actor's data could be stored twice.
        if is_new and role in tables and tables[role].may_have_forgotten(actor_key(name), incarnation):
            raise NotFoundError(
                f"actor {name!r} with incarnation {incarnation}: the learner keeps the last sequences of "
                f"{MOST_ACTORS} actors, and has forgotten older actors; restart this actor, so that it joins with 0"
            )
        newest_stored = max(table.newest_incarnation(actor_key(name)) for table in tables.values())
        member = records.members.join(name, incarnation, role, nonce, newest_stored, owner)
        if before is not None and before is not member:
            self.streams.end(before, taken_over(name, before.incarnation))
            records.scaling.forget(name)
        steps = training.replay.total_transitions if training else 0
        return membership(self.records.config, records.identity, member, self._resume_after(member), steps)

    def check_state(self, name: str, epoch: int, newest_version: int) -> None:
        """Compare the run with the highest epoch and version that an actor knows.

        Records values that were new to this learner. Raises UnavailableError when the actor has joined a learner of a
        higher epoch, which continues the run.
        """
        records, training = self.records, self.records.training
        own = records.identity.lineage.epoch
        if epoch > own:
            records.outdated = f"{name} has joined a learner of epoch {epoch}, this one has {own}"
            raise UnavailableError(
                f"this learner has epoch {own} of its run, and {name} has joined a learner of epoch {epoch}, "
                "which continues the run: end this learner"
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
        """Open an actor's stream. The first environment for which training can be built becomes the run's environment.

        lost_through: the highest acknowledged sequence that the actor no longer has and that is not stored, or 0.
        """
        self.lifecycle.require_here()
        member = self.records.members.connect(name, incarnation)
        try:
            await self.preparation.prepare(spec, name)
            self.lifecycle.require_here()
            # Another process with the same name may have joined meanwhile.
            self.records.members.connect(name, incarnation)
        except BaseException:
            self._disconnect(member)
            raise
        resume_after = self._resume_after(member, lost_through)
        stream = self.streams.open(member, resume_after, stop=not self.lifecycle.wants_actors)
        self.lifecycle.tell_durable()
        return stream

    def close_stream(self, stream: ActorStream) -> None:
        """Close an actor's stream that has ended."""
        self.streams.close(stream)
        self._disconnect(stream.member)

    def evaluated(self, stream: ActorStream, evaluation: Evaluation) -> None:
        """Store, acknowledge and judge an evaluation.

        Raises UnavailableError after the learner has begun to leave the run.
        """
        self.lifecycle.require_here()
        self.judge.check(stream, evaluation)
        training = self.records.training
        assert training is not None
        store = partial(self.judge.store, stream.member, evaluation, training)
        self.storage.submit(store, partial(self._decide, stream, evaluation), stream.fail)

    def _decide(self, stream: ActorStream, evaluation: Evaluation, is_new: bool) -> None:
        stream.acknowledge(evaluation.sequence)
        if is_new and self.judge.decide(stream.member.name, evaluation):
            self.lifecycle.finish(RunState.SOLVED)

    def _disconnect(self, member: Member) -> None:
        # The actor may have opened a new stream before the learner noticed the end of the broken one. Then the actor
        # stays.
        if not self.streams.has(member) and self.records.members.disconnect(member):
            self.records.scaling.forget(member.name)
            _log.info("%s left", member.name)

    def _resume_after(self, member: Member, lost_through: int = 0) -> int:
        """The highest stored or lost sequence of this incarnation; 0 when there is none."""
        if member.role == "evaluator":
            return max(self.records.evaluations.sequences.last(*member.source_key), lost_through)
        stored, training = self.preparation.resume_after(member), self.records.training
        if lost_through > stored and training is not None:
            training.intake.skip_lost(member, stored, lost_through)
        return max(stored, lost_through)


def membership(config: RunConfig, identity: RunIdentity, member: Member, resume_after: int, steps: int) -> Membership:
    """The membership of a member with this highest stored sequence, after this number of environment steps."""
    sampling, exploration = sampling_of(config), None
    if member.role == "actor":
        exploration = replace(config.exploration_of(member.index, steps), sampling=sampling)
    return Membership(
        run=RunSpec(
            run_id=identity.run_id,
            environment_id=config.environment,
            environments_per_actor=config.environments_per_actor,
            segment_length=config.actor.segment_length,
            max_segment_bytes=config.actor.max_segment_bytes,
            queue_segments=config.actor.queue_segments,
            scheme=config.scheme,
            evaluation_episodes=config.evaluation.episodes,
            evaluation_period_updates=config.evaluation.period_updates,
            report_period_s=config.actor.report_period_s,
            max_steps_per_policy=steps_per_policy(config),
            evaluation_share=config.evaluation.share,
            target_return=config.target_return,
            target_success=config.target_success,
            environment_arguments=config.environment_arguments,
            evaluation_sampling=sampling if config.evaluation.sampled else "",
            columns=config.further_columns(bool(sampling)),
            policy_patience_s=_SYNCHRONOUS_PATIENCE_S if config.queue.synchronous else RunSpec.policy_patience_s,
        ),
        actor_index=member.index,
        exploration=exploration,
        resume_after_sequence=resume_after,
        seed=_seed(config.seed, identity.lives, member),
        incarnation=member.incarnation,
        epoch=identity.lineage.epoch,
    )


def _seed(run_seed: int, lives: int, member: Member) -> int:
    """The seed of an actor's environments and exploration.

    The same run gives the same seed; each life of an actor differs.
    """
    role = ("actor", "evaluator").index(member.role)
    sequence = np.random.SeedSequence([run_seed, lives, role, member.index, member.life])
    return int(sequence.generate_state(1, np.uint64)[0])
