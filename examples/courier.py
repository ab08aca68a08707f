"""An environment class with a dictionary of observations and a mask: a courier who knows the map.

    cd examples
    actorq check courier:Courier-v0
    actorq train --environment courier:Courier-v0

Actors import the module by its name. ActorQ joins the numbers of an observation. It never chooses a
masked action.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_SIZE = 6
_MOVES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])

Observation = dict[str, Any]


class Courier(gymnasium.Env[Observation, np.int64]):
    """Walk to a door. Moves into walls are masked. A step costs 0.1, and the door returns 1."""

    def __init__(self) -> None:
        square = spaces.Box(0, _SIZE - 1, (2,), np.float32)
        mask = spaces.MultiBinary(len(_MOVES))
        self.observation_space = spaces.Dict({"courier": square, "door": square, "action_mask": mask})
        self.action_space = spaces.Discrete(len(_MOVES))
        self._courier = self._door = np.zeros(2, np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin at a random square, with a door at another one."""
        super().reset(seed=seed)
        first, second = self.np_random.choice(_SIZE**2, 2, replace=False)
        self._courier, self._door = (np.array(divmod(int(each), _SIZE)) for each in (first, second))
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        self._courier = self._courier + _MOVES[int(action)]
        arrived = bool((self._courier == self._door).all())
        return self._observation(), 1.0 if arrived else -0.1, arrived, False, {"is_success": arrived}

    def _observation(self) -> Observation:
        places = self._courier + _MOVES
        allowed = ((places >= 0) & (places < _SIZE)).all(axis=1)
        places_now = {
            name: place.astype(np.float32)
            for name, place in (("courier", self._courier), ("door", self._door))
        }
        return {**places_now, "action_mask": allowed.astype(np.int8)}


# The shortest paths have four steps on average, which returns about 0.7.
gymnasium.register("Courier-v0", "courier:Courier", max_episode_steps=50, reward_threshold=0.6)
