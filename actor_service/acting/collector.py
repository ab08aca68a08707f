"""The acting loop: steps all environments with the newest policy and collects segments of transitions."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.acting.frame_stack import FrameStack
from actor_service.acting.memory import PolicyStates
from actor_service.acting.turns import PolicyTurns
from actor_service.counts import ActorCounts
from actor_service.environments import Environments, Fault
from actor_service.policies.policy import OnnxPolicy
from actorq.domain.columns import PRESENT, Per, columns_of, state_column
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Episode, PolicySpan, Segment, count_environment_steps

_OLDEST = 255

# Upper bounds for the encoded size of a segment without its columns.
_HALF_EPISODE_BYTES = 11
_SPAN_BYTES = 40
_HEADERS_BYTES = 64
_COLUMN_HEADER_BYTES = 48


def fitting_segment_length(
    spec: EnvironmentSpec, environments: int, longest: int, max_bytes: int, further: Collection[str] = ()
) -> int:
    """Steps per segment: at most `longest`, few enough for a message of `max_bytes`, and at least 1.

    The estimate assumes a new policy at each step and an episode's end at every second step. further: more columns.
    """
    columns = columns_of(spec, further)
    environments *= spec.agent_count
    row = environments * (sum(each.nbytes for each in columns if each.per is not Per.SEGMENT) + _HALF_EPISODE_BYTES)
    # A segment has frame_stack more rows than steps. With an odd number of steps, it may hold half an episode more.
    more = {Per.ROW: spec.frame_stack, Per.STEP: 0, Per.SEGMENT: 1}
    once = environments * (sum(more[each.per] * each.nbytes for each in columns) + _HALF_EPISODE_BYTES)
    once += _HEADERS_BYTES + sum(_COLUMN_HEADER_BYTES + len(each.name) for each in columns)
    return max(1, min(longest, (max_bytes - once) // (row + _SPAN_BYTES)))


@dataclass(eq=False)
class SegmentCollector:
    """Collects segments. The loop asks for the newest policy before each step, so a new policy acts from the next step.

    When an environment fails in a step, its rows of that step are not valid, and the rows before end its episode. The
    other environments' rows stay valid. If failures leave a segment without any valid row, it is dropped and counted.
    The next segment then does not have `follows`.

    explore: maps the policy and stacked observations [N, ...] to the environments' actions [N, *action].
    watched: context of each call to the environments, for a watchdog.
    columns: the columns of `explore` (see `BehaviorPolicy`), copied into the segments.
    sampled: end a segment before the loop waits for a newer policy, because the learner may need its steps for that
        policy.
    state_size: numbers in the state of a policy with memory; 0 without memory.
    """

    environments: Environments
    turns: PolicyTurns
    explore: Callable[[OnnxPolicy, NDArray[Any]], NDArray[Any]]
    segment_length: int
    seed: int
    counts: ActorCounts = field(default_factory=ActorCounts)
    watched: AbstractContextManager[Any] = field(default_factory=nullcontext)
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    sampled: bool = False
    state_size: int = 0

    def __post_init__(self) -> None:
        self._spec, environments = self.environments.spec, self.environments
        self._drawn = self.columns.get("actions")
        self._further = {name: values for name, values in self.columns.items() if name != "actions"}
        self._step_columns = [each for each in columns_of(self._spec, self.columns) if each.per is Per.STEP]
        self._stack = FrameStack(self._spec, environments.rows)
        self._states = PolicyStates(environments.rows, self.state_size) if self.state_size else None
        self._context_rows = self._spec.frame_stack - 1
        with self.watched:
            self._observations = environments.reset(self.seed)
        # Frames before the segment. Before the first episode their content is unused; the segment's ages mark this.
        self._context = np.repeat(self._observations[None], self._context_rows, axis=0)
        self._seen = self._stack.push(self._observations, environments.lengths)
        self._sequence = 0
        self._follows = False
        self.environment_steps = 0

    def collect(self, stop: threading.Event) -> Segment | None:
        """Collect the next segment. Setting `stop` meanwhile shortens the segment. None when no step was taken."""
        while True:
            segment, is_lost = self._collect(stop)
            if not is_lost:
                return segment
            self.counts.dropped_segments.add()

    def _collect(self, stop: threading.Event) -> tuple[Segment | None, bool]:
        """The next segment or None, and whether failures left it without a valid row. (None, False) without a step."""
        length, before = self.segment_length, self._context_rows
        environments, explore, watched = self.environments, self.explore, self.watched
        turns, acting, drawn, states = self.turns, None, self._drawn, self._states
        arrays, observations = self._new_arrays(), self._new_observations()
        further = [(arrays[name], values) for name, values in self._further.items()]
        actions, rewards, valid = arrays["actions"], arrays["rewards"], arrays["valid"]
        terminated, truncated, present = arrays["terminated"], arrays["truncated"], arrays.get(PRESENT)
        spans: list[PolicySpan] = []
        episodes: tuple[Episode, ...] = ()
        failed = False
        of_segment: dict[str, NDArray[Any]] = {"ages": np.minimum(environments.lengths, _OLDEST).astype(np.uint8)}
        if states is not None:
            of_segment[state_column(self.state_size)] = states.values.copy()
        steps = 0
        while steps < length:
            # The learner may need these steps for the newer policy, so the segment ends before the wait.
            if steps and self.sampled and turns.waits:
                break
            policy = turns.next(stop)
            if policy is None:
                break
            if states is not None:
                states.give(policy)
            chosen = explore(policy, self._seen)
            actions[steps] = chosen if drawn is None else drawn
            for array, values in further:
                array[steps] = values
            if present is not None:
                present[steps] = environments.present
            if policy is not acting:
                spans.append(PolicySpan(steps, policy.descriptor.version, policy.descriptor.effective_scheme))
                acting = policy
            with watched:
                step = environments.step(actions[steps] if drawn is None else chosen)
            if states is not None:
                states.take(policy)
                states.begin(environments.lengths)
            self._seen = self._stack.push(step.observations, environments.lengths)
            rewards[steps], terminated[steps], truncated[steps] = step.rewards, step.terminated, step.truncated
            valid[steps] = step.valid
            episodes += step.episodes
            if step.faults:
                failed = True
                self._end_episodes(step.faults, steps, truncated, valid)
            steps += 1
            observations[before + steps] = step.observations
        self._observations = observations[before + steps]
        self._context = observations[steps : steps + before]
        is_lost = failed and not valid[:steps].any()
        if steps == 0 or is_lost:
            self._follows &= not is_lost
            return None, is_lost
        self.environment_steps += count_environment_steps(valid[:steps], self._spec.agent_count)
        columns = {
            "observations": observations[: before + steps + 1],
            **{name: array[:steps] for name, array in arrays.items()},
            **of_segment,
        }
        return self._segment(columns, spans, episodes), False

    def _segment(
        self, columns: Mapping[str, NDArray[Any]], spans: Sequence[PolicySpan], episodes: tuple[Episode, ...]
    ) -> Segment:
        """The next segment of the sequence."""
        self._sequence += 1
        segment = Segment(self._sequence, columns, tuple(spans), episodes, follows=self._follows)
        self._follows = True
        return segment

    def _new_observations(self) -> NDArray[Any]:
        """Observations of a segment: its context and first observation, and uninitialized rows for its steps."""
        rows = self._context_rows + self.segment_length + 1
        observed = self._spec.observations
        observations = np.empty((rows, self.environments.rows, *observed.shape), observed.dtype)
        observations[: self._context_rows] = self._context
        observations[self._context_rows] = self._observations
        return observations

    def _new_arrays(self) -> dict[str, Any]:
        """Uninitialized columns of the segment's steps, [T, N, ...], by name."""
        shape = self.segment_length, self.environments.rows
        return {each.name: np.empty((*shape, *each.shape), each.dtype) for each in self._step_columns}

    def _end_episodes(
        self, faults: Sequence[Fault], step: int, truncated: NDArray[np.bool_], valid: NDArray[np.bool_]
    ) -> None:
        """Count the faults of a step. End their episodes at the step before, whose next observation is still valid.

        truncated, valid: bool[T, N], of the segment.
        """
        agents = self._spec.agent_count
        for fault in faults:
            self.counts.add_fault(fault.restarted)
            if step:
                rows = slice(fault.environment * agents, (fault.environment + 1) * agents)
                truncated[step - 1, rows] |= valid[step - 1, rows]
