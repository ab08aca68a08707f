"""The observation and action spaces of an environment, and its spec."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actorq.domain.environments import NO_ARGUMENTS, EnvironmentArguments, Group
from actorq.domain.goals import Goal
from actorq.domain.leaves import OBSERVATIONS, Image, Leaf, packed_nbytes, views
from actorq.errors import UserError
from actorq.text import one_line

# Dtypes of images: bytes, and planes of bits as in MinAtar.
_IMAGE_DTYPES = ("uint8", "bool")
# Smallest side of an image in pixels: the kernel size of the smallest network for images.
SMALLEST_IMAGE = 3

# Length of a value in an error. Bounds may have a number for each of thousands of elements.
_SHOWN_CHARACTERS = 60
_AGENTS_BYTES = 100


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one observation or action, without batch dimensions, and its bounds if the space has any.

    low, high: bounds of each element in C order, or one value for all elements; empty if unbounded.
    leaves: the arrays of a packed observation (actorq.domain.leaves); empty for one array.
    """

    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    leaves: tuple[Leaf, ...] = ()

    @property
    def inputs(self) -> "dict[str, ArraySpec]":
        """The inputs of a policy graph for this environment, by name: "observations", or an input for each leaf.

        Leaves are named observations/NAME, and a mask is named mask. There are no inputs for leaves of critics.
        """
        if not self.leaves:
            return {OBSERVATIONS: self}
        return {leaf.input: self.seen(leaf) for leaf in self.leaves if not leaf.critic}

    def seen(self, leaf: Leaf) -> "ArraySpec":
        """A leaf in the form that networks get. Images are stacked. Of other leaves, they get only the newest."""
        return ArraySpec((*self.shape[:-1], *leaf.shape) if leaf.kind == "image" else leaf.shape, leaf.dtype)

    def split(self, values: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Views of observations [B, *shape] for each of the `inputs`, by name, [B, ...] each."""
        if not self.leaves:
            return {OBSERVATIONS: values}
        found = views(self.leaves, values)
        stacked = len(self.shape) > 1
        return {
            leaf.input: found[leaf.name][:, -1] if stacked and leaf.kind != "image" else found[leaf.name]
            for leaf in self.leaves
            if not leaf.critic
        }

    @property
    def bounded(self) -> bool:
        """Whether every element has both bounds, and their difference is positive and finite in float32."""
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
    """The facts about an environment from which a learner builds its networks.

    `actions` is the spec of one action. `sizes` is the number of values of each of its discrete parts; empty for
    continuous actions. A discrete action has shape () and an integer dtype. An action of several discrete parts has
    shape (parts,). With additional continuous parts, an action is float32: the discrete parts come first, as whole
    numbers.

    `reward_threshold` is the mean return at which the environment's authors call it solved, if they name one. A policy
    gets `frame_stack` successive observations. `goal` has the positions of the goals in a vector of observations; None
    without goals. `indicators` has the components of the vector that are bits or one-hot categories, which are never
    normalized: start and stop of each range, one after the other. With leaves for critics, these are components of the
    vector of `for_critics`. `agents` names the agents that share the policy, in the order of their rows in a batch;
    empty for an environment with a single agent. `groups` has the groups of agents with networks of their own, whose
    bits are neighbors in the vector; empty if all agents share the networks. `parts` names the parts that the vector
    joins, for people, each with its number of components; empty if the environment itself has a vector or an image.
    `action_parts` does the same for actions. The last two are neither sent nor compared.
    """

    environment_id: str
    observations: ArraySpec
    actions: ArraySpec
    sizes: tuple[int, ...] = ()
    max_episode_steps: int = 0
    reward_threshold: float | None = None
    frame_stack: int = 1
    environment_arguments: EnvironmentArguments = NO_ARGUMENTS
    goal: Goal | None = None
    indicators: tuple[int, ...] = ()
    agents: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    parts: tuple[str, ...] = field(default=(), compare=False)
    action_parts: str = field(default="", compare=False)

    @property
    def agent_count(self) -> int:
        """Rows of each environment in a batch: one for each agent."""
        return len(self.agents) or 1

    @property
    def policy_observations(self) -> ArraySpec:
        """Spec of a policy's input: one observation, or the last `frame_stack` on a first axis, oldest first."""
        if self.frame_stack == 1:
            return self.observations
        return replace(self.observations, shape=(self.frame_stack, *self.observations.shape), low=(), high=())

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The arrays of one observation, if it has several."""
        return self.observations.leaves

    @property
    def mask(self) -> Leaf | None:
        """The leaf of the allowed choices."""
        return next((leaf for leaf in self.leaves if leaf.kind == "mask"), None)

    @property
    def encoded(self) -> tuple[Leaf, ...]:
        """The leaves that a policy computes with: all except the mask and the leaves of critics."""
        return tuple(leaf for leaf in self.leaves if leaf.kind != "mask" and not leaf.critic)

    @property
    def critic_leaves(self) -> tuple[Leaf, ...]:
        """The leaves that only critics and value networks see."""
        return tuple(leaf for leaf in self.leaves if leaf.critic)

    @property
    def for_critics(self) -> "EnvironmentSpec":
        """The environment as critics see it: with all leaves, in the same places."""
        if not self.critic_leaves:
            return self
        leaves = tuple(replace(leaf, critic=False) for leaf in self.leaves)
        return replace(self, observations=replace(self.observations, leaves=leaves))

    @property
    def for_policy(self) -> "EnvironmentSpec":
        """The environment without the leaves of critics, as an exported policy needs it."""
        if not self.critic_leaves:
            return self
        leaves = tuple(leaf for leaf in self.leaves if not leaf.critic)
        edges = np.diff(self.is_indicator.astype(np.int8), prepend=0, append=0)
        start = self.first_bit
        return replace(
            self,
            observations=ArraySpec((packed_nbytes(leaves),), self.observations.dtype, leaves=leaves),
            indicators=tuple(np.flatnonzero(edges).tolist()),
            groups=tuple(replace(each, bit=start + number) for number, each in enumerate(self.groups)),
        )

    @property
    def without_groups(self) -> "EnvironmentSpec":
        """The environment of a policy without groups: its observations lack the bits of groups.

        Only for a spec without leaves of critics.
        """
        if not self.groups:
            return self
        bits = range(self.first_bit, self.first_bit + len(self.groups))
        edges = np.diff(np.delete(self.is_indicator, bits).astype(np.int8), prepend=0, append=0)
        shape = (math.prod((self.vector or self.observations).shape) - len(bits),)
        observations = replace(self.observations, shape=shape)
        if self.leaves:
            leaves = tuple(replace(leaf, shape=shape) if leaf.kind == "numbers" else leaf for leaf in self.leaves)
            observations = ArraySpec((packed_nbytes(leaves),), self.observations.dtype, leaves=leaves)
        return replace(
            self,
            observations=observations,
            indicators=tuple(np.flatnonzero(edges).tolist()),
            groups=(),
            environment_arguments=replace(self.environment_arguments, agent_groups=()),
            parts=tuple(part for part in self.parts if part != f"group ({len(bits)} bits)"),
        )

    @property
    def vector(self) -> ArraySpec | None:
        """The numbers of an observation, which a run may normalize; None if there are only images.

        With several leaves of numbers, all of them in the order of the leaves.
        """
        if not self.leaves:
            return None if self.image is not None else self.observations
        numbers = [leaf for leaf in self.encoded if leaf.kind == "numbers"]
        return ArraySpec((sum(leaf.shape[0] for leaf in numbers),), numbers[0].dtype) if numbers else None

    @property
    def sees_number(self) -> NDArray[np.bool_]:
        """Which components of the vector of `for_critics` are components of `vector`."""
        if not self.leaves:
            return np.ones((self.vector or self.observations).shape[0], np.bool_)
        numbers = [leaf for leaf in self.leaves if leaf.kind == "numbers"]
        return np.array([not leaf.critic for leaf in numbers for _ in range(leaf.shape[0])], np.bool_)

    @property
    def is_indicator(self) -> NDArray[np.bool_]:
        """Which components of `vector` are bits or one-hot categories; see `indicators`."""
        sees = self.sees_number
        found = np.zeros(len(sees), np.bool_)
        for start, stop in zip(self.indicators[::2], self.indicators[1::2], strict=True):
            found[start:stop] = True
        return found[sees]

    @property
    def first_bit(self) -> int:
        """Component of `vector` with the bit of the first group. The bits of the others follow. 0 without groups."""
        return int(self.sees_number[: self.groups[0].bit].sum()) if self.groups else 0

    @property
    def acting_size(self) -> int:
        """Components of a policy's action output: values of all choices, or components of one continuous action."""
        return sum(self.sizes) or self.components

    @property
    def has_parts(self) -> bool:
        """Whether an action has several discrete parts, or both discrete and continuous parts."""
        return bool(self.sizes) and self.actions.shape != ()

    @property
    def components(self) -> int:
        """Continuous components of an action; 0 for discrete ones."""
        if self.sizes and np.dtype(self.actions.dtype).kind != "f":
            return 0
        return math.prod(self.actions.shape) - len(self.sizes)

    @property
    def continuous_part(self) -> "EnvironmentSpec":
        """The spec with only the continuous components of its actions."""
        low, high = (tuple(bound.ravel()[len(self.sizes) :].tolist()) for bound in self.actions.bounds())
        actions = ArraySpec((self.components,), "float32", low, high)
        return replace(self, actions=actions, sizes=()) if self.sizes else self

    @property
    def action_kinds(self) -> tuple[str, ...]:
        """The kinds of an action's parts: "discrete", "continuous" or both."""
        return (*("discrete",) * bool(self.sizes), *("continuous",) * bool(self.components))

    @property
    def image(self) -> Image | None:
        """The image that a policy gets; None if the policy gets other inputs too."""
        if self.leaves:
            return self.image_of(self.encoded[0]) if [leaf.kind for leaf in self.encoded] == ["image"] else None
        shape = self.observations.shape
        if self.observations.dtype not in _IMAGE_DTYPES or len(shape) not in (2, 3):
            return None
        if len(shape) == 2:
            return Image(self.frame_stack, *shape) if self.frame_stack > 1 else None
        return self._stacked(self.frame(shape))

    def image_of(self, leaf: Leaf) -> Image:
        """An image among several leaves. A stack has the channels of all its frames, channels first."""
        return self._stacked(self.frame(leaf.shape))

    def seen_shape(self, leaf: Leaf) -> tuple[int, ...]:
        """Shape of a leaf in a policy's computations."""
        return self.image_of(leaf).shape if leaf.kind == "image" else leaf.shape

    def frame(self, shape: tuple[int, ...]) -> Image:
        """One frame of an image, by its shape and `image_layout`.

        For "auto", height and width are the two neighboring axes of equal length. If there are none, the shorter of the
        first and the last axis holds the channels.
        """
        first, second, third = shape
        layout = self.environment_arguments.image_layout
        is_last = layout == "channels-last"
        if layout == "auto":
            is_last = first == second if (first == second) != (second == third) else third <= first
        return Image(third, first, second, "channels-last") if is_last else Image(first, second, third)

    def _stacked(self, frame: Image) -> Image:
        return frame if self.frame_stack == 1 else Image(self.frame_stack * frame.channels, frame.height, frame.width)

    @property
    def has_stacked_images(self) -> bool:
        """Whether a policy's observation is a stack of images of three axes each."""
        return not self.leaves and self.frame_stack > 1 and self.image is not None and len(self.observations.shape) == 3

    @property
    def observations_text(self) -> str:
        """A policy's observations, in words."""
        if self.leaves:
            seen = "; ".join(self._leaf_text(leaf) for leaf in self.leaves if not leaf.critic)
            critics = "; ".join(self._leaf_text(leaf) for leaf in self.critic_leaves)
            return f"{seen}; for critics only: {critics}" if critics else seen
        if self.image is None:
            return self._vector_text(self.observations)
        image, channels = self.image, self.image.channels
        if self.frame_stack > 1:
            each = channels // self.frame_stack
            colors = f" with {each} channels" if each > 1 else ""
            return f"{self.frame_stack} stacked frames of {image.pixels}{colors}"
        return (
            f"images of {image.pixels} with {channels} channel{'s' * (channels != 1)}, {image.layout.replace('-', ' ')}"
        )

    def _leaf_text(self, leaf: Leaf) -> str:
        match leaf.kind:
            case "numbers":
                return _numbers_text(leaf) if leaf.critic else self._vector_text(leaf)
            case "category":
                return f"{leaf.name}: one of {leaf.categories:,}"
            case "mask":
                return f"a mask of {leaf.shape[0]} choices"
        image, stacked = self.image_of(leaf), f" in {self.frame_stack} stacked frames" * (self.frame_stack > 1)
        return f"{leaf.name}: an image of {image.pixels} with {image.channels} channels{stacked}"

    def _vector_text(self, of: ArraySpec | Leaf) -> str:
        numbers = _numbers_text(of)
        alone = len(self.parts) == 1 and numbers.endswith(self.parts[0])
        return f"{numbers}: {', '.join(self.parts)}" if self.parts and not alone else numbers

    @property
    def agents_text(self) -> str:
        """The agents in words, on one line of bounded length; empty for a single agent."""
        return one_line(f"{len(self.agents)}: {', '.join(self.agents)}", _AGENTS_BYTES) if self.agents else ""

    @property
    def groups_text(self) -> str:
        """The groups in words, on one line of bounded length; empty without groups."""
        return one_line("; ".join(f"{each.name}: {', '.join(each.agents)}" for each in self.groups), _AGENTS_BYTES)

    @property
    def actions_text(self) -> str:
        """The actions in words."""
        parts = f", {self.action_parts}" if self.action_parts else ""
        if self.has_parts:
            continuous = f" and a vector of {self.components}" if self.components else ""
            return f"{len(self.sizes)} discrete parts of {', '.join(map(str, self.sizes))}{continuous}{parts}"
        if self.sizes:
            return f"discrete, {self.sizes[0]}{parts}"
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
        """JSON values of the spec. `from_json` restores an equal spec."""
        values = {**asdict(self), "environment_arguments": self.environment_arguments.to_text()}
        for leaf in values["observations"]["leaves"]:
            # Earlier versions do not know this value.
            if not leaf["critic"]:
                del leaf["critic"]
        if not self.groups:
            del values["groups"]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "EnvironmentSpec":
        """Restore the spec from the values of `to_json`. Reads values from before contract 3, too."""
        observations, actions = (_array_spec(values[name]) for name in ("observations", "actions"))
        made_with = EnvironmentArguments.from_text(values.get("environment_arguments", ""))
        goal = values.get("goal") and Goal(**values["goal"])
        made = {"observations": observations, "actions": actions, "environment_arguments": made_with, "goal": goal}
        others = {name: value for name, value in values.items() if name not in ("discrete_actions", "choices")}
        lists = {name: tuple(values.get(name, ())) for name in ("parts", "indicators", "agents")} | {
            "sizes": sizes_of(values),
            "groups": tuple(Group(**{**each, "agents": tuple(each["agents"])}) for each in values.get("groups", ())),
        }
        return cls(**{**others, **made, **lists})


def sizes_of(values: Mapping[str, Any]) -> tuple[int, ...]:
    """The sizes in the JSON values of a spec. Before contract 3 they were in `choices` or `discrete_actions`."""
    if "sizes" in values:
        return tuple(values["sizes"])
    return tuple(values.get("choices") or filter(None, (values["discrete_actions"],)))


def check_images(spec: EnvironmentSpec) -> None:
    """Raise UserError when the built-in networks cannot process the environment's images."""
    among = [spec.image_of(leaf) for leaf in spec.leaves if leaf.kind == "image"]
    for image in among if spec.image is None else (spec.image,):
        if min(image.height, image.width) < SMALLEST_IMAGE:
            raise UserError(
                f"environment {spec.environment_id}: expected images of at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE} "
                f"pixels, got {image.height} x {image.width}; give --network MODULE:FUNCTION for layers of your own"
            )


def _array_spec(values: Mapping[str, Any]) -> ArraySpec:
    lists = {name: tuple(values[name]) for name in ("shape", "low", "high")}
    leaves = tuple(Leaf(**{**leaf, "shape": tuple(leaf["shape"])}) for leaf in values.get("leaves", ()))
    return ArraySpec(**{**values, **lists, "leaves": leaves})


def check_goals(spec: EnvironmentSpec) -> None:
    """Raise UserError when an environment with goals has no time limit. Hindsight needs episodes that end."""
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


def _numbers_text(of: ArraySpec | Leaf) -> str:
    return f"a vector of {of.shape[0]} number{'s' * (of.shape[0] != 1)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def slices_of(sizes: Sequence[int]) -> list[slice]:
    """The columns of each part of an action. sizes: the number of values of each part."""
    # numpy takes ten times as long to add a few numbers, and every step needs the slices.
    return [slice(stop - size, stop) for size, stop in zip(sizes, accumulate(sizes), strict=True)]


def best_choices(outputs: NDArray[np.floating], sizes: Sequence[int]) -> NDArray[np.int64]:
    """The highest-valued choice of each part, int64[N, parts]."""
    if len(sizes) == 1:
        best: NDArray[np.int64] = outputs[:, : sizes[0]].argmax(axis=1)
        return best[:, None]
    return np.stack([outputs[:, part].argmax(axis=1) for part in slices_of(sizes)], axis=1)


def allowed_choices(
    allowed: NDArray[np.bool_], uniforms: NDArray[np.float64], sizes: Sequence[int]
) -> NDArray[np.int64]:
    """Uniformly random allowed choices, int64[N, parts].

    allowed: bool[N, sum of sizes], at least one choice of each part. uniforms: float64[N, parts] in [0, 1).
    """
    chosen = np.empty(uniforms.shape, np.int64)
    for number, part in enumerate(slices_of(sizes)):
        counts = allowed[:, part].cumsum(axis=1)
        # The k-th allowed choice is the first one with a count above k.
        limits = np.floor(uniforms[:, number] * counts[:, -1])
        chosen[:, number] = (counts > limits[:, None]).argmax(axis=1)
    return chosen
