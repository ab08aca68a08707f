"""CartPole with other physics: a wrapper that changes constants of the simulation, but not the spaces.

    --environment-wrappers '[{benchmarks.environments.changed:Physics: {length: 1.5}}]'

Gymnasium's values are a half pole length of 0.5 m, a gravity of 9.8 m/s^2 and a force of 10 N.
"""

from typing import Any

import gymnasium

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
