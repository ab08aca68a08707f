"""Environments with several agents, in PettingZoo's parallel interface but without PettingZoo."""

import importlib
import secrets
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Dicts = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]
AGENTS = ("red", "green", "blue")


class Team:
    """Agents that all act until a time limit. Others override `observation`, `reward` and `info`."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    names: tuple[str, ...] = AGENTS
    observed: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (4,), np.float32)
    acted: spaces.Space[Any] = spaces.Discrete(4)
    steps_of_episode = 10

    def __init__(self, render_mode: str | None = None) -> None:
        self.possible_agents = list(self.names)
        self.agents: list[str] = []
        self.rng = np.random.default_rng()
        self.step_count = 0
        self.closed = False

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observed

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.acted

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.step_count = 0
        self.agents = self.first_agents()
        self.begin()
        return {each: self.observation(each) for each in self.agents}, {each: self.info(each) for each in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Dicts:
        acting = self.agents
        assert set(actions) == set(acting)
        rewards = {each: self.reward(each, actions[each]) for each in acting}
        self.step_count += 1
        terminated = {each: self.is_terminated(each) for each in acting}
        truncated = {each: self.step_count >= self.steps_of_episode and not terminated[each] for each in acting}
        self.begin()
        self.agents = [each for each in acting if not (terminated[each] or truncated[each])] + self.newcomers()
        told = [*acting, *(each for each in self.agents if each not in acting)]
        infos = {each: self.info(each) for each in told}
        return {each: self.observation(each) for each in told}, rewards, terminated, truncated, infos

    def render(self) -> NDArray[np.uint8]:
        return np.full((5, 7, 3), self.step_count, np.uint8)

    def close(self) -> None:
        self.closed = True

    def first_agents(self) -> list[str]:
        return list(self.possible_agents)

    def newcomers(self) -> list[str]:
        return []

    def begin(self) -> None:
        """Draw what the next observations show."""

    def is_terminated(self, agent: str) -> bool:
        return False

    def observation(self, agent: str) -> Any:
        return np.zeros(4, np.float32)

    def reward(self, agent: str, action: Any) -> float:
        return 1.0

    def info(self, agent: str) -> dict[str, Any]:
        return {}


class Targets(Team):
    """Each agent sees a one-hot target and is rewarded for its index. Green leaves early, and comes back at times.

    The best return of an episode is the number of steps of all agents, `BEST`.
    """

    def begin(self) -> None:
        self.targets = {each: int(self.rng.integers(4)) for each in self.names}

    def is_terminated(self, agent: str) -> bool:
        return agent == "green" and self.step_count == 4

    def newcomers(self) -> list[str]:
        return ["green"] if self.step_count == 7 else []

    def observation(self, agent: str) -> Any:
        return np.eye(4, dtype=np.float32)[self.targets[agent]]

    def reward(self, agent: str, action: Any) -> float:
        return float(action == self.targets[agent])


BEST = 10 + 7 + 10


class WithState(Targets):
    """The state has the targets of all agents. `state_space` is missing."""

    def state(self) -> NDArray[np.float64]:
        return np.array([float(self.targets[each]) for each in self.names])


class WithPicture(WithState):
    """The state is a picture, and the environment names its space."""

    state_space = spaces.Box(0, 255, (8, 9, 3), np.uint8)

    def state(self) -> NDArray[Any]:
        return np.full((8, 9, 3), self.step_count, np.uint8)


class ContinuousTargets(Targets):
    """Each agent is rewarded for an action near its target, a number from -1 to 1."""

    observed: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,), np.float32)
    acted: spaces.Space[Any] = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def observation(self, agent: str) -> Any:
        return np.array([self.targets[agent] / 2 - 0.75], np.float32)

    def reward(self, agent: str, action: Any) -> float:
        return 1.0 - abs(float(action[0]) - (self.targets[agent] / 2 - 0.75))


class OwnNumber(Team):
    """Each agent is rewarded for its own number, which only its identity tells: without it, at most a third."""

    def reward(self, agent: str, action: Any) -> float:
        return float(action == self.names.index(agent))


class Roles(Targets):
    """All agents see one target from 0 to 3. Red must choose it, green and blue must choose the next number.

    Observations are equal, so a shared policy without identity chooses one distribution p for all agents. Its reward
    per step is p(target) + 2 p(target + 1), which is at most 2. Its best return is therefore `SHARED`, of ten steps.
    Policies by group reach `BEST_OF_ROLES`: a reward of 3 per step.
    """

    shift = 1

    def begin(self) -> None:
        self.targets = dict.fromkeys(self.names, int(self.rng.integers(4)))

    def is_terminated(self, agent: str) -> bool:
        return False

    def newcomers(self) -> list[str]:
        return []

    def reward(self, agent: str, action: Any) -> float:
        wanted = self.targets[agent] + (agent != "red") * self.shift
        return float(action == wanted % 4)


SHARED, BEST_OF_ROLES = 20, 30


class ContinuousRoles(Roles):
    """All agents see a number t from -1 to 1. Red must choose t, green and blue must choose -t.

    A shared action a has a reward of 3 - |a - t| - 2 |a + t| per step. It is best at a = -t: 3 - 2 |t|. The four values
    of |t| have a mean of 1/2, so the best return of ten steps is `SHARED`. Policies by group reach `BEST_OF_ROLES`.
    """

    observed: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,), np.float32)
    acted: spaces.Space[Any] = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def observation(self, agent: str) -> Any:
        return np.array([self.targets[agent] / 2 - 0.75], np.float32)

    def reward(self, agent: str, action: Any) -> float:
        target = self.targets[agent] / 2 - 0.75
        return 1.0 - abs(float(action[0]) - (target if agent == "red" else -target))


class NamedGroup(Team):
    """Observations have a key that the run may add for groups."""

    observed: spaces.Space[Any] = spaces.Dict({"group": spaces.Box(0.0, 1.0, (2,), np.float32)})

    def observation(self, agent: str) -> Any:
        return {"group": np.zeros(2, np.float32)}


class Masked(Team):
    """Each agent may choose only two of four actions, and is rewarded for the higher one."""

    observed: spaces.Space[Any] = spaces.Dict(
        {"observation": spaces.Box(0.0, 1.0, (2,), np.float32), "action_mask": spaces.MultiBinary(4)}
    )

    def begin(self) -> None:
        self.lowest = {each: int(self.rng.integers(3)) for each in self.names}

    def mask(self, agent: str) -> NDArray[np.int8]:
        mask = np.zeros(4, np.int8)
        if agent in self.agents:
            mask[self.lowest[agent] : self.lowest[agent] + 2] = 1
        return mask

    def observation(self, agent: str) -> Any:
        return {"observation": np.ones(2, np.float32), "action_mask": self.mask(agent)}

    def reward(self, agent: str, action: Any) -> float:
        assert self.mask(agent)[action]
        return float(action == self.lowest[agent] + 1)


class MaskedByInfo(Masked):
    """The mask is in the info."""

    observed: spaces.Space[Any] = spaces.Box(0.0, 1.0, (2,), np.float32)

    def observation(self, agent: str) -> Any:
        return np.ones(2, np.float32)

    def info(self, agent: str) -> dict[str, Any]:
        return {"action_mask": self.mask(agent)}


class Pictures(Team):
    """Agents see pictures."""

    observed: spaces.Space[Any] = spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def observation(self, agent: str) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


class NamedTeam(Team):
    """Observations have a key that the run may add."""

    observed: spaces.Space[Any] = spaces.Dict({"team": spaces.Box(0.0, 1.0, (2,), np.float32)})

    def observation(self, agent: str) -> Any:
        return {"team": np.zeros(2, np.float32)}


class OtherSpaces(Team):
    """Blue sees more than the others."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1.0, 1.0, (6 if agent == "blue" else 4,), np.float32)


