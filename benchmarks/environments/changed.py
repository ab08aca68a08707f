"""CartPole with other physics, and a pendulum with rare rewards. Their spaces are those of Gymnasium.

    --environment-wrappers '[{benchmarks.environments.changed:Physics: {length: 1.5}}]'
    --environment benchmarks.environments.changed:PendulumUpright-v1

Gymnasium's values are a half pole length of 0.5 m, a gravity of 9.8 m/s^2 and a force of 10 N.
"""

import math
from typing import Any

import gymnasium
import numpy as np

_CONSTANTS = ("length", "gravity", "force_mag", "masscart", "masspole")


class Physics(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sets constants of CartPole, and derived constants."""

    def __init__(self, env: gymnasium.Env[Any, Any], **constants: float) -> None:
        super().__init__(env)
        simulation: Any = env.unwrapped
        for name, value in constants.items():
            if name not in _CONSTANTS:
                raise ValueError(f"expected a constant of CartPole ({', '.join(_CONSTANTS)}), got {name}")
            setattr(simulation, name, value)
        simulation.total_mass = simulation.masscart + simulation.masspole
        simulation.polemass_length = simulation.masspole * simulation.length


class Upright(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A pendulum that hangs at first, and a reward of 1 for each step in which it points up, within `_WITHIN` radians.

    Its motor is too weak to lift it at once. Random actions swing it up in few episodes, so rewards are hard to find.
    """

    _WITHIN, _START = 0.3, 0.1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin near the lowest point, almost without speed."""
        _, infos = self.env.reset(seed=seed, options=options)
        simulation: Any = self.env.unwrapped
        simulation.state = np.array([math.pi, 0.0]) + simulation.np_random.uniform(-self._START, self._START, 2)
        return simulation._get_obs(), infos

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env`."""
        observation, _, terminated, truncated, infos = self.env.step(action)
        return observation, float(observation[0] > math.cos(self._WITHIN)), terminated, truncated, infos


def _upright(**arguments: Any) -> Upright:
    # Without its own time limit: the registered id has one.
    return Upright(gymnasium.make("Pendulum-v1", max_episode_steps=-1, **arguments))


gymnasium.register("PendulumUpright-v1", _upright, max_episode_steps=200)
