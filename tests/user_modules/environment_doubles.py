"""Environments that fail in chosen ways, registered with Gymnasium as `environment_doubles:NAME-v0`."""

import sys
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from actor_service.environments import Step
from actor_service.environments.loop import LoopedEnvironments
from actorq.domain.spaces import ArraySpec, EnvironmentSpec

OBSERVATION_LIMIT = 1000.0


def copied(step: Step) -> Step:
    """What the next step does not overwrite."""
    names = ("observations", "rewards", "terminated", "truncated", "valid")
    return step._replace(**{name: getattr(step, name).copy() for name in names})


class Counting(gymnasium.Env[Any, Any]):
    """Observes how many steps its episode has, and what its episode's number is in its life; ends by time alone."""

    observation_space: spaces.Space[Any] = spaces.Box(-OBSERVATION_LIMIT, OBSERVATION_LIMIT, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(3)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.steps = self.episodes = 0
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        self.episodes += 1
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation(), self.reward(action), False, False, {}

    def observation(self) -> Any:
        return np.array([self.steps, self.episodes], np.float32)

    def reward(self, action: Any) -> float:
        return 1.0

    def render(self) -> Any:
        return np.full((5, 7, 3), self.steps, np.uint8)

    def close(self) -> None:
        self.closed = True


class NaNReward(Counting):
    """Action 2 is rewarded with NaN."""

    def reward(self, action: Any) -> float:
        return float("nan") if action == 2 else 1.0


class InfiniteObservation(Counting):
    """Action 2 leads to infinity."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return (np.array([np.inf, 0.0], np.float32) if action == 2 else observation), *rest  # type: ignore[return-value]


class HugeReward(Counting):
    """Rewards that no float32 can hold."""

    def reward(self, action: Any) -> float:
        return 1e300 if action == 2 else 1.0


class Raising(Counting):
    """Action 2 breaks it for good: it raises at every call from then on."""

    broken = False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.broken = self.broken or action == 2
        if self.broken:
            raise RuntimeError("the simulator is gone")
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.broken:
            raise RuntimeError("the simulator is gone")
        return super().reset(seed=seed, options=options)


class Fragile(Counting):
    """Takes two good steps and raises at the third, each time."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.steps == 2:
            raise RuntimeError("the simulator is gone")
        return super().step(action)


class AlwaysRaising(Counting):
    """Cannot take a step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise RuntimeError("no license for the simulator")


class AlwaysExiting(Counting):
    """Ends its process at the first step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        sys.exit(3)


class FourValues(Counting):
    """Its step returns four values, as in Gym before version 0.26."""

    def step(self, action: Any) -> Any:
        return (*super().step(action)[:3], {})


class NoReward(Counting):
    """Gives no reward."""

    def reward(self, action: Any) -> Any:
        return None


class NoInfo(Counting):
    """Its reset returns the observation alone, as in Gym before version 0.26."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset()[0]


class NoSeed(Counting):
    """Its reset takes no seed."""

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class AlwaysNaN(Counting):
    """Has no finite observation at all."""

    def observation(self) -> Any:
        return np.array([np.nan, 0.0], np.float32)


class LongObservation(Counting):
    """Action 2 leads to an observation of another size than its space's."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return (np.zeros(3, np.float32) if action == 2 else observation), *rest  # type: ignore[return-value]


class VectorReward(Counting):
    """Action 2 is rewarded with a vector."""

    def reward(self, action: Any) -> Any:
        return np.ones(1) if action == 2 else 1.0


class EndlessReward(Counting):
    """Action 2 is rewarded with a whole number that no float can hold."""

    def reward(self, action: Any) -> Any:
        return 10**400 if action == 2 else 1.0


class Unreadable:
    """No array can be made of it, as of a tensor that requires gradients."""

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("call detach() first")


class UnreadableObservation(Counting):
    """Action 2 leads to something of which no array can be made."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        return (Unreadable() if action == 2 else observation), *rest  # type: ignore[return-value]


class NoObservation(Counting):
    """Begins with an observation of another shape than its space's."""

    def observation(self) -> Any:
        return np.zeros((2, 2), np.float32)


class Unclosable(Counting):
    """Raises when it is closed."""

    def close(self) -> None:
        super().close()
        raise RuntimeError("the simulator is gone already")


class Keeping(Counting):
    """Is rewarded with its action plus the one before, which it kept, with its sign changed."""

    action_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,), np.float32)
    kept: Any = None

    def reward(self, action: Any) -> float:
        difference = 0.0 if self.kept is None else float(action[0] - self.kept[0])
        action *= -1.0
        self.kept = action
        return difference


