"""The explorer role: acts with noise, or draws actions, and sends the transitions to the learner."""

import logging
import time
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from actor_service.acting.behaviors import behavior_policy
from actor_service.acting.collector import SegmentCollector, fitting_segment_length
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import Environments
from actor_service.goals.hindsight import Hindsight
from actor_service.roles.actor_role import Host
from actor_service.roles.participant import Participant
from actor_service.uploader import Uploader
from actorq.client import LearnerClient
from actorq.domain.columns import state_size_in, state_size_of, unknown_columns
from actorq.domain.goals import hindsight_of
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import ActorReport, Membership
from actorq.errors import CorruptedError

_log = logging.getLogger(__name__)


class Explorer(Participant):
    """Steps its environments as one batch with the newest policy."""

    role = "actor"

    def __init__(self, host: Host, learner: LearnerClient, allowed_modules: Collection[str] = ()) -> None:
        super().__init__(host, learner, allowed_modules)
        self._collector: SegmentCollector | None = None
        self._turns: PolicyTurns | None = None
        self._share = 0
        self._last_report = (time.monotonic(), 0)

    def _join(self) -> Membership:
        membership = super()._join()
        given, count = membership.exploration, membership.run.environments_per_actor
        if given is None or not (given.sampling or len(given.epsilons) == len(given.noise) == count):
            raise CorruptedError(f"{self._learner.peer} sent no exploration for each of {count} environments")
        if unknown := unknown_columns(membership.run.columns):
            raise CorruptedError(
                f"{self._learner.peer} wants the columns {', '.join(unknown)}, which this actor does not know: run "
                "both with one version"
            )
        return membership

    def _work(self, spec: EnvironmentSpec, membership: Membership, uploader: Uploader) -> None:
        run, count = membership.run, membership.run.environments_per_actor
        assert membership.exploration is not None
        seeds = np.random.SeedSequence(membership.seed).generate_state(3)
        environment_seed, exploration_seed, goal_seed = (int(seed) for seed in seeds)
        rng, drawn = np.random.default_rng(exploration_seed), bool(membership.exploration.sampling)
        explore = behavior_policy(spec, membership.exploration, count, rng, run.columns)
        columns = explore.columns
        with self._own_call:
            environments = self._make(run.environment_id, count, run.environment_arguments)
        hindsight = self._hindsight(environments, run.columns, goal_seed)
        states = tuple(name for name in run.columns if state_size_of(name))
        further = (*columns, *(hindsight.names.names if hindsight else ()), *states)
        length = fitting_segment_length(spec, count, run.segment_length, run.max_segment_bytes, further)
        turns = self._turns = PolicyTurns(self._slot, run.max_steps_per_policy, run.policy_patience_s)
        turns.set_most_steps(self._share)
        self._collector = SegmentCollector(
            *(environments, turns, explore, length, environment_seed % 2**31, self.counts, self._own_call, columns),
            sampled=drawn,
            state_size=state_size_in(states),
        )
        self._subscribe(spec, run.scheme, environments.rows, explore.needs)
        self._activity, acted = "acting", False
        while not self._stop.is_set():
            if drawn:
                # On-policy data lose their value while they wait.
                uploader.await_credit(self._stop)
            segment = self._collector.collect(self._stop)
            if segment is not None:
                if not acted:
                    acted = True
                    span = segment.spans[0]
                    _log.info("first action, with policy version %d %s", span.version, span.scheme)
                for complete in hindsight.add(segment) if hindsight else (segment,):
                    uploader.put(complete, self._stop)
        for complete in hindsight.flush() if hindsight else ():
            uploader.put(complete, self._stop)
        with self._own_call:
            environments.close()

    def _hindsight(self, environments: Environments, columns: tuple[str, ...], seed: int) -> Hindsight | None:
        """The object that gives steps other goals; None if the run or the environment has no goals."""
        goal, rewards, names = environments.spec.goal, environments.goal_rewards, hindsight_of(columns)
        if goal is None or rewards is None or names is None:
            return None
        return Hindsight(goal, environments.count, names, rewards, np.random.default_rng(seed), self._own_call)

    def _set_share(self, steps: int) -> None:
        self._share = steps
        if self._turns is not None:
            self._turns.set_most_steps(steps)

    @property
    def _environment_steps(self) -> int:
        """Transitions that this process has explored."""
        return self._collector.environment_steps if self._collector else 0

    def _report(self) -> ActorReport:
        steps, now = self._environment_steps, time.monotonic()
        then, before = self._last_report
        rate = (steps - before) / (now - then) if now > then else 0.0
        return replace(super()._report(), environment_steps=steps, steps_per_second=rate)

    def _next_report(self) -> ActorReport:
        report = super()._next_report()
        self._last_report = (time.monotonic(), report.environment_steps)
        return report
