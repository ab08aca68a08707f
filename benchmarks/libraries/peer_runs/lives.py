"""A parallel environment for libraries in which an agent cannot come back: each of its lives is an agent of its own."""

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

ALL = "__all__"
_PETTINGZOO = "pettingzoo/"
_OBSERVATION, _OBSERVATIONS, _MASK = "observation", "observations", "action_mask"


class Lives:
    """PettingZoo's parallel interface in the form of RLlib: dicts by agent, and flags of the whole episode as ALL.

    The second life of an agent `north` is the agent `north#1`. Observations with a mask have the form of RLlib's
    examples of masked actions: `observations` and `action_mask`, both of float32.

    RLlib ends an episode when the lives of all agents that it knows end with one step, although others begin with it.
    One of the lives then ends a step later, with the same observation, without a reward, and its action has no effect.

    lives: the most lives of an agent in an episode. names: all agents.
    """

    def __init__(self, environment: Any, lives: int) -> None:
        self._environment = environment
        self._lives: dict[str, int] = {}
        # The name, the last observation and the flags of a life that ends a step later.
        self._late: tuple[str, Any, bool, bool] | None = None
        self.names = [_name(agent, life) for agent in environment.possible_agents for life in range(lives)]
        first = environment.possible_agents[0]
        self.observations = _space(environment.observation_space(first))
        self.actions = environment.action_space(first)

    @property
    def has_masks(self) -> bool:
        """Whether observations have a mask."""
        return isinstance(self.observations, spaces.Dict)

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode. Returns observations and infos."""
        observations, _ = self._environment.reset(seed=seed)
        self._lives, self._late = dict.fromkeys(observations, 0), None
        found = {self._now(agent): _seen(each) for agent, each in observations.items()}
        return found, {name: {} for name in found}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Act. Returns observations, rewards, terminations, truncations and infos."""
        acting = list(self._environment.agents)
        taken = {agent: actions[self._now(agent)] for agent in acting}
        observations, rewards, terminated, truncated, _ = self._environment.step(taken)
        found = {self._now(agent): _seen(observations[agent]) for agent in acting}
        flags = [{self._now(agent): bool(each[agent]) for agent in acting} for each in (terminated, truncated)]
        own_rewards = {self._now(agent): float(rewards[agent]) for agent in acting}
        late, self._late = self._late, None
        if self._environment.agents and not {*acting} & {*self._environment.agents}:
            name = self._now(acting[0])
            self._late = (name, found[name], *(each[name] for each in flags))
            flags[0][name] = flags[1][name] = False
        if late is not None:
            name, seen, *ends = late
            found[name], flags[0][name], flags[1][name], own_rewards[name] = seen, *ends, 0.0
        for agent in self._environment.agents:
            if agent not in acting:
                self._lives[agent] = self._lives.get(agent, -1) + 1
                found[self._now(agent)] = _seen(observations[agent])
        is_over = not self._environment.agents
        at_limit = any(flags[1].values())
        flags[0][ALL], flags[1][ALL] = is_over and not at_limit, is_over and at_limit
        return found, own_rewards, *flags, {name: {} for name in found}

    def _now(self, agent: str) -> str:
        return _name(agent, self._lives[agent])


def make(environment: str) -> Any:
    """The environment of an id such as pettingzoo/mpe2/simple_spread_v3, or MODULE:FUNCTION."""
    if environment.startswith(_PETTINGZOO):
        module, function = environment.removeprefix(_PETTINGZOO).replace("/", "."), "parallel_env"
    else:
        module, _, function = environment.partition(":")
    return getattr(importlib.import_module(module), function)()


def _name(agent: str, life: int) -> str:
    return f"{agent}#{life}" if life else agent


def _space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    if not isinstance(space, spaces.Dict):
        return space
    mask = spaces.Box(0.0, 1.0, space[_MASK].shape, np.float32)
    return spaces.Dict({_OBSERVATIONS: space[_OBSERVATION], _MASK: mask})


def _seen(observation: Any) -> Any:
    if not isinstance(observation, Mapping):
        return np.asarray(observation, np.float32)
    return {_OBSERVATIONS: observation[_OBSERVATION], _MASK: np.asarray(observation[_MASK], np.float32)}
