"""Replaces the goals of drawn transitions by goals that their episodes achieved later (arXiv 1707.01495)."""

from dataclasses import dataclass

import numpy as np

from actorq.domain.goals import Goal, HindsightColumns
from learner_service.batch import Batch
from learner_service.replay.n_step import Returns
from learner_service.replay.samplers import Sampled
from learner_service.replay.storage.store import ReplayStore


@dataclass(frozen=True)
class OtherGoals:
    """Each drawn transition keeps its own goal or gets one of the stored copies, all with the same probability.

    names: of the columns of the copies. rng: draws the goals. The generator belongs to the sampler, so that a
        checkpoint has its state.
    """

    goal: Goal
    names: HindsightColumns
    rng: np.random.Generator

    def replace(self, store: ReplayStore, sampled: Sampled, returns: Returns, batch: Batch) -> None:
        """Replace goals, rewards and ends in a batch of one-step transitions of these rows."""
        drawn = self.rng.integers(self.names.copies + 1, size=len(sampled.rows))
        places = np.flatnonzero(drawn)
        chosen = sampled.rows[places], drawn[places] - 1
        goals = store.further[self.names.goals][chosen]
        rewards = store.further[self.names.rewards][chosen]
        terminated = store.further[self.names.terminated][chosen]
        if returns.clip_rewards is not None:
            rewards = np.clip(rewards, -returns.clip_rewards, returns.clip_rewards)
        batch.returns[places] = rewards
        batch.bootstrap_discounts[places] = np.where(terminated, 0.0, returns.discount)
        for observations in (batch.observations, batch.bootstrap_observations):
            # All frames of a stack have the goal.
            desired = self.goal.desired_of(observations)
            desired[places] = goals.reshape(len(places), *[1] * (desired.ndim - 2), self.goal.size)
