"""Which settings a resumed run of an on-policy algorithm keeps, and how many rows its queue needs."""

import math

from actorq.config.sections import ActorConfig, QueueConfig

# Settings of an algorithm on which the meaning of its state or of stored rollouts depends: a resumed run keeps them.
HORIZON = ("rollout_size", "epochs", "discount", "gae_lambda", "trace_lambda")


def waiting_rows(queue: QueueConfig, actor: ActorConfig, environments: int, rollout_size: int, frame_stack: int) -> int:
    """Rows of the waiting rollouts, of the one in use, and of one segment more.

    A segment that does not fit at the end of the ring goes to its start.
    """
    segment = actor.segment_length * environments
    segments = math.ceil((math.ceil(queue.waiting_rollouts * rollout_size) + rollout_size) / segment) + 1
    return segments * environments * (actor.segment_length + frame_stack)
