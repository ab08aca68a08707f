"""Both sides of the comparison with Stable-Baselines3 play the same episodes."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.libraries.parity_episodes import final_returns


class Counted(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Three steps an episode; its return is the action's share of a random first state."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.random(1)
        self.steps = 0
        return self.state, {}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.state, float(self.state[0] * action[0]), self.steps == 3, False, {}


def play(action: float, seed: int) -> list[float]:
    return final_returns(lambda _: np.full(1, action), Counted(), 4, seed)


def test_the_same_seed_gives_the_same_first_states_whoever_acts() -> None:
    returns = play(1.0, seed=5)
    assert len(set(returns)) == 4
    assert play(2.0, seed=5) == pytest.approx([2 * each for each in returns])
    assert play(1.0, seed=6) != returns


def test_an_episode_begins_where_the_one_before_has_ended() -> None:
    environment = Counted()
    final_returns(lambda _: np.ones(1), environment, 4, seed=5)
    assert environment.steps == 3
