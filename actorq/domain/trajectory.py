"""Results of actors: columnar trajectory segments, finished episodes and evaluations.

Domain objects only. `actorq.wire` turns them into messages, `learner_service.actors.intake` checks and stores them.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from actorq.domain.environments import NO_ARGUMENTS, EnvironmentArguments
from actorq.errors import InvalidInputError, UserError

Array = NDArray[np.generic]

_FLOAT32, _BOOL, _UINT8 = np.dtype(np.float32), np.dtype(np.bool_), np.dtype(np.uint8)

# What images are of: bytes, and planes of bits as in MinAtar.
_IMAGE_DTYPES = ("uint8", "bool")
# Pixels of a side: the kernel of the smallest network for images.
SMALLEST_IMAGE = 3

# Largest absolute value of an observation, a reward and a drawn action. The squares of gradients, which Adam keeps in
# float32, stay finite (docs/decisions/0051-numbers-of-actors.md).
LARGEST_NUMBER = 1e9

# Share of the range of an action. A policy's arithmetic rounds.
_BOUNDS_SLACK = 1e-3

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
    call it solved, if they say so. A policy sees `frame_stack` successive observations.
    """

    environment_id: str
    observations: ArraySpec
    actions: ArraySpec
    discrete_actions: int
    max_episode_steps: int = 0
    reward_threshold: float | None = None
    frame_stack: int = 1
    environment_arguments: EnvironmentArguments = NO_ARGUMENTS

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
    def image_text(self) -> str:
        """The image that a policy sees in words; empty where observations are no images."""
        if self.image is None:
            return ""
        channels, height, width = self.image
        if self.frame_stack > 1:
            return f"{channels} stacked frames of {height} x {width} pixels"
        order = "last" if self.channels_last else "first"
        return f"images of {height} x {width} pixels with {channels} channel{'s' * (channels != 1)}, channels {order}"

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
        return cls(**{**values, "observations": observations, "actions": actions, "environment_arguments": made_with})


def check_image(spec: EnvironmentSpec) -> None:
    """Raise UserError when the environment has images that none of our own networks takes."""
    if spec.image is not None and min(spec.image[1:]) < SMALLEST_IMAGE:
        _, height, width = spec.image
        raise UserError(
            f"environment {spec.environment_id}: expected images of at least {SMALLEST_IMAGE} x {SMALLEST_IMAGE} "
            f"pixels, got {height} x {width}; give --network MODULE:FUNCTION for layers of your own"
        )


