"""Results of actors: columnar trajectory segments, finished episodes and evaluations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from actorq.domain.columns import LOG_PROBABILITIES, PRESENT, Array, Column, columns_of
from actorq.domain.leaves import fault_of
from actorq.domain.limits import LARGEST_NUMBER, within_numbers
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import InvalidInputError
from actorq.text import one_line

E = TypeVar("E", bound=np.generic)

# Tolerance as a share of an action's range, because a policy's arithmetic rounds.
_BOUNDS_SLACK = 1e-3
# Limits on a peer's names, and on the parts of an action, in an error.
_SHOWN_BYTES, _SHOWN_PARTS = 300, 8


@dataclass(frozen=True)
class PolicySpan:
    """The policy that chose the actions of all environments of the batch, from step `first_step` of the segment on."""

    first_step: int
    version: int
    scheme: str


class Episode(NamedTuple):
    """One finished episode: undiscounted return, length in steps, index of its environment, success (None: unknown).

    agent_returns: of each agent, in the order of the spec; their sum is the return. Empty for a single agent.
    """

    episode_return: float
    length: int
    environment: int
    success: bool | None = None
    agent_returns: tuple[float, ...] = ()


class _ColumnOf(Generic[E]):
    """The column with the attribute's name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, segment: "Segment", owner: type) -> NDArray[E]:
        return cast("NDArray[E]", segment.columns[self._name])


def count_environment_steps(valid: NDArray[np.bool_], agents: int) -> int:
    """Number of environment steps among steps bool[T, N * agents]: those in which at least one agent acts."""
    acts = valid.reshape(len(valid), -1, agents).any(axis=2) if agents > 1 else valid
    return int(np.count_nonzero(acts))


