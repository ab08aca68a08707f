"""Makes the behavior policy of a run."""

from collections.abc import Callable, Collection
from functools import partial
from importlib.metadata import entry_points
from typing import cast

import numpy as np

from actor_service.acting.behavior import BehaviorPolicy
from actor_service.acting.exploration import ContinuousNoise, EpsilonGreedy
from actor_service.acting.parts import PartwiseEpsilonGreedy, PartwiseSampler
from actor_service.acting.sampling import CategoricalSampler, GaussianSampler
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration
from actorq.errors import UserError
from actorq.plugins import load


def behavior_policy(
    spec: EnvironmentSpec,
    exploration: Exploration,
    environments: int,
    rng: np.random.Generator,
    wanted: Collection[str] = (),
) -> BehaviorPolicy:
    """The behavior policy for a number of environments. It draws actions if the run does; otherwise it adds noise.

    Without sampling, `exploration` has a rate for each environment, which its agents share. wanted: names of the run's
    further columns. Raises UserError when this actor does not know the sampler.
    """
    if exploration.sampling:
        return _sampler_named(exploration.sampling)(spec, environments * spec.agent_count, rng)
    exploration = exploration.by_agent(spec.agent_count)
    if spec.has_parts or spec.mask is not None:
        return PartwiseEpsilonGreedy(spec, exploration, rng)
    if spec.sizes:
        return EpsilonGreedy(spec, exploration, rng)
    return ContinuousNoise(spec, exploration, rng, wanted)


def _sampler_named(name: str) -> "Sampler":
    if name in SAMPLERS:
        return SAMPLERS[name]
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    if name not in installed:
        raise UserError(
            f"the run draws actions by {name!r}, and this actor knows only {', '.join([*SAMPLERS, *installed])}: run "
            "all services with one version, and install the package with this sampler here"
        )
    return cast(Sampler, load(installed[name], f"sampler {name}"))


def _sampler(squash: bool, spec: EnvironmentSpec, environments: int, rng: np.random.Generator) -> BehaviorPolicy:
    if spec.has_parts:
        return PartwiseSampler(spec, environments, squash, rng)
    if spec.sizes:
        return CategoricalSampler(spec, environments, rng)
    return GaussianSampler(spec, environments, squash, rng)


Sampler = Callable[[EnvironmentSpec, int, np.random.Generator], BehaviorPolicy]
SAMPLERS: dict[str, Sampler] = {"clipped": partial(_sampler, False), "squashed": partial(_sampler, True)}
"""The samplers of actions, by the name in `sampling` of the run's algorithm.

Installed packages add samplers by entry points of the group `ENTRY_POINTS`.
"""
ENTRY_POINTS = "actorq.samplers"
