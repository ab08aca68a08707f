"""Exploration in batches whose rows change from step to step. Each row has the rate of its own environment."""

import math
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actor_service.acting.behavior import BehaviorPolicy
from actor_service.acting.behaviors import behavior_policy
from actor_service.acting.parts import greedy_actions, mask_of
from actor_service.policies.policy import OnnxPolicy
from actorq.domain.columns import GREEDY_ACTIONS
from actorq.domain.signature import Role
from actorq.domain.spaces import EnvironmentSpec, allowed_choices
from actorq.domain.status import Exploration

Columns = Mapping[str, NDArray[Any]]


class RowExploration(Protocol):
    """Chooses the actions of k environments in a batch of B >= k rows.

    If segments hold other actions than the environments get, "actions" is one of the columns. See `BehaviorPolicy`.
    """

    @property
    def needs(self) -> Collection[str]:
        """The policy outputs that it reads."""
        ...

    @property
    def columns(self) -> Collection[str]:
        """The names of its columns."""
        ...

    def __call__(
        self, policy: OnnxPolicy, observations: NDArray[Any], places: NDArray[np.int64]
    ) -> tuple[NDArray[Any], Columns]:
        """The environments' actions [k, *action] and the columns, [k, ...] each. The next call overwrites them.

        observations: [B, ...]; the rows from k on are copies. places: int64[k], the number of each environment.
        """
        ...


def row_exploration(
    spec: EnvironmentSpec, exploration: Exploration, rng: np.random.Generator, wanted: Collection[str]
) -> RowExploration:
    """The exploration of a run. wanted: names of the run's further columns.

    Raises UserError when this actor does not know the run's sampler.
    """
    if exploration.sampling:
        return _Sampled(spec, exploration, rng)
    return _Discrete(spec, exploration, rng) if spec.sizes else _Continuous(spec, exploration, rng, wanted)


class _Sampled:
    """Draws all actions from the policy's distribution. Rows need no rates, so each size has its own sampler."""

    def __init__(self, spec: EnvironmentSpec, exploration: Exploration, rng: np.random.Generator) -> None:
        self._spec, self._exploration, self._rng = spec, exploration, rng
        self._behaviors: dict[int, BehaviorPolicy] = {}
        first = self._of_size(1)
        self.needs, self.columns = first.needs, tuple(first.columns)

    def _of_size(self, rows: int) -> BehaviorPolicy:
        if rows not in self._behaviors:
            (own,) = self._rng.spawn(1)
            self._behaviors[rows] = behavior_policy(self._spec, self._exploration, rows, own)
        return self._behaviors[rows]

    def __call__(
        self, policy: OnnxPolicy, observations: NDArray[Any], places: NDArray[np.int64]
    ) -> tuple[NDArray[Any], Columns]:
        behavior, count = self._of_size(len(observations)), len(places)
        actions = behavior(policy, observations)[:count]
        return actions, {name: values[:count] for name, values in behavior.columns.items()}


class _Noisy:
    """The common part of exploration with rates: uniformly random actions at first.

    The random steps of the run's environments are one budget of all simulators, because simulators come and go.
    """

    needs: Collection[str] = ()
    columns: Collection[str] = ()

    def __init__(
        self, spec: EnvironmentSpec, exploration: Exploration, rates: tuple[float, ...], rng: np.random.Generator
    ) -> None:
        self._spec, self._rng = spec, rng
        self._rates = np.asarray(rates)
        self._sizes = np.asarray(spec.sizes)
        self._random_steps = exploration.random_steps * len(rates)

    def _takes_random(self, policy: OnnxPolicy, observations: NDArray[Any], count: int) -> bool:
        """Whether this step is uniformly random. Counts it."""
        if self._random_steps <= 0:
            return False
        self._random_steps -= count
        if policy.state_size:
            # The state goes on, as if the policy had acted.
            policy(observations)
        return True

    def _rates_of(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        rates: NDArray[np.float64] = self._rates[places % len(self._rates)]
        return rates


class _Discrete(_Noisy):
    """Chooses uniformly random legal actions in environment i with probability epsilon_i, else the best ones."""

    def __init__(self, spec: EnvironmentSpec, exploration: Exploration, rng: np.random.Generator) -> None:
        super().__init__(spec, exploration, exploration.epsilons, rng)

    def __call__(
        self, policy: OnnxPolicy, observations: NDArray[Any], places: NDArray[np.int64]
    ) -> tuple[NDArray[Any], Columns]:
        count = len(places)
        if self._takes_random(policy, observations, count):
            return self._random(observations[:count]), {}
        actions = greedy_actions(self._spec, policy, policy(observations))[:count]
        explores = self._rng.random(count) < self._rates_of(places)
        if explores.any():
            actions[explores] = self._random(observations[:count])[explores]
        return actions, {}

    def _random(self, observations: NDArray[Any]) -> NDArray[Any]:
        spec, count = self._spec, len(observations)
        uniforms = self._rng.random((count, len(spec.sizes)))
        if spec.mask is None:
            chosen: NDArray[np.int64] = (uniforms * self._sizes).astype(np.int64)
        else:
            chosen = allowed_choices(mask_of(spec, observations), uniforms, spec.sizes)
        return chosen.reshape(count, *spec.actions.shape)


class _Continuous(_Noisy):
    """Adds noise to continuous actions and clips them to their bounds, as `ContinuousNoise` does."""

    def __init__(
        self, spec: EnvironmentSpec, exploration: Exploration, rng: np.random.Generator, wanted: Collection[str]
    ) -> None:
        super().__init__(spec, exploration, exploration.noise, rng)
        self._sends_greedy = GREEDY_ACTIONS in wanted
        self.needs = (Role.GREEDY_ACTIONS,) if self._sends_greedy else ()
        self.columns = (GREEDY_ACTIONS,) if self._sends_greedy else ()
        self._low, self._high = spec.actions.bounds()
        self._correlation = exploration.correlation
        self._last = np.zeros((0, *spec.actions.shape), np.float32)

    def __call__(
        self, policy: OnnxPolicy, observations: NDArray[Any], places: NDArray[np.int64]
    ) -> tuple[NDArray[Any], Columns]:
        count = len(places)
        shape = count, *self._spec.actions.shape
        if self._takes_random(policy, observations, count):
            actions = self._rng.uniform(self._low, self._high, shape).astype(np.float32)
            return actions, {GREEDY_ACTIONS: actions} if self._sends_greedy else {}
        noise = self._noise(places)
        if policy.takes_noise:
            full = np.zeros((len(observations), *shape[1:]), np.float32)
            full[:count] = noise
            actions = policy(observations, full)[:count]
        else:
            halves = self._rates_of(places).astype(np.float32)[:, None] * (self._high - self._low) / 2
            actions = policy(observations)[:count] + (noise * halves).astype(np.float32)
        further = {}
        if self._sends_greedy:
            further[GREEDY_ACTIONS] = np.clip(policy.outputs[Role.GREEDY_ACTIONS][:count], self._low, self._high)
        return np.clip(actions, self._low, self._high), further

    def _noise(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Standard normal noise, correlated with the last noise of the same environment if the run asks for it."""
        new = self._rng.standard_normal((len(places), *self._spec.actions.shape), np.float32)
        if not self._correlation:
            return new
        if (missing := int(places.max()) + 1 - len(self._last)) > 0:
            more = self._rng.standard_normal((missing, *self._last.shape[1:]), np.float32)
            self._last = np.concatenate((self._last, more))
        mixed = self._correlation * self._last[places] + math.sqrt(1 - self._correlation**2) * new
        self._last[places] = mixed
        return self._last[places]
