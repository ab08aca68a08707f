"""`benchmarks.environments.lift:Lift`: a crane and two guides must act differently, although they see the same.

It has PettingZoo's parallel interface, but does not import PettingZoo.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.polynomial import Polynomial
from numpy.typing import NDArray

AGENTS = ("crane", "guide-1", "guide-2")
GROUPS: Mapping[str, tuple[str, ...]] = {"cranes": AGENTS[:1], "guides": AGENTS[1:]}
HOLD, PULL = 0, 1
# Levels of the load, and steps of an episode.
LEVELS, STEPS = 6, 32

Step = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]


class Lift:
    """Three agents lift a load, level by level. All see only its level, as a one-hot vector.

    The load rises if the crane pulls and both guides hold, on even levels. On odd levels the guides pull and the crane
    holds. It stays if all hold. Anything else drops it to level 0. From the highest level it rises to level 0, for the
    next load. Each agent is rewarded with 1 when the load rises. The first level is random.
    """

    metadata: dict[str, Any] = {"name": "lift", "render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self._observed, self._acted = spaces.Box(0.0, 1.0, (LEVELS,), np.float32), spaces.Discrete(2)
        self._rng = np.random.default_rng()
        self._level = self._step = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The same for all agents."""
        return self._observed

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The same for all agents."""
        return self._acted

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._level, self._step = int(self._rng.integers(LEVELS)), 0
        self.agents = list(AGENTS)
        return self._observations(), {agent: {} for agent in AGENTS}

    def step(self, actions: Mapping[str, Any]) -> Step:
        """Act with all agents."""
        pulls = [int(actions[agent]) == PULL for agent in AGENTS]
        rises = pulls == pulls_at(self._level)
        if rises:
            self._level = (self._level + 1) % LEVELS
        elif any(pulls):
            self._level = 0
        self._step += 1
        is_over = self._step >= STEPS
        self.agents = [] if is_over else list(AGENTS)
        return (
            self._observations(),
            dict.fromkeys(AGENTS, float(rises)),
            dict.fromkeys(AGENTS, False),
            dict.fromkeys(AGENTS, is_over),
            {agent: {} for agent in AGENTS},
        )

    def close(self) -> None:
        """Nothing is open."""

    def _observations(self) -> dict[str, NDArray[np.float32]]:
        return {agent: np.eye(LEVELS, dtype=np.float32)[self._level] for agent in AGENTS}


def pulls_at(level: int) -> list[bool]:
    """For each agent whether it must pull for the load to rise from a level."""
    return [(agent in GROUPS["cranes"]) == (level % 2 == 0) for agent in AGENTS]


def best_return() -> float:
    """The team's return if the load rises in each step."""
    return float(STEPS * len(AGENTS))


def best_shared_return() -> float:
    """The highest mean return of the team if all agents act by one policy that does not know its agent.

    Agents that see the same pull with the same probability p, independently of each other. The load rises with
    probability p (1 - p)^2 from an even level, and with p^2 (1 - p) from an odd one. It stays with (1 - p)^3.

    The value of a level with n steps left is the maximum of a polynomial in p. The best p may differ from step to step.
    A memory does not raise this bound, because all agents remember the same.
    """
    return _mean_return((0.0, 1.0))


def random_return() -> float:
    """The team's mean return if each agent pulls in half of all steps."""
    return _mean_return((0.5, 0.5))


def _mean_return(bounds: Sequence[float]) -> float:
    """The highest mean return of the team if the probabilities lie between these bounds."""
    p = Polynomial([0.0, 1.0])
    holds, stays = 1.0 - p, (1.0 - p) ** 3
    values = np.zeros(LEVELS)
    for _ in range(STEPS):
        after = values.copy()
        for level in range(LEVELS):
            rises = p * holds**2 if level % 2 == 0 else p**2 * holds
            value = rises * (len(AGENTS) + after[(level + 1) % LEVELS]) + stays * after[level]
            value = value + (1.0 - rises - stays) * after[0]
            values[level] = _highest(value, bounds)
    return float(values.mean())


def _highest(polynomial: Polynomial, bounds: Sequence[float]) -> float:
    """The maximum of a polynomial between two bounds."""
    low, high = bounds
    turns = [float(root.real) for root in polynomial.deriv().roots() if abs(root.imag) < 1e-9]
    return max(float(polynomial(each)) for each in (low, high, *(turn for turn in turns if low < turn < high)))
