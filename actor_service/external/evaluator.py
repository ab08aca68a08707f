"""The evaluator role for simulators: evaluates policies in marked episodes of the explorer's streams."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from actor_service.external.acting.evaluation import MarkedEpisodes, StepBudget, StreamEvaluation
from actor_service.external.acting.exploration import row_exploration
from actor_service.external.acting.sizes import SizedLoader
from actor_service.roles.actor_role import Host
from actor_service.roles.evaluator import EpisodeRunner, Evaluator
from actor_service.roles.schedule import EvaluationSchedule
from actorq.client import LearnerClient
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration, Membership, RunSpec


class SimulatorEvaluator(Evaluator):
    """Sends the results of marked episodes. share: most evaluation steps, as a share of all steps."""

    def __init__(
        self, host: Host, learner: LearnerClient, spec: EnvironmentSpec, marked: MarkedEpisodes, share: float
    ) -> None:
        super().__init__(replace(host, load=SizedLoader(host.load)), learner)
        self._environment = spec
        self._marked = marked
        self._step_share = share

    def drain(self, flush_s: float) -> None:
        """See `Participant.drain`. A running evaluation ends."""
        super().drain(flush_s)
        self._marked.wake()

    def _participate(self, membership: Membership) -> None:
        self._quantizer.run_id = membership.run.run_id
        self._spec = self._environment
        self._take_part(self._environment, membership)

    def _prepare(self, spec: EnvironmentSpec, membership: Membership) -> None:
        budget = StepBudget(self._marked, self._step_share)
        self._schedule = EvaluationSchedule.of(membership.run, spec, budget.has_some, budget.excuse)

    def _runner(self, spec: EnvironmentSpec, run: RunSpec) -> EpisodeRunner:
        needs: Collection[str] = ()
        if run.evaluation_sampling:
            sampled = Exploration((), (), sampling=run.evaluation_sampling)
            needs = row_exploration(spec, sampled, np.random.default_rng(0), ()).needs
        return StreamEvaluation(self._marked, spec, run.evaluation_episodes, 1, needs)