class OtherActions(Team):
    """Blue has more actions than the others."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(5 if agent == "blue" else 4)


class Changing(Team):
    """From the second episode on it has another agent."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.step_count:
            self.possible_agents = ["red", "green", "yellow"]
        return super().reset(seed, options)


class Turns(Team):
    """An AEC environment: its agents act in turns."""

    def agent_iter(self) -> Any:
        return iter(self.agents)


def in_turns() -> Any:
    """An environment of MPE2 whose agents act in turns."""
    return importlib.import_module("mpe2.simple_spread_v3").env()


def no_longer_in_turns() -> Any:
    """The same, converted as the error says."""
    return importlib.import_module("pettingzoo.utils").aec_to_parallel(in_turns())


class Failing(Team):
    """Action 2 of green breaks it, action 3 of green is rewarded with NaN."""

    def step(self, actions: Mapping[str, Any]) -> Dicts:
        if actions.get("green") == 2:
            raise RuntimeError("the simulator is gone")
        return super().step(actions)

    def reward(self, agent: str, action: Any) -> float:
        return float("nan") if agent == "green" and action == 3 else 1.0


class Silent(Team):
    """Does not return green's reward."""

    def step(self, actions: Mapping[str, Any]) -> Dicts:
        taken = super().step(actions)
        del taken[1]["green"]
        return taken


