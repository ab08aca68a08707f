"""How the actors of an on-policy run draw actions: known from the settings, before a network exists."""

from typing import Any

from actorq.config.algorithms import ALGORITHMS
from actorq.config.run_config import RunConfig
from actorq.domain.status import Sampling
from actorq.errors import UserError
from learner_service.algorithms import chosen_algorithm
from learner_service.algorithms.base import OnPolicyAlgorithm, is_on_policy, settings_of


def sampling_of(config: RunConfig) -> Sampling:
    """How actors draw actions: the name of one of their samplers; empty for an off-policy algorithm.

    An algorithm that is not built in has a constant `sampling` in its class, or `squash` in its settings.
    """
    if config.algorithm in ALGORITHMS:
        return config.sampling
    algorithm = chosen_algorithm(config)
    if not is_on_policy(algorithm):
        return ""
    sampling: object = algorithm.sampling
    if isinstance(sampling, str):
        return sampling
    return "squashed" if getattr(_settings(config), "squash", False) else "clipped"


def steps_per_policy(config: RunConfig) -> int:
    """Steps of each environment after which an actor waits for a newer policy; 0 for no limit."""
    if not config.queue.synchronous or not sampling_of(config):
        return config.actor.max_steps_per_policy
    own = config.on_policy or _settings(config)
    return int(own.rollout_size) // (config.actors * config.environments_per_actor)


def check_told(config: RunConfig, algorithm: OnPolicyAlgorithm) -> None:
    """Raise UserError when the algorithm differs from the values that actors got from the settings."""
    told = sampling_of(config)
    if algorithm.sampling != told:
        raise UserError(
            f"algorithm {config.algorithm}: expected sampling {told!r} as its settings say (squash), got "
            f"{algorithm.sampling!r}"
        )
    if not config.queue.synchronous:
        return
    own = config.on_policy or _settings(config)
    if (size := getattr(own, "rollout_size", None)) != algorithm.rollout_size:
        raise UserError(
            f"queue.synchronous: algorithm {config.algorithm} needs a setting rollout_size of "
            f"{algorithm.rollout_size}, got {size}"
        )


def _settings(config: RunConfig) -> Any:
    model = getattr(chosen_algorithm(config), "settings", None)
    return None if model is None else settings_of(config, model)
