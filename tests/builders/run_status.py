"""A run's status with what a test does not care about filled in."""

from dataclasses import replace
from typing import Any

from actorq import wire
from actorq.domain.status import RunStatus
from actorq.v1 import learner_pb2

# All other fields are those of an empty message.
_TRAINING = learner_pb2.RunStatus(
    run_id="run",
    state=learner_pb2.RUN_STATE_TRAINING,
    environment_id="CartPole-v1",
    algorithm="dqn",
    elapsed_s=1.0,
    target_return=475.0,
    max_environment_steps=100_000,
    quantizer_connected=True,
)


def run_status(**changes: Any) -> RunStatus:
    """A run of DQN on CartPole that trains, has done nothing yet, and has no actors; with these fields changed."""
    return replace(wire.run_status_from_proto(_TRAINING), **changes)