def _fields(spec: EnvironmentSpec) -> dict[str, Any]:
    """The fields of a spec. Fields of its arrays have names such as "observations.shape"."""
    fields: dict[str, Any] = {}
    for name, value in asdict(spec).items():
        fields.update(
            {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        )
    return fields


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


@dataclass(frozen=True)
class PolicySpan:
    """The policy that acted for every environment of the batch, from step `first_step` of the segment on."""

    first_step: int
    version: int
    scheme: str


@dataclass(frozen=True)
class Episode:
    """One finished episode: undiscounted return, length in environment steps, index of its environment."""

    episode_return: float
    length: int
    environment: int


@dataclass(frozen=True)
class Segment:
    """T consecutive steps of N environments, time-major.

    observations: [K - 1 + T + 1, N, *observation] with K the frame stack. The first K - 1 rows precede the segment and
                  only serve as stacked frames. Of the other rows, row t + 1 follows action t. The last row only serves
                  to bootstrap.
    actions:      [T, N, *action], within the bounds; with `log_probabilities`, continuous actions are the drawn values
                  before they are clipped or squashed, in units of half the range around its middle
    rewards:      float32[T, N]
    terminated:   bool[T, N], the environment reached a terminal state: do not bootstrap past it
    truncated:    bool[T, N], the episode was cut by a time limit: do bootstrap past it
    valid:        bool[T, N], false if the step only reset the environment (next-step autoreset): the observation of
                  such a row is the final one of the ended episode, and the environment ignored the action;
                  also false if the environment failed in the step: the observation is the last good one of its episode
    spans:        acting policies with ascending `first_step`, which is 0 for the first
    episodes:     episodes that ended inside the segment
    ages:         uint8[N], steps since the reset at the segment's first action, at most 255. Observations before the
                  reset belong to another episode; a stack repeats the episode's first observation instead.
    greedy_actions: [T, N, *action], continuous actions only: the policy's actions without noise, or the random action
                  itself while actions are uniformly random; None unless the run asked for it
    log_probabilities: float32[T, N], logarithm of the probability (or density) with which the acting policy drew each
                  action; None unless the run asked for it
    follows:      whether step 0 directly follows the last step of the segment `sequence` - 1, in every environment;
                  False after steps that were dropped, so that no return leads across them
    """

    sequence: int
    observations: Array
    actions: Array
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    spans: tuple[PolicySpan, ...]
    ages: NDArray[np.uint8]
    episodes: tuple[Episode, ...] = ()
    greedy_actions: Array | None = None
    log_probabilities: NDArray[np.float32] | None = None
    follows: bool = False

    @property
    def steps(self) -> int:
        """T, the number of steps of each environment."""
        return int(self.rewards.shape[0])

    @property
    def environments(self) -> int:
        """N, the number of environments stepped as one batch."""
        return int(self.rewards.shape[1])

    @property
    def transitions(self) -> int:
        """Number of transitions: those of the T * N steps that are not resets."""
        return int(np.count_nonzero(self.valid))

    def policy_versions(self) -> NDArray[np.int64]:
        """The version that acted at each step, int64[T]."""
        versions = np.empty(self.steps, np.int64)
        for span in self.spans:
            versions[span.first_step :] = span.version
        return versions

    def check(self, spec: EnvironmentSpec) -> None:
        """Raise InvalidInputError unless all columns fit `spec` and each other, within `LARGEST_NUMBER`."""
        steps, environments = self.rewards.shape if self.rewards.ndim == 2 else (0, 0)
        if steps < 1 or environments < 1:
            raise InvalidInputError(f"segment: rewards must be [T >= 1, N >= 1], got {list(self.rewards.shape)}")
        rows, batch = (steps, environments), (spec.frame_stack + steps, environments)
        _check_column("observations", self.observations, (*batch, *spec.observations.shape), spec.observations.dtype)
        _check_shape("actions", self.actions, (*rows, *spec.actions.shape), spec.actions.dtype)
        _check_column("rewards", self.rewards, rows, _FLOAT32)
        _check_column("terminated", self.terminated, rows, _BOOL)
        _check_column("truncated", self.truncated, rows, _BOOL)
        _check_column("valid", self.valid, rows, _BOOL)
        _check_column("ages", self.ages, (environments,), _UINT8)
        if spec.discrete_actions and not (
            int(self.actions.min()) >= 0 and int(self.actions.max()) < spec.discrete_actions
        ):
            raise InvalidInputError(f"segment: actions must be in [0, {spec.discrete_actions})")
        if self.log_probabilities is None:
            self._check_bounds(spec.actions)
        _check_numbers("actions", self.actions)
        if self.greedy_actions is not None:
            if spec.discrete_actions:
                raise InvalidInputError(
                    "segment: greedy_actions are for continuous actions, got them with discrete ones"
                )
            _check_column("greedy_actions", self.greedy_actions, (*rows, *spec.actions.shape), spec.actions.dtype)
        if self.log_probabilities is not None:
            _check_column("log_probabilities", self.log_probabilities, rows, _FLOAT32)
            if spec.discrete_actions and (largest := float(self.log_probabilities.max())) > 0:
                raise InvalidInputError(
                    f"segment: log_probabilities of discrete actions must be at most 0, got {largest:g}"
                )
        self._check_spans(steps)
        for episode in self.episodes:
            if not (
                np.isfinite(episode.episode_return) and episode.length >= 1 and 0 <= episode.environment < environments
            ):
                raise InvalidInputError(
                    f"segment: episodes must have finite returns, lengths of at least 1 and environments below "
                    f"{environments}, got {episode}"
                )

    def _check_bounds(self, spec: ArraySpec) -> None:
        """Raise InvalidInputError for actions that no actor sends, because it clips them to the bounds."""
        if self.actions.dtype.kind != "f" or not spec.bounded:
            return
        low, high = (bound.astype(np.float64) for bound in spec.bounds())
        actions, slack = self.actions.astype(np.float64), _BOUNDS_SLACK * (high - low)
        if (outside := (actions < low - slack) | (actions > high + slack)).any():
            raise InvalidInputError(
                f"segment: actions must be within the environment's bounds, got {actions[outside][0]:g}"
            )

    def _check_spans(self, steps: int) -> None:
        starts = [span.first_step for span in self.spans]
        if not starts or starts[0] != 0 or sorted(set(starts)) != starts or starts[-1] >= steps:
            raise InvalidInputError(
                f"segment: policy spans must start at 0 and ascend below {steps} steps, got first steps {starts}"
            )


@dataclass(frozen=True)
class Evaluation:
    """Results of the episodes of one pinned policy in an evaluator."""

    sequence: int
    policy_version: int
    learner_step: int
    scheme: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    duration_s: float

    @property
    def mean_return(self) -> float:
        """Mean undiscounted return over the episodes."""
        return float(np.mean(self.returns))


Role = Literal["actor", "evaluator", "standalone"]


def _check_column(name: str, column: Array, shape: tuple[int, ...], dtype: DTypeLike) -> None:
    _check_shape(name, column, shape, dtype)
    _check_numbers(name, column)


def _check_shape(name: str, column: Array, shape: tuple[int, ...], dtype: DTypeLike) -> None:
    if column.shape != shape or column.dtype != dtype:
        raise InvalidInputError(
            f"segment: {name} must be {np.dtype(dtype)}{list(shape)}, got {column.dtype}{list(column.shape)}"
        )


def _check_numbers(name: str, column: NDArray[Any]) -> None:
    # False for NaN too.
    if column.size and not (column.max() <= LARGEST_NUMBER and column.min() >= -LARGEST_NUMBER):
        raise InvalidInputError(
            f"segment: {name} must be from {-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}, got "
            f"{column[~within_numbers(column)][0]:g}; scale them in the environment"
        )


def within_numbers(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Which numbers are from -LARGEST_NUMBER to LARGEST_NUMBER, bool of their shape; NaN is not."""
    return (numbers >= -LARGEST_NUMBER) & (numbers <= LARGEST_NUMBER)
