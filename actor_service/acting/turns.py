"""Which policy takes the next step: the newest one, and none for much longer than it is meant to."""

import threading
import time

from actor_service.counts import ActorCounts
from actor_service.policies.policy import OnnxPolicy, PolicySlot

_WAIT_FOR_FIRST_S = 1.0
# How long to stand still for a newer policy. Where none comes, as without a quantizer or while training is paused,
# acting on is better than not acting.
_PATIENCE_S = 1.0


class PolicyTurns:
    """Takes the policy for each step from the slot.

    most_steps: that a policy takes before a newer one is waited for; 0 for any number. When none comes within
        `patience_s` seconds, the policy goes on until one does, without further waiting.
    """

    def __init__(
        self,
        slot: PolicySlot,
        most_steps: int = 0,
        counts: ActorCounts | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._slot = slot
        self._most_steps = most_steps
        self._counts = counts or ActorCounts()
        self._patience_s = patience_s
        self._policy: OnnxPolicy | None = None
        self._steps = 0

    def next(self, stop: threading.Event) -> OnnxPolicy | None:
        """The policy for the next step; None when `stop` is set."""
        policy = self._slot.peek() or self._first(stop)
        if policy is not None and policy is self._policy and self._steps == self._most_steps:
            policy = self._newer(policy)
        if policy is None or stop.is_set():
            return None
        if policy is not self._policy:
            self._policy, self._steps = policy, 0
            self._slot.activated(policy.descriptor)
        self._steps += 1
        return policy

    def _first(self, stop: threading.Event) -> OnnxPolicy | None:
        policy = None
        while policy is None and not stop.is_set():
            policy = self._slot.wait(lambda _: True, _WAIT_FOR_FIRST_S)
        return policy

    def _newer(self, policy: OnnxPolicy) -> OnnxPolicy:
        acting, started = policy.descriptor, time.perf_counter()
        newer = self._slot.wait(lambda newest: newest is not acting, self._patience_s)
        self._counts.policy_wait_seconds.observe(time.perf_counter() - started)
        return newer or policy