class Frames(Counting):
    """Images that say the step and the episode, of shape [2, 2]."""

    observation_space = spaces.Box(0, 255, (2, 2), np.uint8)

    def observation(self) -> Any:
        return np.full((2, 2), self.steps + 20 * self.episodes, np.uint8)


class Hanging(Counting):
    """Never comes back from its third step, and says so on standard output."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.steps == 2:
            print("hanging", flush=True)  # noqa: T201
            threading.Event().wait()
        return super().step(action)


class HangingWhenMade(Counting):
    """Cannot be made: that never ends."""

    def __init__(self) -> None:
        threading.Event().wait()


class HangingAtTheEnd(Counting):
    """Never comes back from `close` once it was stepped."""

    def close(self) -> None:
        if self.steps:
            threading.Event().wait()


class Sized(Counting):
    """Takes a tuple and an array, and nothing else."""

    def __init__(self, size: tuple[int, ...], gains: np.ndarray[Any, Any], more: Any = None) -> None:
        super().__init__()
        assert isinstance(size, tuple)
        assert isinstance(gains, np.ndarray)
        self.observation_space = spaces.Box(-1.0, 1.0, (*size, *gains.astype(int)), np.float32)
        self.more = more


class NoPictures(Counting):
    """Cannot draw itself."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(None)


def digits(action: Any) -> float:
    """The parts of an action as the digits of a number, such as 12 for 1 and 2."""
    parts = action.values() if isinstance(action, dict) else action if isinstance(action, tuple) else np.ravel(action)
    written = 0.0
    for part in parts:
        written = 10 * written + (float(part) if np.ndim(part) == 0 and not isinstance(part, tuple) else digits(part))
    return written


def with_spaces(name: str, observations: spaces.Space[Any], actions: spaces.Space[Any]) -> type[Counting]:
    """A class of this module by that name."""
    # Always the same fitting one.
    content: dict[str, Any] = {"observation": lambda self: fixed}
    if isinstance(observations, spaces.Box):
        fixed: Any = np.zeros(observations.shape, observations.dtype)
    else:
        observations.seed(1)
        fixed = observations.sample()
    content["reward"] = lambda self, action: digits(action) if actions.contains(action) else np.nan
    made = type(name, (Counting,), {"observation_space": observations, "action_space": actions, **content})
    globals()[name] = made
    return made


def make_planes(environment_id: str, count: int, rendered: bool) -> LoopedEnvironments:
    """A family of images without an axis for channels, `planes/stacked` and `planes/single`."""
    stack = 4 if environment_id.endswith("stacked") else 1
    observations, actions = ArraySpec((5, 6), "uint8"), ArraySpec((), "int64")
    spec = EnvironmentSpec(environment_id, observations, actions, sizes=(2,), frame_stack=stack)
    return LoopedEnvironments(spec, [Frames() for _ in range(count)], Frames, LIMIT)


