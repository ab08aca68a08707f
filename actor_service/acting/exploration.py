"""Exploration: epsilon-greedy actions or action noise, with a rate for each environment."""

import math
from abc import abstractmethod
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.acting.behavior import BehaviorPolicy
from actor_service.policies.policy import OnnxPolicy
from actorq.domain.columns import GREEDY_ACTIONS
from actorq.domain.signature import Role
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration

# Number of steps whose random numbers are drawn at once. One large draw costs as much as the draw for one step.
STEPS_DRAWN = 128


class NoisyBehavior(BehaviorPolicy):
    """Chooses uniformly random actions at first, then the policy's actions with noise.

    random_steps: number of steps of each environment with uniformly random actions.
    """

    def __init__(self, spec: EnvironmentSpec, environments: int, random_steps: int, rng: np.random.Generator) -> None:
        self._actions = np.zeros((environments, *spec.actions.shape), spec.actions.dtype)
        self._random_steps = random_steps
        self._rng = rng
        self._drawn = STEPS_DRAWN

    def __call__(self, policy: OnnxPolicy, observations: NDArray[Any]) -> NDArray[Any]:
        """Actions [N, *action]. The next call overwrites the array."""
        if self._random_steps > 0:
            self._random_steps -= 1
            if policy.state_size:
                # The state goes on, as if the policy had acted.
                policy(observations)
            return self._random_actions(observations)
        self._drawn += 1
        if self._drawn >= STEPS_DRAWN:
            self._draw(policy)
            self._drawn = 0
        return self._explore(policy, observations, self._drawn)

    @abstractmethod
    def _random_actions(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Uniformly random actions [N, *action]."""

    @abstractmethod
    def _draw(self, policy: OnnxPolicy) -> None:
        """Draw the random numbers of the next steps."""

    @abstractmethod
    def _explore(self, policy: OnnxPolicy, observations: NDArray[Any], step: int) -> NDArray[Any]:
        """The policy's actions with this step's random numbers applied."""


class EpsilonGreedy(NoisyBehavior):
    """Chooses a uniformly random action in environment i with probability epsilon_i, otherwise the action of highest
    value.
    """

    def __init__(self, spec: EnvironmentSpec, exploration: Exploration, rng: np.random.Generator) -> None:
        super().__init__(spec, len(exploration.epsilons), exploration.random_steps, rng)
        self._epsilons = np.asarray(exploration.epsilons)
        self._count = spec.acting_size

    def _random_actions(self, observations: NDArray[Any]) -> NDArray[Any]:
        return self._rng.integers(self._count, size=len(self._epsilons))

    def _draw(self, policy: OnnxPolicy) -> None:
        shape = (STEPS_DRAWN, len(self._epsilons))
        self._explores = self._rng.random(shape) < self._epsilons
        self._random = self._rng.integers(self._count, size=shape)

    def _explore(self, policy: OnnxPolicy, observations: NDArray[Any], step: int) -> NDArray[Any]:
        policy(observations).argmax(axis=1, out=self._actions)
        np.copyto(self._actions, self._random[step], where=self._explores[step])
        return self._actions


class ContinuousNoise(NoisyBehavior):
    """Adds noise to continuous actions and clips them to their bounds.

    A deterministic policy (D4PG, TD3) gets Gaussian noise. Its standard deviation is noise_i, in units of half of each
    component's range. A policy with a noise input (SAC) gets standard normal noise there. If the run needs them, the
    columns have the clipped actions without noise.

    With correlation c, the noise of a step is c times the previous noise plus sqrt(1 - c^2) times new noise. This is an
    Ornstein-Uhlenbeck process at whole steps (as in DDPG, arXiv 1509.02971). The distribution of the noise is the same
    at each step.
    """

    def __init__(
        self, spec: EnvironmentSpec, exploration: Exploration, rng: np.random.Generator, wanted: Collection[str]
    ) -> None:
        super().__init__(spec, len(exploration.noise), exploration.random_steps, rng)
        self._greedy = np.zeros_like(self._actions) if GREEDY_ACTIONS in wanted else None
        self.columns = {} if self._greedy is None else {GREEDY_ACTIONS: self._greedy}
        self.needs = () if self._greedy is None else (Role.GREEDY_ACTIONS,)
        self._low, self._high = spec.actions.bounds()
        self._halves = np.asarray(exploration.noise, np.float32)[:, None] * (self._high - self._low) / 2
        self._noise = np.zeros((0, *self._actions.shape), np.float32)
        self._mixing = _mixing(exploration.correlation) if exploration.correlation else None

    def _random_actions(self, observations: NDArray[Any]) -> NDArray[Any]:
        actions = self._rng.uniform(self._low, self._high, self._actions.shape).astype(np.float32)
        if self._greedy is not None:
            self._greedy[:] = actions
        return actions

    def _draw(self, policy: OnnxPolicy) -> None:
        shape = self._actions.shape
        noise = self._rng.standard_normal((STEPS_DRAWN, *shape), np.float32)
        if self._mixing is not None:
            before = self._noise[-1] if len(self._noise) else self._rng.standard_normal(shape, np.float32)
            noise = np.tensordot(self._mixing, np.concatenate((before[None], noise)), axes=1)
        self._noise = noise

    def _explore(self, policy: OnnxPolicy, observations: NDArray[Any], step: int) -> NDArray[Any]:
        noise = self._noise[step]
        if policy.takes_noise:
            actions = policy(observations, noise)
        else:
            np.multiply(noise, self._halves, out=self._actions)
            actions = np.add(self._actions, policy(observations), out=self._actions)
        if self._greedy is not None:
            self._within_bounds(policy.outputs[Role.GREEDY_ACTIONS], self._greedy)
        return self._within_bounds(actions, self._actions)

    def _within_bounds(self, actions: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
        np.maximum(actions, self._low, out=out)
        np.minimum(out, self._high, out=out)
        return out


def _mixing(correlation: float) -> NDArray[np.float32]:
    """The matrix that makes correlated noise from the last step's noise and the new noise of each step."""
    steps = np.arange(STEPS_DRAWN)
    powers = np.tril(correlation ** np.abs(steps[:, None] - steps))
    new = math.sqrt(1 - correlation**2) * powers
    return np.column_stack((correlation ** (steps + 1), new)).astype(np.float32)
