"""CartPole with other constants, as a user changes them."""

from typing import Any

import gymnasium


class Physics(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sets the half length of the pole."""

    def __init__(self, env: gymnasium.Env[Any, Any], length: float) -> None:
        super().__init__(env)
        simulation: Any = env.unwrapped
        simulation.length = length
        simulation.polemass_length = simulation.masspole * length
