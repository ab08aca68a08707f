"""The acting loop: steps all environments with the newest policy and cuts what happens into segments."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.environments import Environments
from actor_service.policy import OnnxPolicy, PolicySlot
from actorq.trajectory import EnvironmentSpec, Episode, PolicySpan, Segment

_WAIT_FOR_POLICY_S = 1.0

# What the parts of an encoded segment besides its columns take at most.
_HALF_EPISODE_BYTES = 11
_SPAN_BYTES = 40
_HEADERS_BYTES = 256


def fitting_segment_length(spec: EnvironmentSpec, environments: int, longest: int, max_bytes: int) -> int:
    """Steps per segment, at most `longest`, so that its message takes at most `max_bytes`; at least 1.

    There is room for a new policy at each step and for an episode's end at every other one.
    """
    flags_and_reward = 3 + 4
    row = environments * (spec.observations.nbytes + spec.actions.nbytes + flags_and_reward + _HALF_EPISODE_BYTES)
    # One row of observations more than steps; for an odd number of steps, half an episode more.
    once = environments * (spec.observations.nbytes + _HALF_EPISODE_BYTES) + _HEADERS_BYTES
    return max(1, min(longest, (max_bytes - once) // (row + _SPAN_BYTES)))


class Rollout:
    """Collects segments. The policy is looked up before each step, so a new one acts from the next step on.

    explore: turns the policy's outputs [N, ...] into actions [N, *action].
    """

    def __init__(
        self,
        environments: Environments,
        spec: EnvironmentSpec,
        slot: PolicySlot,
        explore: Callable[[NDArray[np.float32]], NDArray[Any]],
        segment_length: int,
        seed: int,
    ) -> None:
        self._environments = environments
        self._spec = spec
        self._slot = slot
        self._explore = explore
        self._length = segment_length
        self._observations = environments.reset(seed)
        self._policy: OnnxPolicy | None = None
        self._sequence = 0
        self.environment_steps = 0

    def collect(self, stop: threading.Event) -> Segment | None:
        """The next segment; shorter when `stop` is set meanwhile, None when it is set before a first step."""
        length, count = self._length, self._environments.count
        observations = np.empty((length + 1, count, *self._spec.observations.shape), self._spec.observations.dtype)
        actions = np.empty((length, count, *self._spec.actions.shape), self._spec.actions.dtype)
        rewards = np.empty((length, count), np.float32)
        terminated, truncated, valid = (np.empty((length, count), np.bool_) for _ in range(3))
        spans: list[PolicySpan] = []
        episodes: list[Episode] = []
        steps = 0
        while steps < length:
            policy = self._newest_policy(stop)
            if policy is None or stop.is_set():
                break
            actions[steps] = self._explore(policy(self._observations))
            if policy is not self._policy or not spans:
                self._note_policy(policy, steps, spans)
            step = self._environments.step(actions[steps])
            observations[steps] = self._observations
            rewards[steps], valid[steps] = step.rewards, step.valid
            terminated[steps], truncated[steps] = step.terminated, step.truncated
            episodes += step.episodes
            self._observations = step.observations
            steps += 1
        if steps == 0:
            return None
        observations[steps] = self._observations
        self.environment_steps += int(np.count_nonzero(valid[:steps]))
        self._sequence += 1
        return Segment(
            sequence=self._sequence,
            observations=observations[: steps + 1],
            actions=actions[:steps],
            rewards=rewards[:steps],
            terminated=terminated[:steps],
            truncated=truncated[:steps],
            valid=valid[:steps],
            spans=tuple(spans),
            episodes=tuple(episodes),
        )

    def _newest_policy(self, stop: threading.Event) -> OnnxPolicy | None:
        policy = self._slot.peek()
        while policy is None and not stop.is_set():
            policy = self._slot.wait(lambda _: True, _WAIT_FOR_POLICY_S)
        return policy

    def _note_policy(self, policy: OnnxPolicy, step: int, spans: list[PolicySpan]) -> None:
        if policy is not self._policy:
            self._slot.activated(policy.descriptor)
            self._policy = policy
        spans.append(PolicySpan(step, policy.descriptor.version, policy.descriptor.effective_scheme))
