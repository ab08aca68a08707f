"""An environment with a part that only critics should see, and a wrapper that separates such a part."""

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS, BONUS = 20, 4.0
# With this variable, observations lack the hidden part, as those of a real machine.
WITHOUT = "WITHOUT_HIDDEN_PARTS"
_ONE = spaces.Box(-5.0, 5.0, (1,), np.float32)


class Bonus(gymnasium.Env[Any, Any]):
    """Each step rewards the choice that the bit names with 1, and adds a bonus that no action changes.

    The bonus is `BONUS` or -`BONUS` by turns, so the bonuses of an episode add up to 0. The hidden part of an
    observation is the bonus of the next step.
    """

    def __init__(self, continuous: bool = False) -> None:
        self.observation_space = spaces.Dict({"bit": _ONE, "hidden": spaces.Dict({"bonus": _ONE})})
        if os.environ.get(WITHOUT):
            self.observation_space = spaces.Dict({"bit": _ONE})
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(2)
        self._bit = self._bonus = 0.0
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with a random bit and a bonus of a random sign."""
        super().reset(seed=seed)
        self._bonus, self._step = BONUS * self._sign(), 0
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Compare the sign of the action with the bit."""
        chosen = 2.0 * float(action) - 1.0 if isinstance(self.action_space, spaces.Discrete) else float(action[0])
        reward = float(chosen * self._bit > 0) + self._bonus
        self._bonus, self._step = -self._bonus, self._step + 1
        return self._next(), reward, False, self._step == STEPS, {}

    def _next(self) -> dict[str, Any]:
        self._bit = self._sign()
        seen: dict[str, Any] = {"bit": np.array([self._bit], np.float32)}
        if not os.environ.get(WITHOUT):
            seen["hidden"] = {"bonus": np.array([self._bonus], np.float32)}
        return seen

    def _sign(self) -> float:
        return float(self.np_random.choice((-1.0, 1.0)))


class Separated(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Divides a vector into the parts `seen`, the components with these indices, and `hidden`, all others."""

    def __init__(self, env: gymnasium.Env[Any, Any], seen: tuple[int, ...] = (0, 2)) -> None:
        super().__init__(env)
        whole = env.observation_space
        assert isinstance(whole, spaces.Box)
        others = [index for index in range(whole.shape[0]) if index not in seen]
        self._indices = {"seen": list(seen), "hidden": others}
        self.observation_space = spaces.Dict(
            {name: spaces.Box(whole.low[chosen], whole.high[chosen]) for name, chosen in self._indices.items()}
        )

    def observation(self, observation: Any) -> dict[str, Any]:
        """The two parts."""
        return {name: np.asarray(observation, np.float32)[chosen] for name, chosen in self._indices.items()}
