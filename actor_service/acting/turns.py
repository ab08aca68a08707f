"""Chooses the policy for each step: the newest policy, for a limited number of steps if the run sets a limit."""

import threading
import time

from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actorq.domain.status import RunSpec


class PolicyTurns:
    """Gets the policy for each step from the slot.

    most_steps: number of steps with one policy after which the loop waits for a newer one; 0 for no limit. When no
        newer policy comes within `patience_s` seconds, for example because training is paused, the same policy
        continues without waits. `set_most_steps` changes the limit from another thread.
    """

    def __init__(self, slot: PolicySlot, most_steps: int = 0, patience_s: float = RunSpec.policy_patience_s) -> None:
        self._slot = slot
        self._told = self._most_steps = most_steps
        self._patience_s = patience_s
        self._policy: OnnxPolicy | None = None
        self._steps = 0

    def next(self, stop: threading.Event) -> OnnxPolicy | None:
        """The policy for the next step; waits for the first policy. None once `stop` is set or the slot is closed."""
        policy = self._slot.peek() or self._slot.wait(lambda _: True)
        if policy is not None and policy is self._policy and self._steps == self._most_steps:
            policy = self._newer(policy)
        if policy is None or stop.is_set():
            return None
        if policy is not self._policy:
            self._policy, self._steps = policy, 0
            self._slot.activated(policy.descriptor)
        self._steps += 1
        return policy

    def set_most_steps(self, steps: int) -> None:
        """Change the limit of steps with one policy, also for a loop that waits now. 0 restores the initial limit."""
        self._most_steps = steps or self._told
        self._slot.wake()

    @property
    def waits(self) -> bool:
        """Whether the next call waits for a newer policy."""
        policy = self._policy
        return policy is not None and self._steps == self._most_steps and self._slot.peek() is policy

    def _newer(self, policy: OnnxPolicy) -> OnnxPolicy:
        acting, started = policy.descriptor, time.perf_counter()
        newer = self._slot.wait(lambda newest: newest is not acting or self._steps < self._most_steps, self._patience_s)
        self._slot.counts.policy_wait_seconds.observe(time.perf_counter() - started)
        return newer or policy
