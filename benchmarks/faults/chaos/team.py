"""An environment with several agents that leave and come back, whose observations say whose step they are.

It has PettingZoo's parallel interface, but does not import PettingZoo.
"""

import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from benchmarks.faults.chaos.environment import IDENTITY_BITS, coded, counters_of

AGENTS = ("red", "green", "blue")
# With policies by group: the groups in the order of their bits.
GROUPS = {"first": ["red"], "others": ["green", "blue"]}
STEPS = 24
# Observations of an episode: one more than steps.
_PLACES = STEPS + 1
Step = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]


class Life(NamedTuple):
    """A part of an episode in which an agent takes part: first and last step, and whether its end is terminal."""

    first: int
    last: int
    is_terminal: bool


# The next life begins at least one step after the last one's end. Red takes part all the time.
LIVES = {
    "red": (Life(0, 23, True),),
    "green": (Life(0, 7, True), Life(12, 23, False)),
    "blue": (Life(3, 9, False), Life(14, 17, True), Life(20, 23, True)),
}


class CodedTeam:
    """Rewards each agent for the action that the last number of its observation names. Agents follow `LIVES`.

    `benchmarks.faults.chaos.environment.codes_of` reads the other numbers, and `places_of` the place of the code.
    """

    metadata: dict[str, Any] = {"name": "coded_team", "render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self._observed, self._acted = spaces.Box(0.0, 1.0, (4,), np.float32), spaces.Discrete(2)
        # Not from the run's seed, because a restarted actor must not repeat the identity.
        self._identity, self._episode, self._step = secrets.randbits(IDENTITY_BITS), -1, 0
        self._rng = np.random.default_rng()
        self._wanted = dict.fromkeys(AGENTS, 0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The same for all agents."""
        return self._observed

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The same for all agents."""
        return self._acted

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin the next episode."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._episode, self._step = self._episode + 1, 0
        self.agents = self._beginning()
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Step:
        """Act with all agents that take part."""
        acting = self.agents
        rewards = {agent: float(int(actions[agent]) == self._wanted[agent]) for agent in acting}
        self._step += 1
        ends = {agent: end_of(AGENTS.index(agent), self._step - 1) for agent in acting}
        terminated = {agent: ends[agent] is True for agent in acting}
        truncated = {agent: ends[agent] is False for agent in acting}
        beginning = self._beginning()
        self.agents = [agent for agent in AGENTS if agent in beginning or ends.get(agent, True) is None]
        seen = [*acting, *beginning]
        return self._observations(seen), rewards, terminated, truncated, {agent: {} for agent in seen}

    def close(self) -> None:
        """Nothing is open."""

    def _beginning(self) -> list[str]:
        return [agent for agent in AGENTS if any(life.first == self._step for life in LIVES[agent])]

    def _observations(self, agents: list[str]) -> dict[str, NDArray[np.float32]]:
        found = {}
        for agent in agents:
            self._wanted[agent] = int(self._rng.integers(2))
            place = (self._episode * _PLACES + self._step) * len(AGENTS) + AGENTS.index(agent)
            found[agent] = coded(self._identity, place, self._wanted[agent])
        return found


class Places(NamedTuple):
    """Whose observation it is: agent, identity of the environment, its episode, and the step; int64[...] each."""

    agents: NDArray[np.int64]
    identities: NDArray[np.int64]
    episodes: NDArray[np.int64]
    steps: NDArray[np.int64]


def places_of(codes: NDArray[np.uint64]) -> Places:
    """The places of codes uint64[...]."""
    identities, counters = counters_of(codes)
    rest, agents = np.divmod(counters, len(AGENTS))
    episodes, steps = np.divmod(rest, _PLACES)
    return Places(agents, identities, episodes, steps)


def acting_at(step: int) -> list[int]:
    """The agents that act at a step of an episode."""
    return [
        number for number, agent in enumerate(AGENTS) if any(life.first <= step <= life.last for life in LIVES[agent])
    ]


def end_of(agent: int, step: int) -> bool | None:
    """Whether the end of an agent's life after this step is terminal; None if the life continues."""
    return next((life.is_terminal for life in LIVES[AGENTS[agent]] if life.last == step), None)
