"""The final episodes of parity.py: both sides play them from the same first states."""

from collections.abc import Callable
from typing import Any

import gymnasium
from numpy.typing import NDArray

Act = Callable[[NDArray[Any]], NDArray[Any]]


def final_returns(act: Act, environment: gymnasium.Env[Any, Any], episodes: int, seed: int) -> list[float]:
    """Returns of episodes whose first states depend only on `seed`.

    Equal first states matter. On Pendulum-v1 the first state changes the return more (standard deviation 90) than the
    difference between two trained policies.
    """
    environment.reset(seed=seed)
    return returns(act, environment, episodes)


def returns(act: Act, environment: gymnasium.Env[Any, Any], episodes: int) -> list[float]:
    """Returns of this many episodes. The environment is not seeded again.

    act: gives the action for an observation.
    """
    found = []
    for _ in range(episodes):
        observation, _ = environment.reset()
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = environment.step(act(observation))
            total, ended = total + float(reward), terminated or truncated
        found.append(total)
    return found
