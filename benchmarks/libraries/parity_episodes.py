"""The episodes that both sides of parity.py play: one environment, from the same first states."""

from collections.abc import Callable
from typing import Any

import gymnasium
from numpy.typing import NDArray

Act = Callable[[NDArray[Any]], NDArray[Any]]


def final_returns(act: Act, environment: gymnasium.Env[Any, Any], episodes: int, seed: int) -> list[float]:
    """Returns of episodes whose first states follow from `seed`, whoever acts.

    Returns of Pendulum-v1 differ more by where an episode begins (a standard deviation of 90) than by who plays it, if
    both have learned: the mean of 20 episodes tells nothing where these are not the same.
    """
    environment.reset(seed=seed)
    return returns(act, environment, episodes)


def returns(act: Act, environment: gymnasium.Env[Any, Any], episodes: int) -> list[float]:
    """Returns of so many episodes; the environment goes on with the seed that it was given.

    act: the action for an observation.
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
