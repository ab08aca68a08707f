"""A run's status with what a test does not care about filled in."""

from dataclasses import replace
from typing import Any

from actorq.domain.status import Energy, RunState, RunStatus

_TRAINING = RunStatus(
    run_id="run",
    state=RunState.TRAINING,
    environment_id="CartPole-v1",
    algorithm="dqn",
    elapsed_s=1.0,
    environment_steps=0,
    environment_steps_per_s=0.0,
    updates=0,
    updates_per_s=0.0,
    samples_per_insert=0.0,
    episodes=0,
    training_return=None,
    evaluation=None,
    target_return=475.0,
    max_environment_steps=100_000,
    policy_version=0,
    staleness_p50=0.0,
    staleness_p99=0.0,
    emitted=None,
    quantizer_connected=True,
    actors=(),
    processes=(),
    energy=Energy(0.0, 0.0, ""),
    starved_s=0.0,
    loss=0.0,
    activation_s=None,
)


def run_status(**changes: Any) -> RunStatus:
    """A run of DQN on CartPole that trains, has done nothing yet, and has no actors; with these fields changed."""
    return replace(_TRAINING, **changes)
