"""Behavior policies for masked actions, and for actions with several discrete parts or with discrete and continuous
parts.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.acting.behavior import BehaviorPolicy
from actor_service.acting.exploration import STEPS_DRAWN, NoisyBehavior
from actor_service.acting.sampling import CategoricalSampler, GaussianSampler
from actor_service.policies.policy import OnnxPolicy
from actorq.domain.columns import LOG_PROBABILITIES
from actorq.domain.leaves import views
from actorq.domain.signature import Role
from actorq.domain.spaces import ArraySpec, EnvironmentSpec, allowed_choices, best_choices, slices_of
from actorq.domain.status import Exploration


class PartwiseEpsilonGreedy(NoisyBehavior):
    """Chooses uniformly random legal actions in environment i with probability epsilon_i, otherwise the best ones.

    One random number decides for all parts of an action. Illegal choices have values far below all others, because the
    mask is an input of the policy.
    """

    def __init__(self, spec: EnvironmentSpec, exploration: Exploration, rng: np.random.Generator) -> None:
        super().__init__(spec, len(exploration.epsilons), exploration.random_steps, rng)
        self._epsilons = np.asarray(exploration.epsilons)
        self._spec = spec
        self._parts = len(spec.sizes)
        self._all = np.ones((len(self._epsilons), spec.acting_size), np.bool_)

    def _random_actions(self, observations: NDArray[Any]) -> NDArray[Any]:
        return self._drawn_actions(observations, self._rng.random((len(self._epsilons), self._parts)))

    def _draw(self, policy: OnnxPolicy) -> None:
        shape = (STEPS_DRAWN, len(self._epsilons))
        self._explores = self._rng.random(shape) < self._epsilons
        self._uniforms = self._rng.random((*shape, self._parts))

    def _explore(self, policy: OnnxPolicy, observations: NDArray[Any], step: int) -> NDArray[Any]:
        best = best_choices(policy(observations), self._spec.sizes).reshape(self._actions.shape)
        np.copyto(self._actions, best)
        explores = self._explores[step]
        if explores.any():
            random = self._drawn_actions(observations, self._uniforms[step])
            self._actions[explores] = random[explores]
        return self._actions

    def _drawn_actions(self, observations: NDArray[Any], uniforms: NDArray[np.float64]) -> NDArray[Any]:
        allowed = self._all if self._spec.mask is None else mask_of(self._spec, observations)
        return allowed_choices(allowed, uniforms, self._spec.sizes).reshape(self._actions.shape)


class PartwiseSampler(BehaviorPolicy):
    """Draws each discrete part of an action from its own softmax, and continuous components from a Gaussian.

    The logarithm of an action's probability is the sum over its parts.
    """

    def __init__(self, spec: EnvironmentSpec, environments: int, squash: bool, rng: np.random.Generator) -> None:
        self._slices = slices_of(spec.sizes)
        parts = [replace(spec, actions=ArraySpec((), "int64"), sizes=(n,)) for n in spec.sizes]
        self._samplers = [CategoricalSampler(part, environments, rng) for part in parts]
        self._gaussian = GaussianSampler(spec.continuous_part, environments, squash, rng) if spec.components else None
        self.needs = (*CategoricalSampler.needs, *(GaussianSampler.needs if self._gaussian else ()))
        self._actions = np.zeros((environments, *spec.actions.shape), spec.actions.dtype)
        self._told = np.zeros(environments, np.float32)
        self._sent = self._actions if self._gaussian is None else self._actions.copy()
        self.columns = {"actions": self._sent, LOG_PROBABILITIES: self._told}

    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        """Actions [N, parts and components]."""
        logits = policy(observations)
        self._told[:] = 0
        for number, (sampler, part) in enumerate(zip(self._samplers, self._slices, strict=True)):
            self._actions[:, number] = sampler.draw(logits[:, part])
            self._told += sampler.columns[LOG_PROBABILITIES]
        if self._gaussian is not None:
            count = len(self._samplers)
            self._sent[:, :count] = self._actions[:, :count]
            self._actions[:, count:] = self._gaussian.draw(policy.outputs[Role.MEAN], policy.outputs[Role.LOG_STD])
            self._sent[:, count:] = self._gaussian.columns["actions"]
            self._told += self._gaussian.columns[LOG_PROBABILITIES]
        return self._actions


def mask_of(spec: EnvironmentSpec, observations: NDArray[Any]) -> NDArray[np.bool_]:
    """The mask of legal choices, bool[N, choices], from a policy's observations [N, bytes] or stacks [N, K, bytes]."""
    assert spec.mask is not None
    newest = observations[:, -1] if observations.ndim > 2 else observations
    allowed: NDArray[np.bool_] = views(spec.leaves, newest)[spec.mask.name]
    return allowed


def greedy_actions(spec: EnvironmentSpec, policy: OnnxPolicy, outputs: NDArray[np.float32]) -> NDArray[Any]:
    """The most likely actions, [N, *action], from a policy's last call. outputs: the result of the call."""
    if not spec.sizes:
        return outputs
    best = best_choices(outputs, spec.sizes)
    if spec.components:
        return np.concatenate((best, policy.outputs[Role.ACTIONS]), axis=1, dtype=np.float32)
    return best.reshape(len(best), *spec.actions.shape)
