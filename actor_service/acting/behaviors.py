"""Makes the behavior policy of a run."""

from collections.abc import Collection

import numpy as np

from actor_service.acting.behavior import BehaviorPolicy
from actor_service.acting.exploration import ContinuousNoise, EpsilonGreedy
from actor_service.acting.parts import PartwiseEpsilonGreedy, PartwiseSampler
from actor_service.acting.sampling import CategoricalSampler, GaussianSampler
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration


def behavior_policy(
    spec: EnvironmentSpec,
    exploration: Exploration,
    environments: int,
    rng: np.random.Generator,
    wanted: Collection[str] = (),
) -> BehaviorPolicy:
    """The behavior policy of a number of environments: it draws actions if the run does, else it adds noise.

    Without sampling, `exploration` has a rate for each environment. wanted: names of the run's further columns.
    """
    squash = exploration.sampling == "squashed"
    if exploration.sampling and spec.has_parts:
        return PartwiseSampler(spec, environments, squash, rng)
    if exploration.sampling and spec.sizes:
        return CategoricalSampler(spec, environments, rng)
    if exploration.sampling:
        return GaussianSampler(spec, environments, squash, rng)
    if spec.has_parts or spec.mask is not None:
        return PartwiseEpsilonGreedy(spec, exploration, rng)
    if spec.sizes:
        return EpsilonGreedy(spec, exploration, rng)
    return ContinuousNoise(spec, exploration, rng, wanted)
