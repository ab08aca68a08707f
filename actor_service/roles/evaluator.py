"""The evaluator role: runs episodes of policy versions for the learner."""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from actor_service.policies.policy import OnnxPolicy
from actor_service.roles.hold import PolicyHold
from actor_service.roles.participant import Participant
from actor_service.roles.schedule import EvaluationSchedule
from actor_service.uploader import Uploader
from actorq.domain.policy import PolicyDescriptor
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Membership, RunSpec
from actorq.domain.trajectory import Episode, Evaluation
from actorq.errors import UnavailableError

_WAIT_S = 1.0

# Budget at the start, so that short runs get their first evaluations.
_AT_START_S = 0.5
_MOST_SAVED_S = 5.0


@dataclass(eq=False)
class CpuBudget:
    """The CPU seconds that this process may use: a share of the machine's CPU time, saved up to 5 s, and 0.5 s at the
    start. Thread-safe.

    Work that begins within the budget may exceed it. The next work waits until the budget covers the excess. Over T
    seconds on C processors the process uses at most share * C * T + 0.5 s, plus the excess of its last work, and plus
    excused work.

    share: above 0, at most 1.
    processors: number of processors that the share counts.
    clock: monotonic seconds. cpu_clock: CPU seconds of this process.
    """

    share: float
    processors: int
    clock: Callable[[], float] = time.monotonic
    cpu_clock: Callable[[], float] = time.process_time

    def __post_init__(self) -> None:
        self._rate = self.share * self.processors
        self._lock = threading.Lock()
        self._saved, self._seen = _AT_START_S, (self.clock(), self.cpu_clock())

    def has_some(self) -> bool:
        """Whether some budget is left."""
        return self._count(1.0) > 0

    def excuse(self) -> None:
        """Do not charge the CPU time since the last call of a method."""
        self._count(0.0)

    def _count(self, charged: float) -> float:
        """Count the time since the last call. Returns the saved seconds. charged: the share that is charged."""
        with self._lock:
            now, spent = self.clock(), self.cpu_clock()
            (then, spent_before), self._seen = self._seen, (now, spent)
            earned = min(_MOST_SAVED_S, self._saved + self._rate * (now - then))
            self._saved = earned - charged * (spent - spent_before)
            return self._saved


class EpisodeRunner(Protocol):
    """Runs the episodes of an evaluation, as `EvaluationEpisodes` does.

    spec: of the evaluated environments, which may be without leaves that only critics see.
    rows: observations per call of the policy. needs: roles of outputs that policies must have.
    """

    spec: EnvironmentSpec
    rows: int
    needs: Collection[str]

    def run(
        self,
        policy: OnnxPolicy,
        seed: int,
        sequence: int,
        stop: threading.Event,
        on_episode: Callable[[Episode], None] = ...,
    ) -> Evaluation:
        """Run the episodes. Raises UnavailableError when `stop` is set before the end."""
        ...

    def close(self) -> None:
        """Release the environments."""


class Evaluator(Participant):
    """Evaluates policies in the scheme of the run's actors."""

    role = "evaluator"
    # Made once the actor has joined.
    _schedule: EvaluationSchedule

    def _prepare(self, spec: EnvironmentSpec, membership: Membership) -> None:
        run = membership.run
        self._sampling = run.evaluation_sampling
        budget = CpuBudget(run.evaluation_share, self._host.processors, cpu_clock=self._host.cpu_clock())
        self._schedule = EvaluationSchedule.of(run, spec, budget.has_some, budget.excuse)

    def _work(self, spec: EnvironmentSpec, membership: Membership, uploader: Uploader) -> None:
        run = membership.run
        # The call has as many rows as the actors' calls. Dynamic ranges cover all rows of a call, so another number
        # would change the policy.
        episodes = self._runner(spec, run)
        seeds = np.random.default_rng(membership.seed)
        sequence = 0
        hold = PolicyHold(self._quantizer)
        self._subscribe(episodes.spec, run.scheme, episodes.rows, episodes.needs)
        while not self._stop.is_set():
            self._activity = "waiting for a policy"
            policy = self._slot.wait(self._is_wanted, _WAIT_S)
            if policy is None:
                self._schedule.try_again()
                self._recheck()
                continue
            version = policy.descriptor.version
            if not hold.acquire(version):
                self._schedule.lost(version)
                continue
            self._schedule.begun(policy.descriptor)
            self._activity = f"evaluating version {version}"
            seed = int(seeds.integers(2**31))
            try:
                evaluation = episodes.run(policy, seed, sequence + 1, self._stop, lambda _: hold.renew())
            except UnavailableError:
                break
            finally:
                self._host.after_evaluation()
            sequence += 1
            self._schedule.ended(evaluation.score(run.target_success is not None))
            uploader.put(evaluation, self._stop)
        episodes.close()

    def _runner(self, spec: EnvironmentSpec, run: RunSpec) -> EpisodeRunner:
        """Runs the episodes of evaluations."""
        return self._episodes(spec, run.evaluation_episodes, self._own_call, run.environments_per_actor)

    def _is_wanted(self, descriptor: PolicyDescriptor) -> bool:
        settled = self._subscription is None or self._subscription.settled(descriptor)
        return settled and self._schedule.is_due(descriptor)

    def _evaluate_soon(self, version: int) -> None:
        self._schedule.want(version)
        self._recheck()

    def _recheck(self) -> None:
        self._slot.wake()
        if self._subscription is not None:
            self._subscription.recheck()
