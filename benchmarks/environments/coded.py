"""Environments whose return tells whether a policy uses every part of its observations and actions.

`benchmarks.environments.coded:Parts-v0` with the argument `kind`. Each step draws a small code: two digits. The
observation holds both, in the form of its kind. A step is rewarded with 1 if every part of the action is right, else
with 0. An episode has `STEPS` steps, so a perfect policy has a return of `STEPS`.

`blind(kind)` is the highest mean return of a policy that does not see one of the digits: it can only guess it.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS = 20
# Values of the two digits.
SIZES = (2, 3)
_BIT = spaces.Box(-1.0, 1.0, (1,), np.float32)
_BOTH = spaces.Box(0.0, 1.0, (5,), np.float32)
_SUM = spaces.Discrete(3)
# For each kind: observations, and actions.
KINDS: Mapping[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "dict": (spaces.Dict({"sign": _BIT, "way": spaces.Discrete(3, start=1)}), _SUM),
    "tuple": (spaces.Tuple((_BIT, spaces.Discrete(3))), _SUM),
    "discrete": (spaces.Discrete(6), _SUM),
    "multi-discrete": (spaces.MultiDiscrete([*SIZES]), _SUM),
    "multi-binary": (spaces.MultiBinary(5), _SUM),
    "multi-discrete actions": (_BOTH, spaces.MultiDiscrete([*SIZES])),
    "multi-binary actions": (_BOTH, spaces.MultiBinary(3)),
    "mixed actions": (_BOTH, spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((spaces.Discrete(3, start=5),))})),
}


def blind(kind: str) -> float:
    """The highest mean return of a policy that is blind to one of the digits."""
    # With the sum modulo 3 as the action, and with an action for each digit, the best guess of the digit counts.
    return STEPS / min(SIZES)


class Coded(gymnasium.Env[Any, Any]):
    """One of `KINDS`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.observation_space, self.action_space = KINDS[kind]
        self._digits, self._steps = (0, 0), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._steps = 0
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Compare the action with the code, and draw the next one."""
        reward = float(self._is_right(action))
        self._steps += 1
        return self._next(), reward, self._steps == STEPS, False, {}

    def _next(self) -> Any:
        first, second = (int(self.np_random.integers(size)) for size in SIZES)
        self._digits = first, second
        bit = np.array([2.0 * first - 1], np.float32)
        bits = np.concatenate([np.eye(size)[digit] for size, digit in zip(SIZES, self._digits, strict=True)])
        forms: dict[str, Any] = {
            "dict": {"sign": bit, "way": second + 1},
            "tuple": (bit, second),
            "discrete": 3 * first + second,
            "multi-discrete": np.array(self._digits),
            "multi-binary": bits.astype(np.int8),
        }
        return forms.get(self.kind, bits.astype(np.float32))

    def _is_right(self, action: Any) -> bool:
        first, second = self._digits
        match self.kind:
            case "multi-discrete actions":
                return tuple(action) == self._digits
            case "multi-binary actions":
                return tuple(action) == (first, second & 1, second >> 1)
            case "mixed actions":
                return bool(action == {"a": first, "b": (second + 5,)})
        return int(action) == (first + second) % 3


gymnasium.register("Parts-v0", entry_point=f"{__name__}:Coded")
