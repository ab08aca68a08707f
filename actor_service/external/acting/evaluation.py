"""Evaluations in episodes of simulators: marked episodes with greedy actions of one policy."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from actor_service.external.acting.sizes import SizedPolicy
from actor_service.policies.policy import OnnxPolicy
from actor_service.roles.evaluation import evaluation_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Episode, Evaluation
from actorq.errors import UnavailableError


class MarkedEpisodes:
    """The episodes of one evaluation at a time. Thread-safe.

    The evaluator calls `run`. The acting loop calls the other methods: `claim` where an episode begins, then `ended`,
    or `lost` if its stream ends first. A lost episode is replaced. The first episodes to begin are taken, not the
    first ones to end, because those would be short.

    steps: steps of all marked episodes so far. explored: steps of the exploring ones.
    """

    def __init__(self) -> None:
        self.steps = self.explored = 0
        self._changed = threading.Condition()
        self._policy: SizedPolicy | None = None
        self._missing = 0
        self._episodes: list[Episode] = []

    @property
    def policy(self) -> SizedPolicy | None:
        """The policy of the running evaluation; None without one."""
        return self._policy

    def claim(self) -> bool:
        """Whether an episode that begins now is one of the evaluation."""
        if not self._missing:
            return False
        with self._changed:
            claims = self._missing > 0
            self._missing -= claims
            return claims

    def lost(self) -> None:
        """Another episode must replace a claimed one."""
        with self._changed:
            self._missing += self._policy is not None

    def ended(self, episode: Episode) -> None:
        """Record a claimed episode that has ended."""
        with self._changed:
            self._episodes.append(episode)
            self._changed.notify_all()

    def wake(self) -> None:
        """Make `run` check its event `stop` again."""
        with self._changed:
            self._changed.notify_all()

    def run(self, policy: SizedPolicy, episodes: int, stop: threading.Event) -> list[Episode]:
        """Wait for the episodes of an evaluation. Raises UnavailableError if `stop` is set before their end."""
        with self._changed:
            self._policy, self._missing, self._episodes = policy, episodes, []
            try:
                self._changed.wait_for(lambda: stop.is_set() or len(self._episodes) >= episodes)
                if len(self._episodes) < episodes:
                    raise UnavailableError("the evaluation was stopped because the actor ends")
                return self._episodes
            finally:
                self._missing = 0


@dataclass(eq=False)
class StreamEvaluation:
    """Evaluates policies for the evaluator, as `EvaluationEpisodes` does with environments of its own."""

    marked: MarkedEpisodes
    spec: EnvironmentSpec
    episodes: int
    rows: int
    needs: Collection[str] = ()

    def run(
        self,
        policy: OnnxPolicy,
        seed: int,
        sequence: int,
        stop: threading.Event,
        on_episode: Callable[[Episode], None] = lambda episode: None,
    ) -> Evaluation:
        """See `EvaluationEpisodes.run`. `seed` has no effect, because simulators have seeds of their own."""
        assert isinstance(policy, SizedPolicy)
        started = time.monotonic()
        episodes = self.marked.run(policy, self.episodes, stop)
        for episode in episodes:
            on_episode(episode)
        return evaluation_of(policy, episodes, sequence, time.monotonic() - started, self.spec)

    def close(self) -> None:
        """Nothing to release."""


class StepBudget:
    """Limits the share of steps for evaluations. share: above 0, at most 1."""

    def __init__(self, marked: MarkedEpisodes, share: float) -> None:
        self._marked, self._share = marked, share
        self._charged = self._seen = 0

    def has_some(self) -> bool:
        """Whether an evaluation may begin."""
        self._count(1)
        return self._charged <= self._share * (self._marked.explored + self._charged)

    def excuse(self) -> None:
        """Do not charge the steps since the last call of a method."""
        self._count(0)

    def _count(self, charged: int) -> None:
        steps = self._marked.steps
        self._charged += charged * (steps - self._seen)
        self._seen = steps
