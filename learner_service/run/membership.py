"""Builds the learner's answer to an actor that joins: the run, its index, and where to resume."""

from dataclasses import replace

import numpy as np

from actorq.config.run_config import RunConfig
from actorq.domain.status import Exploration, Membership, RunSpec
from learner_service.actors.members import Member
from learner_service.run.identity import RunIdentity
from learner_service.training.drawing import sampling_of, steps_per_policy

# Longest wait for the policy that learned from the last rollout. An actor that goes on later adds stale transitions.
_SYNCHRONOUS_PATIENCE_S = 30.0


def membership(
    config: RunConfig, identity: RunIdentity, member: Member, resume_after: int, environment_steps: int
) -> Membership:
    """The membership of an actor or evaluator.

    resume_after: the highest stored sequence of the member.
    environment_steps: of the run so far.
    """
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
            evaluation_sampling=sampling_of(config) if config.evaluation.sampled else "",
            columns=config.further_columns(bool(sampling_of(config))),
            policy_patience_s=_SYNCHRONOUS_PATIENCE_S if config.queue.synchronous else RunSpec.policy_patience_s,
        ),
        actor_index=member.index,
        exploration=_exploration(config, member, environment_steps) if member.role == "actor" else None,
        resume_after_sequence=resume_after,
        seed=_seed(config.seed, identity.lives, member),
        incarnation=member.incarnation,
        epoch=identity.lineage.epoch,
    )


def _exploration(config: RunConfig, member: Member, environment_steps: int) -> Exploration:
    exploration = config.exploration_of(member.index, environment_steps)
    return replace(exploration, sampling=sampling_of(config))


def _seed(run_seed: int, lives: int, member: Member) -> int:
    """The seed of an actor's environments and exploration. Repeats with the run; differs in each life of an actor."""
    role = ("actor", "evaluator").index(member.role)
    sequence = np.random.SeedSequence([run_seed, lives, role, member.index, member.life])
    return int(sequence.generate_state(1, np.uint64)[0])
