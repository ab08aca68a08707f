"""Limits the steps of all streams with one policy, if the run sets a limit."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from actor_service.policies.policy import OnnxPolicy


@dataclass(eq=False)
class PolicyPace:
    """Counts steps with one policy. Simulators come and go, so the limit counts the steps of all together.

    most_steps: limit of each environment; 0 for no limit. environments: environments of an actor in this run.
    patience_s: longest wait for a newer policy. After it, the same policy continues.
    """

    most_steps: int
    environments: int
    patience_s: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._told = self.most_steps
        self._policy: OnnxPolicy | None = None
        self._steps = 0
        self._waits_since: float | None = None
        self._continues = False

    def set_most_steps(self, steps: int) -> None:
        """Change the limit. 0 restores the initial limit."""
        self.most_steps = steps or self._told

    def acted(self, policy: OnnxPolicy, steps: int) -> None:
        """Count steps with a policy."""
        if policy is not self._policy:
            self._policy, self._steps, self._waits_since, self._continues = policy, 0, None, False
        self._steps += steps

    def wait_s(self, policy: OnnxPolicy) -> float:
        """Seconds that streams must still wait for a newer policy than this one; 0 if they may act."""
        most = self.most_steps * self.environments
        if not most or policy is not self._policy or self._steps < most or self._continues:
            return 0.0
        now = self.clock()
        if self._waits_since is None:
            self._waits_since = now
        left = self._waits_since + self.patience_s - now
        self._continues = left <= 0
        return max(0.0, left)