_IDENTITY_BITS, _EPISODE_BITS, _STEP_BITS, _AGENT_BITS = 20, 16, 5, 2
_SCALES = np.array([2.0**_AGENT_BITS, 2.0**_IDENTITY_BITS, 2.0**_EPISODE_BITS, 2.0**_STEP_BITS])
CODED_STEPS = 12
# First and last action of each part of an episode in which an agent takes part, and whether its end is terminal. The
# next part begins at least one step later.
LIVES: dict[str, tuple[tuple[int, int, bool], ...]] = {
    "red": ((0, 11, True),),
    "green": ((0, 3, True), (7, 11, False)),
    "blue": ((2, 8, False), (10, 11, True)),
}


class Coded(Team):
    """Observations say agent, instance, episode and step. Agents leave and come back as `LIVES` says.

    All numbers are multiples of a power of two, so that float32 holds them exactly. The identity of an instance is
    random, because a restarted actor must not repeat it.
    """

    observed: spaces.Space[Any] = spaces.Box(0.0, 1.0, (4,), np.float32)
    steps_of_episode = CODED_STEPS

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.identity, self.episode = secrets.randbits(_IDENTITY_BITS), -1

    def first_agents(self) -> list[str]:
        self.episode += 1
        return [each for each in self.names if LIVES[each][0][0] == 0]

    def newcomers(self) -> list[str]:
        if self.step_count >= CODED_STEPS:
            return []
        return [each for each in self.names if any(first == self.step_count > 0 for first, _, _ in LIVES[each])]

    def step(self, actions: Mapping[str, Any]) -> Dicts:
        acting = list(self.agents)
        _, rewards, _, _, infos = super().step(actions)
        ends = {each: [end for _, last, end in LIVES[each] if last + 1 == self.step_count] for each in acting}
        terminated = {each: bool(end) and end[0] for each, end in ends.items()}
        truncated = {each: bool(end) and not end[0] for each, end in ends.items()}
        self.agents = [each for each in acting if not ends[each]] + self.newcomers()
        told = [*acting, *self.newcomers()]
        return {each: self.observation(each) for each in told}, rewards, terminated, truncated, infos

    def observation(self, agent: str) -> Any:
        code = np.array([self.names.index(agent), self.identity, self.episode, self.step_count])
        return (code / _SCALES).astype(np.float32)

    def reward(self, agent: str, action: Any) -> float:
        return coded_reward(self.names.index(agent), self.step_count)


def coded_reward(agent: int, step: int) -> float:
    """The reward of an agent for its action at a step of `Coded`."""
    return (agent + 1) / 4 + step / 64


def codes_of(observations: NDArray[Any]) -> NDArray[np.int64]:
    """Agent, instance, episode and step of observations float32[..., 4] of `Coded`."""
    codes: NDArray[np.int64] = np.rint(observations.astype(np.float64) * _SCALES).astype(np.int64)
    return codes


def life_of(agent: int, step: int) -> tuple[int, int, bool] | None:
    """The part of an episode in which an agent acts at a step; None if it is absent."""
    return next((life for life in LIVES[AGENTS[agent]] if life[0] <= step <= life[1]), None)


class Alone(gymnasium.Env[Any, Any]):
    """A single agent, for settings that need several."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(4)
