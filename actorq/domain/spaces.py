"""What an environment gives and takes: the spaces of its observations and actions, and their spec."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.environments import NO_ARGUMENTS, EnvironmentArguments
from actorq.domain.goals import Goal
from actorq.errors import UserError

# What images are of: bytes, and planes of bits as in MinAtar.
_IMAGE_DTYPES = ("uint8", "bool")
# Pixels of a side: the kernel of the smallest network for images.
SMALLEST_IMAGE = 3

# Length of a value in an error: bounds may have one number for each of thousands of elements.
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one observation or action, without batch dimensions, and bounds if the space has them.

    low, high: bounds of each element in C order, or one value for all elements; empty if unbounded.
    """

    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def bounded(self) -> bool:
        """Whether every element has both bounds, and their difference is above 0 and finite in float32."""
        with np.errstate(over="ignore", invalid="ignore"):
            low, high = self.bounds()
            return bool(self.low and self.high) and bool(np.all((low < high) & (high - low < np.inf)))

    def bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Lowest and highest values, float32[*shape] each; infinite if unbounded."""
        low = np.broadcast_to(np.array(self.low or (-np.inf,), np.float32), int(np.prod(self.shape, dtype=np.int64)))
        high = np.broadcast_to(np.array(self.high or (np.inf,), np.float32), low.shape)
        return low.reshape(self.shape), high.reshape(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one element of the space."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class EnvironmentSpec:
    """All that a learner must know about an environment to build its networks.

    `actions` is the spec of one action. Discrete actions have shape (), an integer dtype and `discrete_actions` values.
    For other actions `discrete_actions` is 0. `reward_threshold` is the mean return at which the environment's authors
    call it solved, if they say so. A policy sees `frame_stack` successive observations. `parts` names the parts that a
    vector of observations joins, each with its number of components, as a person reads it; empty where the environment
    itself has a vector or an image. `action_parts` tells the same of actions. Neither is sent or compared. `goal` tells
    where the goals are in a vector of observations; None where there are none.
    """

    environment_id: str
    observations: ArraySpec
    actions: ArraySpec
    discrete_actions: int
    max_episode_steps: int = 0
    reward_threshold: float | None = None
    frame_stack: int = 1
    environment_arguments: EnvironmentArguments = NO_ARGUMENTS
    goal: Goal | None = None
    parts: tuple[str, ...] = field(default=(), compare=False)
    action_parts: str = field(default="", compare=False)

    @property
    def policy_observations(self) -> ArraySpec:
        """Spec of a policy's input: one observation, or the last `frame_stack` on a first axis, oldest first."""
        if self.frame_stack == 1:
            return self.observations
        return replace(self.observations, shape=(self.frame_stack, *self.observations.shape), low=(), high=())

    @property
    def channels_last(self) -> bool:
        """Whether a policy's image is [height, width, channels], as Gymnasium has them, and not channels first.

        A stack of frames has the frames first. Otherwise `image_layout` says it. For "auto", height and width are the
        two neighboring axes of equal length. If there are none, the channels are the shorter of the first and the last
        axis.
        """
        shape, layout = self.policy_observations.shape, self.environment_arguments.image_layout
        if self.frame_stack > 1 or len(shape) != 3:
            return False
        if layout != "auto":
            return layout == "channels-last"
        if (shape[0] == shape[1]) != (shape[1] == shape[2]):
            return shape[0] == shape[1]
        return shape[2] <= shape[0]

    @property
    def image(self) -> tuple[int, int, int] | None:
        """Channels, height and width of the image that a policy sees; None where observations are no images."""
        seen = self.policy_observations
        if len(seen.shape) != 3 or seen.dtype not in _IMAGE_DTYPES:
            return None
        first, second, third = seen.shape
        return (third, first, second) if self.channels_last else (first, second, third)

    @property
    def observations_text(self) -> str:
        """What a policy sees, in words."""
        if self.image is None:
            numbers = f"a vector of {self.observations.shape[0]} number{'s' * (self.observations.shape[0] != 1)}"
            return f"{numbers}: {', '.join(self.parts)}" if self.parts else numbers
        channels, height, width = self.image
        if self.frame_stack > 1:
            return f"{channels} stacked frames of {height} x {width} pixels"
        order = "last" if self.channels_last else "first"
        return f"images of {height} x {width} pixels with {channels} channel{'s' * (channels != 1)}, channels {order}"

    @property
    def actions_text(self) -> str:
        """The actions in words."""
        parts = f", {self.action_parts}" if self.action_parts else ""
        if self.discrete_actions:
            return f"discrete, {self.discrete_actions}{parts}"
        low, high = self.actions.bounds()
        size = self.actions.shape[0]
        return f"a vector of {size} number{'s' * (size != 1)} from {low.min():g} to {high.max():g}{parts}"

    def differences(self, other: "EnvironmentSpec") -> str:
        """The fields in which `other` differs, with both values, as one line of bounded length."""
        ours, theirs = _fields(self), _fields(other)
        return ", ".join(
            f"{name} {_shown(theirs[name])} instead of {_shown(value)}"
            for name, value in ours.items()
            if theirs[name] != value
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON. `from_json` restores an equal spec."""
        return {**asdict(self), "environment_arguments": self.environment_arguments.to_text()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "EnvironmentSpec":
        """The spec of `to_json`'s values."""
        observations, actions = (
            ArraySpec(**{**values[name], **{key: tuple(values[name][key]) for key in ("shape", "low", "high")}})
            for name in ("observations", "actions")
        )
        made_with = EnvironmentArguments.from_text(values.get("environment_arguments", ""))
        goal = values.get("goal") and Goal(**values["goal"])
        made = {"observations": observations, "actions": actions, "environment_arguments": made_with, "goal": goal}
        return cls(**{**values, **made, "parts": tuple(values.get("parts", ()))})


def check_image(spec: EnvironmentSpec) -> None:
    """Raise UserError when the environment has images that none of our own networks takes."""
    if spec.image is not None and min(spec.image[1:]) < SMALLEST_IMAGE:
        _, height, width = spec.image
        raise UserError(
            f"environment {spec.environment_id}: expected images of at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE} "
            f"pixels, got {height} x {width}; give --network MODULE:FUNCTION for layers of your own"
        )


def check_goals(spec: EnvironmentSpec) -> None:
    """Raise UserError when hindsight is not possible in an environment with goals: its episodes may never end."""
    if spec.goal is not None and not spec.max_episode_steps:
        raise UserError(
            f"environment {spec.environment_id} has goals, but no time limit, which hindsight needs: give "
            "--environment-args max_episode_steps=N, or --hindsight.copies 0"
        )


def _fields(spec: EnvironmentSpec) -> dict[str, Any]:
    """The fields of a spec. Fields of its arrays have names such as "observations.shape"."""
    fields: dict[str, Any] = {}
    for name, value in asdict(replace(spec, parts=(), action_parts="")).items():
        fields.update(
            {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        )
    return fields


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
