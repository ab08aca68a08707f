"""IQL (Kostrikov et al. 2022, arXiv 2110.06169): values by expectile regression, policy by weighted regression.

One update, for transitions i of a batch with importance weights w_i (algorithm 1 of the paper):

    u_i    = min_{j=1,2} Q_j(s_t, a_t; theta^-) - V(s_t; psi)
    L_V    = mean_i w_i |tau - 1(u_i < 0)| u_i^2                                                            eq. 5
    y_i    = sum_{k<m} gamma^k r_{t+k} + gamma^m V(s_{t+m}; psi)
    delta_ij = y_i - Q_j(s_t, a_t; theta)
    L_Q    = mean_i w_i sum_j delta_ij^2                                                                    eq. 6
    L_pi   = -mean_i min(exp(beta u_i), max_weight) log pi(a_t | s_t; phi)                                  eq. 7
    theta^- <- rate theta + (1 - rate) theta^-

tau is `expectile`, beta is `inverse_temperature`. No update evaluates an action that the data lack. L_V and L_Q are
minimized in one step, and L_pi uses the updated V. pi is a Gaussian around tanh of the network's outputs, with the same
deviation in every state. The published policy is its mean.

m is n, or less where the episode ends or the next step is not stored. The bootstrap term is absent past a terminal
state. Actions are scaled from the environment's bounds to [-1, 1], and densities are over these. A transition's new
priority is the mean of its two |delta_ij|. Importance weights do not correct L_pi, which is no regression of values.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor

from actorq.config.algorithms import ActionSpace, IQLConfig
from learner_service.algorithms.gradient import GradientAlgorithm
from learner_service.batch import Batch
from learner_service.networks import DeterministicPolicy, LogDeviation, ValuedCritics
from learner_service.sparsity import Flops


class IQL(GradientAlgorithm):
    """Implicit Q-learning; see the module's docstring for the update."""

    name = "iql"
    action_spaces: ClassVar[tuple[ActionSpace, ...]] = IQLConfig.actions
    has_critic: ClassVar[bool] = True
    settings = IQLConfig
    policy: DeterministicPolicy
    _settings: IQLConfig

    def make_networks(self, settings: IQLConfig) -> None:
        """Make pi, and the two Q and V, which are one module."""
        sizes, rate = settings.hidden_sizes, settings.learning_rate
        self._log_deviation = LogDeviation(math.prod(self._spec.actions.shape)).to(self._device)
        # One parameter vector for the policy's network and its deviation, because they are updated together.
        besides = (self._log_deviation,)
        self._pi = self.network("actor", DeterministicPolicy, sizes, rate, has_target=False, besides=besides)
        self._q = self.network("critic", ValuedCritics, sizes, rate)
        self._improve_critics = self.descent(self._q, self._critic_loss)
        self._improve_policy = self.descent(self._pi, self._policy_loss)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Update V and the critics, then the policy, then the target critics."""
        loss, errors, value_loss = self._improve_critics(batch)
        policy_loss, weight = self._improve_policy(batch.observations, batch.actions)
        self.report(value_loss=value_loss, policy_loss=policy_loss, advantage_weight=weight)
        self._q.move_target(self._settings.target_rate)
        self.updates += 1
        return loss, errors

    def _critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """L_V + L_Q, the mean of both |delta|, float32[B], and L_V."""
        actions, network = self.policy.scale.normalize(batch.actions), self._q.network
        with torch.no_grad():
            judged = self._q.target.critics(batch.observations, actions).amin(0)
            following = network.value(batch.bootstrap_observations)
            targets = batch.returns + batch.bootstrap_discounts * following
        values, value = network(batch.observations, actions)
        advantages = judged - value
        shares = (self._settings.expectile - (advantages.detach() < 0).float()).abs()
        value_loss = (batch.weights * shares * advantages.square()).mean()  # eq. 5
        errors = targets - values
        loss = value_loss + (batch.weights * errors.square().sum(0)).mean()  # eq. 6
        return loss, errors.detach().abs().mean(0), value_loss.detach()

    def _policy_loss(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """L_pi (eq. 7), and the mean of exp(beta u), clipped."""
        settings, actions = self._settings, self.policy.scale.normalize(actions)
        with torch.no_grad():
            advantages = self._q.target.critics(observations, actions).amin(0) - self._q.network.value(observations)
            weights = (settings.inverse_temperature * advantages).exp().clamp(max=settings.max_weight)
        log_deviation = self._log_deviation()
        distances = (actions - self.policy.squashed(observations)) * (-log_deviation).exp()
        log_probabilities = -(0.5 * distances.square() + log_deviation + 0.5 * math.log(2 * math.pi)).sum(1)
        return -(weights * log_probabilities).mean(), weights.mean()

    @property
    def flops(self) -> Flops:
        """FLOPs of both losses of values with their targets, and of the policy with its weights."""
        actor, critics = self._pi.cost, self._q.cost
        return Flops(action=actor, update=self.batch_size * (5 * critics + 3 * actor))
