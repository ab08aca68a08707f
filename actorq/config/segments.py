"""Computes how many environments an actor can step as one batch. A segment of one step must fit into a message."""

from collections.abc import Collection

from actorq.domain.columns import own_columns
from actorq.domain.limits import MAX_SEGMENT_BYTES
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from actorq.text import size_text

# Rewards, flags, logarithms of probabilities and an ended episode of each environment.
_OTHER_BYTES = 48


def step_bytes(spec: EnvironmentSpec, further: Collection[str] = ()) -> int:
    """Bytes of one environment, or of one of its agents, in a segment of one step.

    They are the observations before and after it, actions, and more.
    further: names of the run's goals and states; see `RunConfig.large_columns`.
    """
    more = sum(each.nbytes for each in own_columns(spec, further))
    return (spec.frame_stack + 1) * spec.observations.nbytes + 2 * spec.actions.nbytes + more + _OTHER_BYTES


def most_environments(spec: EnvironmentSpec, further: Collection[str] = ()) -> int:
    """Largest batch of environments whose segment of one step fits into a message. Raises UserError if none fits."""
    most = MAX_SEGMENT_BYTES // (step_bytes(spec, further) * spec.agent_count)
    if not most:
        each = MAX_SEGMENT_BYTES // spec.agent_count
        limit = (each - 2 * spec.actions.nbytes - _OTHER_BYTES) // (spec.frame_stack + 1)
        raise UserError(
            f"environment {spec.environment_id}: an observation has {size_text(spec.observations.nbytes)}, but a "
            f"segment of one step needs {spec.frame_stack + 1} of at most {max(0, limit):,} bytes each; make "
            "observations smaller, for example with --environment-wrappers "
            "'[{gymnasium.wrappers:ResizeObservation: {shape: [84, 84]}}]'"
        )
    return most
