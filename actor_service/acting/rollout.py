"""The acting loop: steps all environments with the newest policy and collects segments of transitions."""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.acting.explorer import ActionColumns
from actor_service.acting.frame_stack import FrameStack
from actor_service.acting.turns import PolicyTurns
from actor_service.counts import ActorCounts
from actor_service.environments import Environments, Fault
from actor_service.policies.policy import OnnxPolicy
from actorq.domain.trajectory import EnvironmentSpec, Episode, PolicySpan, Segment
from actorq.watchdog import Watched

_OLDEST = 255

# Upper bounds for the encoded parts of a segment other than its columns.
_HALF_EPISODE_BYTES = 11
_SPAN_BYTES = 40
_HEADERS_BYTES = 256
_NO_COLUMNS = ActionColumns()


def fitting_segment_length(
    spec: EnvironmentSpec, environments: int, longest: int, max_bytes: int, columns: ActionColumns = _NO_COLUMNS
) -> int:
    """Steps per segment: at most `longest`, few enough for a message of `max_bytes`, and at least 1.

    The estimate allows a new policy at each step and an episode's end at every second step.

    columns: the columns about actions that segments also hold.
    """
    flags_and_reward = 3 + 4
    actions = (1 + (columns.greedy is not None)) * spec.actions.nbytes + 4 * (columns.log_probabilities is not None)
    row = environments * (spec.observations.nbytes + actions + flags_and_reward + _HALF_EPISODE_BYTES)
    # A segment has frame_stack more rows of observations than steps, and one age. An odd number of steps may hold half
    # an episode more.
    once = environments * (spec.frame_stack * spec.observations.nbytes + 1 + _HALF_EPISODE_BYTES) + _HEADERS_BYTES
    return max(1, min(longest, (max_bytes - once) // (row + _SPAN_BYTES)))


class Rollout:
    """Collects segments. The loop asks for the newest policy before each step, so a new policy acts from the next step.

    A step in which an environment failed is no transition of that environment: its row is not valid, as one that only
    resets, and the row before is the last one of its episode. The other environments' rows stay. A segment without any
    valid row because environments failed is dropped and counted. The next one does not tell that it `follows`.

    Where actions are drawn, a segment ends before the loop waits for a newer policy.

    explore: maps the policy and stacked observations [N, ...] to the environments' actions [N, *action].
    watched: context of each call to the environments, for a watchdog.
    columns: further columns of `explore`, copied into the segments.
    """

    def __init__(
        self,
        environments: Environments,
        turns: PolicyTurns,
        explore: Callable[[OnnxPolicy, NDArray[Any]], NDArray[Any]],
        segment_length: int,
        seed: int,
        counts: ActorCounts | None = None,
        watched: Watched | None = None,
        columns: ActionColumns = _NO_COLUMNS,
    ) -> None:
        self._environments = environments
        self._spec = environments.spec
        self._turns = turns
        self._explore = explore
        self._columns = columns
        self._length = segment_length
        self._counts = counts or ActorCounts()
        self._watched = watched or nullcontext()
        self._stack = FrameStack(self._spec, environments.count)
        self._context_rows = self._spec.frame_stack - 1
        with self._watched:
            self._observations = environments.reset(seed)
        # Frames before the segment. Their content is unused before the first episode, as the segment's ages tell.
        self._context = np.repeat(self._observations[None], self._context_rows, axis=0)
        self._seen = self._stack.push(self._observations, environments.lengths)
        self._sequence = 0
        self._follows = False
        self.environment_steps = 0

    def collect(self, stop: threading.Event) -> Segment | None:
        """Collect the next segment. It is shorter when `stop` is set meanwhile; None when no step was taken."""
        while True:
            segment, is_lost = self._collect(stop)
            if not is_lost:
                return segment
            self._counts.dropped_segments.add()

    def _collect(self, stop: threading.Event) -> tuple[Segment | None, bool]:
        """A segment, or whether it was lost to faults; neither when `stop` is set before the first step."""
        length, count, before = self._length, self._environments.count, self._context_rows
        environments, explore, watched = self._environments, self._explore, self._watched
        turns, acting, columns = self._turns, None, self._columns
        spec, arrays = self._spec, self._new_arrays()
        observations = np.empty((before + length + 1, count, *spec.observations.shape), spec.observations.dtype)
        observations[:before] = self._context
        observations[before] = self._observations
        actions, rewards, valid = arrays["actions"], arrays["rewards"], arrays["valid"]
        terminated, truncated = arrays["terminated"], arrays["truncated"]
        greedy_actions, log_probabilities = arrays.get("greedy_actions"), arrays.get("log_probabilities")
        spans: list[PolicySpan] = []
        episodes: tuple[Episode, ...] = ()
        failed = False
        ages = np.minimum(environments.lengths, _OLDEST).astype(np.uint8)
        steps = 0
        while steps < length:
            # The learner may need these steps for the newer policy, so they must not wait for it here.
            if steps and log_probabilities is not None and turns.waits:
                break
            policy = turns.next(stop)
            if policy is None:
                break
            chosen = explore(policy, self._seen)
            actions[steps] = chosen if columns.drawn is None else columns.drawn
            if greedy_actions is not None:
                greedy_actions[steps] = columns.greedy
            if log_probabilities is not None:
                log_probabilities[steps] = columns.log_probabilities
            if policy is not acting:
                spans.append(PolicySpan(steps, policy.descriptor.version, policy.descriptor.effective_scheme))
                acting = policy
            with watched:
                step = environments.step(actions[steps] if columns.drawn is None else chosen)
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
        self.environment_steps += int(np.count_nonzero(valid[:steps]))
        self._sequence += 1
        segment = Segment(
            sequence=self._sequence,
            observations=observations[: before + steps + 1],
            spans=tuple(spans),
            ages=ages,
            episodes=episodes,
            follows=self._follows,
            **{name: array[:steps] for name, array in arrays.items()},
        )
        self._follows = True
        return segment, False

    def _new_arrays(self) -> dict[str, Any]:
        """Uninitialized columns of a segment, [T, N, ...], by their names in `Segment`, without the observations."""
        shape, action = (self._length, self._environments.count), self._spec.actions
        arrays: dict[str, Any] = {name: np.empty(shape, np.bool_) for name in ("terminated", "truncated", "valid")}
        arrays["actions"] = np.empty((*shape, *action.shape), action.dtype)
        arrays["rewards"] = np.empty(shape, np.float32)
        if self._columns.greedy is not None:
            arrays["greedy_actions"] = np.empty_like(arrays["actions"])
        if self._columns.log_probabilities is not None:
            arrays["log_probabilities"] = np.empty_like(arrays["rewards"])
        return arrays

    def _end_episodes(
        self, faults: Sequence[Fault], step: int, truncated: NDArray[np.bool_], valid: NDArray[np.bool_]
    ) -> None:
        """Count faults of a step, and cut their episodes at the step before: its next observation is still a good one.

        truncated, valid: bool[T, N], of the segment.
        """
        for fault in faults:
            self._counts.add_fault(fault.restarted)
            if step and valid[step - 1, fault.environment]:
                truncated[step - 1, fault.environment] = True
