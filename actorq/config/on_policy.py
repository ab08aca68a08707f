"""Checks the settings of on-policy algorithms, whose rollouts must fit actors, queue and disk."""

import math
from typing import TYPE_CHECKING

from actorq.config.sections import ActorConfig, QueueConfig

if TYPE_CHECKING:
    from actorq.config.run_config import RunConfig

# Settings without effect on runs of an on-policy algorithm, and on all others.
REPLAY_ONLY = (
    *("rate_limiter", "exploration", "multi_step_returns", "publication.period_updates", "replay.prioritized"),
    *("replay.min_size", "replay.priority_exponent", "replay.importance_exponent"),
)
QUEUE_ONLY = ("queue", "evaluation.sampled")
# Settings of an algorithm on which the meaning of its state or of stored rollouts depends: a resumed run keeps them.
HORIZON = ("rollout_size", "epochs", "discount", "gae_lambda", "trace_lambda")


def check_rollouts(config: "RunConfig", rollout_size: int, batch_size: int, frame_stack: int) -> None:
    """Raise ValueError for a queue that could never hand out a rollout, or would keep actors waiting.

    Also for mechanisms of the replay, which an on-policy algorithm does not have. rollout_size, batch_size: of the
    run's algorithm.
    """
    algorithm, queue, actor = config.algorithm, config.queue, config.actor
    for name, used in (
        ("sparsity.method rlx2", config.sparsity.method == "rlx2"),
        ("dynamic_capacity.enabled", config.dynamic_capacity.enabled),
        ("multi_step", config.multi_step),
    ):
        if used:
            raise ValueError(f"{name}: expected an algorithm with a replay, got {algorithm}, which is on-policy")
    actors, environments, capacity = config.actors, config.environments_per_actor, config.replay.capacity
    segment = actor.segment_length * environments
    if segment > rollout_size:
        raise ValueError(
            f"actor.segment_length * environments_per_actor must be at most {algorithm}.rollout_size ({rollout_size}), "
            f"got {actor.segment_length} * {environments}: a rollout consists of whole segments"
        )
    if batch_size > rollout_size:
        raise ValueError(
            f"{algorithm}.batch_size must be at most {algorithm}.rollout_size ({rollout_size}), got {batch_size}"
        )
    if queue.synchronous:
        if rollout_size % (actors * segment):
            raise ValueError(
                f"queue.synchronous: {algorithm}.rollout_size must be a multiple of {actors * segment}, actors * "
                f"environments_per_actor * actor.segment_length, got {rollout_size}"
            )
        if actor.max_steps_per_policy:
            raise ValueError(
                f"actor.max_steps_per_policy must be 0 with queue.synchronous, got {actor.max_steps_per_policy}: "
                "each actor waits after its share of a rollout"
            )
    least = -(-rollout_size // (actors * environments))
    if 0 < actor.max_steps_per_policy < least:
        raise ValueError(
            f"actor.max_steps_per_policy must be at least {least}, or 0, got {actor.max_steps_per_policy}: the learner "
            f"publishes after each rollout, which takes so many steps of each environment"
        )
    if capacity < (needed := waiting_rows(queue, actor, environments, rollout_size, frame_stack)):
        raise ValueError(
            f"replay.capacity must be at least {needed} rows, for queue.waiting_rollouts ({queue.waiting_rollouts:g}) "
            f"and the rollout in use with {rollout_size} environment steps each, got {capacity}"
        )


def waiting_rows(queue: QueueConfig, actor: ActorConfig, environments: int, rollout_size: int, frame_stack: int) -> int:
    """Rows of the waiting rollouts, of the one in use, and of one segment more.

    A segment that does not fit at the end of the ring goes to its start.
    """
    segment = actor.segment_length * environments
    segments = math.ceil((math.ceil(queue.waiting_rollouts * rollout_size) + rollout_size) / segment) + 1
    return segments * environments * (actor.segment_length + frame_stack)
