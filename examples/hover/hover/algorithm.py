"""Q-learning with a target network that follows slowly."""

from functools import partial

import torch
from actorq.config.algorithms import AlgorithmConfig
from learner_service.algorithms import Batch, GradientAlgorithm
from learner_service.networks import QNetwork
from pydantic import Field
from torch import Tensor


class SoftQLearningConfig(AlgorithmConfig):
    """Q-learning whose target network follows slowly."""

    hidden_sizes: tuple[int, ...] = Field((64, 64), description="units of each hidden layer")
    learning_rate: float = Field(1e-3, gt=0, description="Adam step size")
    target_rate: float = Field(0.01, gt=0, le=1, description="share of theta that theta^- takes over with each update")


class SoftQLearning(GradientAlgorithm):
    """y = R + gamma^m max_a Q(s', a; theta^-), where theta^- follows theta slowly."""

    name = "soft-q-learning"
    action_spaces = ("discrete",)
    settings = SoftQLearningConfig

    def make_networks(self, settings: SoftQLearningConfig) -> None:
        """One network, which is the policy, and its target."""
        self._target_rate = settings.target_rate
        make = partial(QNetwork, dueling=False)
        self.q = self.network("actor", make, settings.hidden_sizes, settings.learning_rate)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One update; returns the loss and the absolute errors, which are the new priorities."""
        with torch.no_grad():
            values = self.q.target(batch.bootstrap_observations).amax(1)
            targets = batch.returns + batch.bootstrap_discounts * values
        chosen = self.q(batch.observations).gather(1, batch.actions[:, None]).squeeze(1)
        errors = targets - chosen
        loss = (batch.weights * errors.square()).mean()
        self.q.minimize(loss)
        self.q.move_target(self._target_rate)
        self.updates += 1
        return loss.detach(), errors.detach().abs()
