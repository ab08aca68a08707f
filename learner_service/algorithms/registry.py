"""Algorithms by name."""

from actorq.config import RunConfig
from actorq.errors import UserError
from actorq.trajectory import EnvironmentSpec
from learner_service.algorithms.base import Algorithm
from learner_service.algorithms.dqn import DQN


def make_algorithm(config: RunConfig, spec: EnvironmentSpec) -> Algorithm:
    """Build the run's algorithm for an environment; raises UserError when they do not fit."""
    if not spec.discrete_actions:
        raise UserError(
            f"algorithm dqn needs discrete actions, but {spec.environment_id} has continuous ones of shape "
            f"{list(spec.actions.shape)}; choose another environment"
        )
    return DQN(config.dqn, spec, seed=config.seed)
