"""Builds the multi-step returns and the dynamic capacity of a run from its settings."""

import torch

from actorq.config.run_config import RunConfig
from actorq.domain.trajectory import Array
from learner_service.algorithms import Algorithm
from learner_service.replay import DelayedReturns, DynamicCapacity, ReplayBuffer, Returns


def returns_of(config: RunConfig, algorithm: Algorithm) -> Returns | DelayedReturns:
    """The returns of a run of `algorithm`. Raises UserError as `RunConfig.multi_step_of` does."""
    windows, clip = getattr(algorithm, "needs_windows", False), config.replay.clip_rewards
    first = Returns(algorithm.n_step, algorithm.discount, clip, windows)
    multi_step = config.multi_step_of(algorithm.n_step)
    if multi_step is None:
        return first
    longest = Returns(multi_step.n_step, algorithm.discount, clip, windows)
    return DelayedReturns(first, longest, multi_step.after * config.max_environment_steps)


def dynamic_capacity(
    config: RunConfig, algorithm: Algorithm, replay: ReplayBuffer, device: torch.device
) -> DynamicCapacity | None:
    """The dynamic capacity of the replay, with the policy of `algorithm`; None if it is off.

    Raises UserError as `RunConfig.dynamic_capacity_of` does.
    """
    settings = config.dynamic_capacity_of(replay.spec)
    if settings is None:
        return None

    def act(observations: Array) -> Array:
        with torch.no_grad():
            actions: Array = algorithm.policy(torch.from_numpy(observations).to(device)).cpu().numpy()
        return actions

    return DynamicCapacity(replay, settings, act)
