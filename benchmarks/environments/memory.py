"""Environments that show only a part of their state, so that a policy must remember earlier observations.

`benchmarks.environments.memory:CartPoleWithoutVelocities-v1` and `...:PendulumWithoutVelocity-v1` show only positions.
`...:Recall-v0` shows a symbol in the first step, and asks for it `DELAY` steps later.
"""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

# Steps from the symbol to the question, and the number of symbols.
DELAY, SYMBOLS = 50, 4
# The components of the observations that are no velocities.
POSITIONS = {"CartPole-v1": (0, 2), "Pendulum-v1": (0, 1)}
# After the symbol, two components mark the first step and the question.
_FIRST, _QUESTION = SYMBOLS, SYMBOLS + 1


class Positions(gymnasium.ObservationWrapper[NDArray[np.float32], Any, NDArray[np.float32]]):
    """Shows only some components of an observation. shown: their indices."""

    def __init__(self, env: gymnasium.Env[NDArray[np.float32], Any], shown: tuple[int, ...]) -> None:
        super().__init__(env)
        whole = env.observation_space
        assert isinstance(whole, spaces.Box)
        self._shown = list(shown)
        self.observation_space = spaces.Box(whole.low[self._shown], whole.high[self._shown], dtype=np.float32)

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """The shown components."""
        return observation[self._shown]


class Recall(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Rewards the last action with 1 if it is the symbol of the first step. All other rewards are 0.

    Each step before the question shows a symbol, but only the first one counts. The mean return is therefore the share
    of right answers. Without memory a policy can only guess, with a mean return of 1 / `SYMBOLS`.
    """

    def __init__(self, delay: int = DELAY) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (SYMBOLS + 2,), np.float32)
        self.action_space = spaces.Discrete(SYMBOLS)
        self._delay = delay
        self._wanted = self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode with another symbol."""
        super().reset(seed=seed)
        self._steps = 0
        self._wanted = int(self.np_random.integers(SYMBOLS))
        return self._observation(self._wanted, _FIRST), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Show the next symbol or the question, or judge the answer."""
        self._steps += 1
        if self._steps > self._delay:
            return self._observation(), float(action == self._wanted), True, False, {}
        shown = _QUESTION if self._steps == self._delay else int(self.np_random.integers(SYMBOLS))
        return self._observation(shown), 0.0, False, False, {}

    def _observation(self, *marked: int) -> NDArray[np.float32]:
        found = np.zeros(SYMBOLS + 2, np.float32)
        found[list(marked)] = 1.0
        return found


def _make(environment: str, **arguments: Any) -> gymnasium.Env[NDArray[np.float32], Any]:
    # Without its own time limit: the registered id has one.
    return Positions(gymnasium.make(environment, max_episode_steps=-1, **arguments), POSITIONS[environment])


gymnasium.register("CartPoleWithoutVelocities-v1", partial(_make, "CartPole-v1"), max_episode_steps=500)
gymnasium.register("PendulumWithoutVelocity-v1", partial(_make, "Pendulum-v1"), max_episode_steps=200)
gymnasium.register("Recall-v0", entry_point=f"{__name__}:Recall")