LIMIT = 12
VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)
SPACES = {
    "TextObservations": (spaces.Text(5), spaces.Discrete(2)),
    "DictObservations": (spaces.Dict({"goal": VECTOR}), spaces.Discrete(2)),
    "PartlyTextObservations": (
        spaces.Dict({"goal": VECTOR, "words": spaces.Sequence(VECTOR), "way": spaces.Discrete(4)}),
        spaces.Discrete(2),
    ),
    "MatrixObservations": (spaces.Box(-1.0, 1.0, (2, 2), np.float32), spaces.Discrete(2)),
    "DiscreteObservations": (spaces.Discrete(16), spaces.Discrete(2)),
    "MultiDiscreteObservations": (spaces.MultiDiscrete([3, 2, 3]), spaces.Discrete(2)),
    "MultiBinaryObservations": (spaces.MultiBinary((2, 3)), spaces.Discrete(2)),
    "NestedObservations": (
        spaces.Dict(
            {
                "way": spaces.Discrete(4, start=-1),
                "arm": spaces.Tuple((VECTOR, spaces.Box(0.0, 1.0, (2, 3)), spaces.MultiBinary(3))),
                "flag": spaces.Box(0, 255, (2,), np.uint8),
            }
        ),
        spaces.Discrete(2),
    ),
    "ImageAndVector": (
        spaces.Dict({"image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "arm": VECTOR}),
        spaces.Discrete(2),
    ),
    "ImageAndText": (
        spaces.Dict(
            {"image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "arm": VECTOR, "words": spaces.Sequence(VECTOR)}
        ),
        spaces.Discrete(2),
    ),
    "ManyObservations": (spaces.Tuple([VECTOR] * 65), spaces.Discrete(2)),
    "EmptyObservations": (spaces.Box(0.0, 1.0, (0,), np.float32), spaces.Discrete(2)),
    "EmptyActions": (VECTOR, spaces.Box(-1.0, 1.0, (0,), np.float32)),
    "TinyImages": (spaces.Box(0, 255, (2, 8, 1), np.uint8), spaces.Discrete(2)),
    "Planes": (spaces.Box(0, 1, (10, 10, 4), np.bool_), spaces.Discrete(2)),  # type: ignore[arg-type]
    "ScalarObservations": (spaces.Box(-1.0, 1.0, (), np.float32), spaces.Discrete(2)),
    "MultiDiscreteActions": (VECTOR, spaces.MultiDiscrete([2, 2])),
    "TwoActions": (
        VECTOR,
        spaces.Dict({"jump": spaces.Discrete(2), "move": spaces.Tuple((spaces.Discrete(2, start=4),))}),
    ),
    "BitActions": (VECTOR, spaces.MultiBinary(2)),
    "ArmActions": (VECTOR, spaces.Dict({"a": spaces.Box(0.0, 4.0, (1,)), "b": spaces.Box(0.0, 9.0, (1, 1))})),
    "HugeObservations": (spaces.Discrete(10**12), spaces.Discrete(2)),
    "HugeActions": (VECTOR, spaces.Discrete(10**12, start=1)),
    "LateActions": (VECTOR, spaces.Discrete(2, start=1)),
    "UnboundedActions": (VECTOR, spaces.Box(-np.inf, np.inf, (2,), np.float32)),
    "IntegerActions": (VECTOR, spaces.Box(0, 3, (2,), np.int64)),
    "UnevenObservations": (spaces.Box(np.zeros((9, 9), np.float32), np.eye(9, dtype=np.float32)), spaces.Discrete(2)),
    "EndlessActions": (VECTOR, spaces.Box(-3e38, 3e38, (2,), np.float32)),
    "LargeActions": (VECTOR, spaces.Box(-2e9, 2e9, (2,), np.float32)),
    "MatrixActions": (VECTOR, spaces.Box(-1.0, 1.0, (2, 2), np.float32)),
}

doubles: tuple[type[Counting], ...] = (
    Counting,
    NaNReward,
    InfiniteObservation,
    HugeReward,
    Raising,
    Fragile,
    AlwaysRaising,
    AlwaysExiting,
    FourValues,
    NoReward,
    NoInfo,
    NoSeed,
    AlwaysNaN,
    LongObservation,
    VectorReward,
    EndlessReward,
    UnreadableObservation,
    NoObservation,
    Unclosable,
    Keeping,
    Frames,
    Hanging,
    HangingWhenMade,
    HangingAtTheEnd,
    Sized,
    NoPictures,
)
for double in (*doubles, *(with_spaces(name, *both) for name, both in SPACES.items())):
    gymnasium.register(f"{double.__name__}-v0", entry_point=f"{__name__}:{double.__name__}", max_episode_steps=LIMIT)
