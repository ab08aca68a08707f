"""An environment that writes its identity and a counter into each observation, so that every step can be traced."""

import secrets
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

IDENTITY_BITS = 24
_LOW_BITS = 20
_COUNTER_BITS = 40
_EPISODE_STEPS = 200


class CodedEnvironment(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Rewards the action that the observation's last number names. `codes_of` reads the other three numbers.

    Every observation is unique: a random identity of this instance, and a counter of its observations. All numbers
    are multiples of a power of two, so that float32 holds them exactly.
    """

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, **_: Any) -> None:
        # Not from the run's seed, because a restarted actor must not repeat the identity.
        self._identity = secrets.randbits(IDENTITY_BITS)
        self._counter = 0
        self._wanted = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode. The counter continues."""
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Reward 1 for the wanted action."""
        reward = float(int(action) == self._wanted)
        return self._observe(), reward, self._counter % _EPISODE_STEPS == 0, False, {}

    def _observe(self) -> NDArray[np.float32]:
        self._counter += 1
        self._wanted = int(self.np_random.integers(2))
        return coded(self._identity, self._counter, self._wanted)


def coded(identity: int, counter: int, wanted: int) -> NDArray[np.float32]:
    """An observation float32[4] that says these numbers. identity: IDENTITY_BITS bits. wanted: the rewarded action."""
    high, low = divmod(counter, 1 << _LOW_BITS)
    return np.array([identity / 2**IDENTITY_BITS, high / 2**_LOW_BITS, low / 2**_LOW_BITS, wanted], np.float32)


def codes_of(observations: NDArray[np.generic]) -> NDArray[np.uint64]:
    """The codes uint64[...] of observations float32[..., 4 or more]: identity and counter in one number.

    The bits of groups of agents come before the last four numbers.
    """
    scaled = observations[..., -4:].astype(np.float64)
    identity = np.rint(scaled[..., 0] * 2**IDENTITY_BITS).astype(np.uint64)
    high = np.rint(scaled[..., 1] * 2**_LOW_BITS).astype(np.uint64)
    low = np.rint(scaled[..., 2] * 2**_LOW_BITS).astype(np.uint64)
    codes: NDArray[np.uint64] = (identity << np.uint64(_COUNTER_BITS)) | (high << np.uint64(_LOW_BITS)) | low
    return codes


def places_of(codes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The identity, the episode of this identity, and the step in the episode, of codes uint64[n]; int64[n] each."""
    # The counter begins with 1, and an episode ends where it is a multiple of the steps.
    identities, counters = counters_of(codes)
    episodes, steps = np.divmod(counters - 1, _EPISODE_STEPS)
    return identities, episodes, steps


def counters_of(codes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The identity and the counter of codes uint64[...]; int64[...] each."""
    counters = (codes & np.uint64((1 << _COUNTER_BITS) - 1)).astype(np.int64)
    return (codes >> np.uint64(_COUNTER_BITS)).astype(np.int64), counters


gymnasium.register("Coded-v0", entry_point=CodedEnvironment, max_episode_steps=_EPISODE_STEPS)