@dataclass(frozen=True)
class Segment:
    """T consecutive steps of N environments, time-major. With A agents, an environment has A neighboring columns.

    columns: by name. They are the columns of `columns_of`, with these meanings:

    observations: [K - 1 + T + 1, N, *observation] with K the frame stack. The first K - 1 rows precede the segment and
                  only serve as stacked frames. Of the other rows, row t + 1 follows action t. The last row only serves
                  to bootstrap.
    actions:      [T, N, *action], within the bounds. With `log_probabilities`, continuous actions are the drawn values
                  before clipping or squashing, in units of half the range around its middle
    rewards:      float32[T, N]
    terminated:   bool[T, N], the environment reached a terminal state: do not bootstrap past it
    truncated:    bool[T, N], the episode was cut by a time limit: do bootstrap past it
    valid:        bool[T, N], false if the step only reset the environment (next-step autoreset): the observation of
                  this row is the final one of the ended episode, and the environment ignored the action.
                  Also false if the environment failed in the step: the observation is the last good one of its episode.
                  Also false if the agent was absent: an agent's row ends where it leaves, and begins where it comes
    ages:         uint8[N], steps since the reset at the segment's first action, at most 255. Observations before the
                  reset belong to another episode. A stack repeats the episode's first observation instead.

    spans:        acting policies with ascending `first_step`, which is 0 for the first
    episodes:     episodes that ended inside the segment
    follows:      whether step 0 directly follows the last step of segment `sequence` - 1, in every environment;
                  False after dropped steps, so that no return spans the gap
    """

    sequence: int
    columns: Mapping[str, Array]
    spans: tuple[PolicySpan, ...]
    episodes: tuple[Episode, ...] = ()
    follows: bool = False

    observations = _ColumnOf[np.generic]()
    actions = _ColumnOf[np.generic]()
    rewards = _ColumnOf[np.float32]()
    terminated = _ColumnOf[np.bool_]()
    truncated = _ColumnOf[np.bool_]()
    valid = _ColumnOf[np.bool_]()
    ages = _ColumnOf[np.uint8]()

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
        """Number of transitions: the T * N steps without the resets."""
        return int(np.count_nonzero(self.valid))

    def environment_steps(self, agents: int, first: int = 0, stop: int | None = None) -> int:
        """Number of environment steps from step `first` to `stop`: steps in which at least one agent acts."""
        return count_environment_steps(self.valid[first:stop], agents)

    def policy_versions(self) -> NDArray[np.int64]:
        """The policy version that chose the action of each step, int64[T]."""
        versions = np.empty(self.steps, np.int64)
        for span in self.spans:
            versions[span.first_step :] = span.version
        return versions

    def with_columns(self, **changed: Array) -> "Segment":
        """The segment with some columns replaced or added."""
        return replace(self, columns={**self.columns, **changed})

    def check(self, spec: EnvironmentSpec, expected: Sequence[Column] = ()) -> None:
        """Raise InvalidInputError unless all columns fit `spec` and each other, within `LARGEST_NUMBER`.

        expected: the columns of the run; by default the columns that the segment's names imply.
        """
        expected = expected or columns_of(spec, self.columns)
        if len(expected) != len(self.columns) or not all(column.name in self.columns for column in expected):
            names = ", ".join(column.name for column in expected)
            got = one_line(", ".join(self.columns), _SHOWN_BYTES)
            raise InvalidInputError(f"segment: columns must be {names}, got {got}")
        steps, environments = self.rewards.shape if self.rewards.ndim == 2 else (0, 0)
        if steps < 1 or environments < 1:
            raise InvalidInputError(f"segment: rewards must be [T >= 1, N >= 1], got {list(self.rewards.shape)}")
        for column in expected:
            shape = column.array_shape(steps, environments, spec.frame_stack)
            _check_shape(column.name, self.columns[column.name], shape, column.dtype)
        self._check_actions(spec)
        if spec.leaves and (fault := fault_of(spec.leaves, self.observations)):
            raise InvalidInputError(f"segment: observations: {fault}")
        for column in expected:
            # Flags and bytes cannot exceed the limit.
            if column.dtype.itemsize > 1:
                _check_numbers(column.name, self.columns[column.name])
        self._check_spans(steps)
        self._check_agents(spec, environments)
        for episode in self.episodes:
            length, environment = episode.length, episode.environment
            most = environments // spec.agent_count
            if not (math.isfinite(episode.episode_return) and length >= 1 and 0 <= environment < most):
                raise InvalidInputError(
                    f"segment: episodes must have finite returns, lengths of at least 1 and environments below "
                    f"{most}, got {episode}"
                )
            if len(episode.agent_returns) != len(spec.agents):
                raise InvalidInputError(
                    f"segment: episodes must have a return for each of {len(spec.agents)} agents, got "
                    f"{len(episode.agent_returns)}"
                )

    def _check_agents(self, spec: EnvironmentSpec, rows: int) -> None:
        """Raise InvalidInputError for rows of absent agents that count as steps."""
        if not spec.agents:
            return
        if rows % spec.agent_count:
            raise InvalidInputError(
                f"segment: columns must have a multiple of {spec.agent_count} rows, one for each agent, got {rows}"
            )
        if (self.valid & ~self.columns[PRESENT].astype(np.bool_)).any():
            raise InvalidInputError("segment: a step is valid, but its agent is absent")

    def _check_actions(self, spec: EnvironmentSpec) -> None:
        """Raise InvalidInputError for actions or logarithms that no correct actor sends."""
        logarithms = self.columns.get(LOG_PROBABILITIES)
        if not spec.sizes:
            if logarithms is None:
                self._check_bounds(spec.actions)
            return
        if spec.has_parts:
            parts = cast("NDArray[Any]", self.actions[..., : len(spec.sizes)])
            fits = bool(((parts >= 0) & (parts < np.array(spec.sizes)) & (parts == np.rint(parts))).all())
        else:
            fits = int(self.actions.min()) >= 0 and int(self.actions.max()) < spec.sizes[0]
        if not fits:
            sizes = " and ".join(f"[0, {size})" for size in spec.sizes[:_SHOWN_PARTS])
            raise InvalidInputError(f"segment: actions must be in {sizes}")
        if logarithms is not None and not spec.components and (largest := float(logarithms.max())) > 0:
            raise InvalidInputError(
                f"segment: {LOG_PROBABILITIES} of discrete actions must be at most 0, got {largest:g}"
            )

    def _check_bounds(self, spec: ArraySpec) -> None:
        """Raise InvalidInputError for actions outside the bounds. Actors clip actions to the bounds."""
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
    """Results of an evaluator's episodes with one policy version; no `successes` if the environment reports none.

    agents: names of the agents; empty for a single agent. agent_returns: of each agent in each episode, episode by
    episode. The return of an episode is the sum of its agents' returns.
    """

    sequence: int
    policy_version: int
    learner_step: int
    scheme: str
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    duration_s: float
    successes: tuple[bool, ...] = ()
    agents: tuple[str, ...] = ()
    agent_returns: tuple[float, ...] = ()

    def score(self, by_success: bool) -> float | None:
        """The figure that a run's target refers to: the success rate or the mean return."""
        return self.success_rate if by_success else self.mean_return

    @property
    def success_rate(self) -> float | None:
        """Share of the episodes that ended with success; None if the environment does not report success."""
        return float(np.mean(self.successes)) if self.successes else None

    @property
    def mean_return(self) -> float:
        """Mean undiscounted return over the episodes. With several agents, the team's."""
        return float(np.mean(self.returns))

    @property
    def mean_agent_returns(self) -> dict[str, float]:
        """Mean return of each agent over the episodes, by name; empty for a single agent."""
        if not self.agents:
            return {}
        means = np.reshape(self.agent_returns, (-1, len(self.agents))).mean(axis=0)
        return dict(zip(self.agents, means.tolist(), strict=True))


Role = Literal["actor", "evaluator", "standalone"]


def _check_shape(name: str, column: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if column.shape != shape or column.dtype != dtype:
        raise InvalidInputError(f"segment: {name} must be {dtype}{list(shape)}, got {column.dtype}{list(column.shape)}")


def _check_numbers(name: str, column: NDArray[Any]) -> None:
    # False for NaN too.
    if column.size and not (column.max() <= LARGEST_NUMBER and column.min() >= -LARGEST_NUMBER):
        raise InvalidInputError(
            f"segment: {name} must be from {-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g}, got "
            f"{column[~within_numbers(column)][0]:g}; scale them in the environment"
        )
