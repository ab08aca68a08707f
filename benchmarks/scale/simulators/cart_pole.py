"""The cart-pole of examples/simulator as an environment of gymnasium, so that an actor steps the same code.

`benchmarks.scale.simulators.cart_pole:ExampleCartPole-v1`
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

EXAMPLE = Path(__file__).parents[3] / "examples" / "simulator"
ENVIRONMENT = f"{__name__}:ExampleCartPole-v1"
_STEPS = 500


def _example() -> ModuleType:
    """The client in Python. It is a program and in no package."""
    found = importlib.util.spec_from_file_location("example_cart_pole", EXAMPLE / "cart_pole.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class ExampleCartPole(gymnasium.Env[NDArray[np.float32], np.int64]):
    """The cart-pole of the example's client in Python."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._pole = _example().CartPole()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._pole.reset()
        self._pole.state = self.np_random.uniform(-0.05, 0.05, 4).tolist()
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Push."""
        self._pole.step(int(action))
        return self._observation(), self._pole.reward, self._pole.failed, self._pole.cut, {}

    def _observation(self) -> NDArray[np.float32]:
        return np.array(self._pole.state, np.float32)


def _made(**_: Any) -> ExampleCartPole:
    return ExampleCartPole()


gymnasium.register("ExampleCartPole-v1", entry_point=_made, max_episode_steps=_STEPS, reward_threshold=475.0)
