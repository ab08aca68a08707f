"""Environments whose return tells whether a policy uses every part of its observations and actions.

`benchmarks.environments.coded:Parts-v0` with the argument `kind`. Each step draws a small code: two digits. The
observation holds both, in the form of its kind. The reward of a step is 1 if every part of the action is right, else 0.
In some kinds it is the share of right parts, or depends on the distance of a continuous action. An episode has `STEPS`
steps, so a perfect policy has a return of `STEPS`. `blind(kind)` is the highest mean return of a policy that does not
see one of the digits and must guess it.
"""

import itertools
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
_PICTURE = spaces.Box(0, 255, (8, 8, 1), np.uint8)
# Values of each code in a large category.
_SPREAD = 11
_CHOICES = 4
# Distance of the three places of a continuous action.
_APART = 0.8
# For each kind: observations, and actions.
KINDS: Mapping[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "dict": (spaces.Dict({"sign": _BIT, "way": spaces.Discrete(3, start=1)}), _SUM),
    "tuple": (spaces.Tuple((_BIT, spaces.Discrete(3))), _SUM),
    "discrete": (spaces.Discrete(6), _SUM),
    "multi-discrete": (spaces.MultiDiscrete([*SIZES]), _SUM),
    "multi-binary": (spaces.MultiBinary(5), _SUM),
    "multi-discrete actions": (_BOTH, spaces.MultiDiscrete([*SIZES])),
    "multi-binary actions": (_BOTH, spaces.MultiBinary(3)),
    "image and vector": (spaces.Dict({"picture": _PICTURE, "way": spaces.Box(0.0, 1.0, (3,), np.float32)}), _SUM),
    "image and vector, continuous action": (
        spaces.Dict({"picture": _PICTURE, "way": spaces.Box(0.0, 1.0, (3,), np.float32)}),
        spaces.Box(-1.0, 1.0, (1,), np.float32),
    ),
    "large category": (spaces.Discrete(6 * _SPREAD, start=7), _SUM),
    "many parts": (_BOTH, spaces.MultiDiscrete([*SIZES] * 3)),
    "discrete and continuous": (
        _BOTH,
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1.0, 1.0, (1,), np.float32)}),
    ),
    "mask": (_BOTH, spaces.Discrete(_CHOICES)),
    "mask of each part": (_BOTH, spaces.MultiDiscrete([_CHOICES] * 4)),
    "mixed actions": (_BOTH, spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((spaces.Discrete(3, start=5),))})),
}


def blind(kind: str) -> float:
    """The highest mean return of a policy that does not see one of the digits."""
    if "mask" in kind:
        # Either the lowest or the highest allowed choice is right. The best guess is the first or the last choice.
        masks = [mask for mask in itertools.product((False, True), repeat=_CHOICES) if sum(mask) > 1]
        return STEPS * max(sum(mask.index(True) == choice for mask in masks) / len(masks) for choice in range(_CHOICES))
    if "continuous action" in kind:
        # With two equally likely places, no place between them has a higher reward than either of them.
        return STEPS * (1 + (1 - _APART)) / 2
    if kind == "many parts":
        # The half of the parts that have the visible digit are right.
        return STEPS * (1 + 1 / min(SIZES)) / 2
    # With the sum modulo 3 as the action, and with an action for each digit, the best guess of the digit counts.
    return STEPS / min(SIZES)


class Coded(gymnasium.Env[Any, Any]):
    """One of `KINDS`."""

    def __init__(self, kind: str, pixels: int = 8) -> None:
        """pixels: of each side of the picture, a multiple of 4."""
        self.kind, self._pixels = kind, pixels
        self.observation_space, self.action_space = KINDS[kind]
        if isinstance(self.observation_space, spaces.Dict) and "picture" in self.observation_space.spaces:
            picture = spaces.Box(0, 255, (pixels, pixels, 1), np.uint8)
            self.observation_space = spaces.Dict({**self.observation_space.spaces, "picture": picture})
        self._digits, self._steps = (0, 0), 0
        self._mask = np.zeros((1, _CHOICES), np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._steps = 0
        return self._next(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Compare the action with the code, and draw the next one."""
        reward = float(self._reward(action))
        self._steps += 1
        return self._next(), reward, self._steps == STEPS, False, self._info()

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.allowed.astype(np.int8)} if "mask" in self.kind else {}

    def _next(self) -> Any:
        first, second = (int(self.np_random.integers(size)) for size in SIZES)
        self._digits = first, second
        self._mask = np.zeros((1 if self.kind == "mask" else 4, _CHOICES), np.bool_)
        while not (self._mask.sum(axis=1) > 1).all():
            self._mask = self.np_random.random(self._mask.shape) < 0.5
        bit = np.array([2.0 * first - 1], np.float32)
        bits = np.concatenate([np.eye(size)[digit] for size, digit in zip(SIZES, self._digits, strict=True)])
        forms: dict[str, Any] = {
            "dict": {"sign": bit, "way": second + 1},
            "tuple": (bit, second),
            "discrete": 3 * first + second,
            "multi-discrete": np.array(self._digits),
            "multi-binary": bits.astype(np.int8),
            "large category": 7 + _SPREAD * (3 * first + second) + int(self.np_random.integers(_SPREAD)),
            "image and vector": {
                "picture": self._picture(first),
                "way": bits[2:].astype(np.float32),
            },
        }
        return forms.get(self.kind.partition(",")[0], bits.astype(np.float32))

    @property
    def allowed(self) -> Any:
        """The allowed choices, bool[choices of all parts]."""
        return self._mask.ravel()

    def _picture(self, digit: int) -> Any:
        """Dark on the left for 0, and on the right for 1."""
        row = np.repeat(np.array([[0, 255], [255, 0]], np.uint8)[digit], self._pixels // 2)
        return np.tile(row, (self._pixels, 1))[..., None]

    def _reward(self, action: Any) -> float:
        first, second = self._digits
        match self.kind:
            case "multi-discrete actions":
                return tuple(action) == self._digits
            case "multi-binary actions":
                return tuple(action) == (first, second & 1, second >> 1)
            case "image and vector, continuous action":
                return max(0.0, 1 - abs(float(action[0]) - _APART * ((first + second) % 3 - 1)))
            case "many parts":
                return float(np.mean(action == np.array(self._digits * 3)))
            case "discrete and continuous":
                return bool(action["a"] == first and abs(float(action["b"][0]) - _APART * (second - 1)) < 0.4)
            case "mask" | "mask of each part":
                return self._outermost_share(np.atleast_1d(action))
            case "mixed actions":
                return bool(action == {"a": first, "b": (second + 5,)})
        return int(action) == (first + second) % 3

    def _outermost_share(self, choices: Any) -> float:
        """Share of choices that are the lowest allowed one, or the highest for a first digit of 1."""
        for mask, choice in zip(self._mask, choices, strict=True):
            if not mask[choice]:
                raise ValueError(f"choice {choice} of {mask} is not allowed")
        wanted = self._mask.argmax(1) if self._digits[0] == 0 else _CHOICES - 1 - self._mask[:, ::-1].argmax(1)
        return float(np.mean(choices == wanted))


gymnasium.register("Parts-v0", entry_point=f"{__name__}:Coded")
