"""`benchmarks.environments.doors:Doors`: agents that choose among open doors, leave, and come back.

It has PettingZoo's parallel interface, but does not import PettingZoo.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

AGENTS = ("north", "east", "south", "west")
# Doors of each agent, and how many of them are open.
DOORS, OPEN = 10, 4
# Steps of an episode, of an agent's air, and of its absence.
STEPS, AIR, AWAY = 60, 12, 4
# The most lives of an agent in an episode.
LIVES = STEPS // (1 + AWAY) + 1
# The agents begin with different amounts of air, so that they do not all leave at once.
_STAGGER = 2

Observation = dict[str, NDArray[Any]]
Step = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]


class Doors:
    """Each agent is rewarded with 1 for the right door, and leaves after a wrong one.

    An agent sees two numbers and its air, and its mask has its open doors. The right door is the first open one from
    the sum of the numbers on, modulo `DOORS`. Numbers and open doors are new in each step, and differ between agents.

    An agent also leaves when its air is used up. It comes back with new air after `AWAY` steps. Both ends are terminal.
    The episode ends after `STEPS` steps, or when no agent is left.
    """

    metadata: dict[str, Any] = {"name": "doors", "render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self._observed = spaces.Dict(
            {
                "observation": spaces.Box(0.0, 1.0, (2 * DOORS + 1,), np.float32),
                "action_mask": spaces.MultiBinary(DOORS),
            }
        )
        self._acted = spaces.Discrete(DOORS)
        self._rng = np.random.default_rng()
        self._step = 0
        self._air: dict[str, int] = {}
        self._numbers: dict[str, tuple[int, int]] = {}
        self._masks: dict[str, NDArray[np.int8]] = {}
        # The step in which an absent agent comes back.
        self._back: dict[str, int] = {}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The same for all agents."""
        return self._observed

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The same for all agents."""
        return self._acted

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode with all agents."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._step, self._back = 0, {}
        self.agents = list(AGENTS)
        self._air = {agent: first_air(number) for number, agent in enumerate(AGENTS)}
        self._draw()
        return {agent: self._observation(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Step:
        """Open a door with each agent. Raises ValueError for a closed door."""
        acting, rewards = self.agents, {}
        for agent in acting:
            door, mask = int(actions[agent]), self._masks[agent]
            if not mask[door]:
                raise ValueError(f"door {door} of {agent} is closed: open are {np.flatnonzero(mask).tolist()}")
            rewards[agent] = float(door == right_door(self._numbers[agent], mask))
            self._air[agent] -= 1
        self._step += 1
        terminated = {agent: not rewards[agent] or not self._air[agent] for agent in acting}
        is_over = self._step >= STEPS
        truncated = {agent: is_over and not terminated[agent] for agent in acting}
        self._back |= {agent: self._step + AWAY for agent in acting if terminated[agent]}
        returning = [] if is_over else [agent for agent, step in self._back.items() if step == self._step]
        for agent in returning:
            del self._back[agent]
            self._air[agent] = AIR
        staying = [agent for agent in acting if not (terminated[agent] or truncated[agent])]
        self.agents = sorted([*staying, *returning], key=AGENTS.index)
        self._draw()
        told = [*acting, *returning]
        return (
            {agent: self._observation(agent) for agent in told},
            rewards,
            terminated,
            truncated,
            {agent: {} for agent in told},
        )

    def close(self) -> None:
        """Nothing is open."""

    def _draw(self) -> None:
        """Draw the numbers and the open doors of all agents."""
        numbers = self._rng.integers(DOORS, size=(len(AGENTS), 2)).tolist()
        ranks = self._rng.random((len(AGENTS), DOORS)).argsort(axis=1).argsort(axis=1)
        self._numbers = {agent: (each[0], each[1]) for agent, each in zip(AGENTS, numbers, strict=True)}
        self._masks = dict(zip(AGENTS, (ranks < OPEN).astype(np.int8), strict=True))

    def _observation(self, agent: str) -> Observation:
        seen = np.zeros(2 * DOORS + 1, np.float32)
        first, second = self._numbers[agent]
        seen[first] = seen[DOORS + second] = 1.0
        seen[-1] = self._air[agent] / AIR
        return {"observation": seen, "action_mask": self._masks[agent]}


def first_air(agent: int) -> int:
    """The air of an agent at the start of an episode. agent: its index."""
    return AIR - _STAGGER * agent


def right_door(numbers: tuple[int, int], mask: NDArray[Any]) -> int:
    """The first open door from the sum of the numbers on, int8[DOORS] with 1 for an open door."""
    doors = (sum(numbers) + np.arange(DOORS)) % DOORS
    return int(doors[mask[doors].argmax()])


def best_return() -> int:
    """The return of a team that never chooses a wrong door: the number of steps in which its agents act."""
    found = 0
    for number in range(len(AGENTS)):
        step, air = 0, first_air(number)
        while step < STEPS:
            found += min(air, STEPS - step)
            step += air + AWAY
            air = AIR
    return found
