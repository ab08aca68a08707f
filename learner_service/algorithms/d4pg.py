"""D4PG (Barth-Maron et al. 2018, arXiv 1804.08617): deterministic policy, distribution of returns, n-step targets.

One update, for transitions i of a batch with importance weights w_i. Z(s, a) has probabilities p(s, a) on fixed values
z. Q(s, a) = sum_j p_j(s, a) z_j.

    a'      = pi(s_{t+m}; phi^-)                                                  arXiv 1804.08617, algorithm 1
    y_i     = Phi( sum_{k<m} gamma^k r_{t+k} + gamma^m Z(s_{t+m}, a'; theta^-) )  projected, arXiv 1707.06887, eq. 7
    L       = mean_i w_i  -sum_j y_ij log p_j(s_t, a_t; theta)                    cross entropy
    dJ/dphi = mean_i clip_1(dQ(s_t, a; theta)/da at a = pi(s_t)) dpi(s_t; phi)/dphi

m is n, or less where the episode ends or the next step is not stored. Past a terminal state Z is 0, and all mass is on
the return. |E[y_i] - Q(s_t, a_t)| is the transition's new priority. phi^- and theta^- are copies of phi and theta,
renewed every `target_update_period` updates. clip_1 limits the norm of a state's gradient to 1, as Acme does, so that
states of high value do not dominate. Actions are in [-1, 1] here; the policy's graph scales them.

With `policy_delay` above 1, only every `policy_delay`-th update changes phi, as in TD3 (arXiv 1802.09477, sec. 5.2).
"""

import logging
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorq.config.algorithms import ActionSpace, D4PGConfig
from learner_service.algorithms.base import Losses
from learner_service.algorithms.gradient import GradientAlgorithm
from learner_service.batch import Batch
from learner_service.networks import CategoricalCritic, LayerNormPolicy, Support
from learner_service.sparsity import Flops

_log = logging.getLogger(__name__)

# Warn above this share of targets outside the support, because most of the distribution is then clipped.
_TOO_MANY_BEYOND = 0.1


class D4PG(GradientAlgorithm):
    """Distributional deterministic policy gradients with hard target networks; see the module's docstring."""

    name = "d4pg"
    action_spaces: ClassVar[tuple[ActionSpace, ...]] = D4PGConfig.actions
    has_critic: ClassVar[bool] = True
    settings = D4PGConfig
    policy: LayerNormPolicy
    _settings: D4PGConfig

    def make_networks(self, settings: D4PGConfig) -> None:
        """Make pi and Z."""
        self._support = Support(settings.value_min, settings.value_max, settings.atoms).to(self._device)
        critic, largest = partial(CategoricalCritic, atoms=settings.atoms), settings.max_gradient_norm
        self._pi = self.network(
            *("actor", LayerNormPolicy, settings.policy_sizes, settings.policy_learning_rate),
            max_gradient_norm=largest,
            updates_per_step=settings.policy_delay,
        )
        self._z = self.network(
            *("critic", critic, settings.critic_sizes, settings.critic_learning_rate), max_gradient_norm=largest
        )
        # Parameters that a user's network has frozen are left out.
        self._theta = tuple(parameter for parameter in self._z.network.parameters() if parameter.requires_grad)
        self._improve_critic = self.descent(self._z, self.compiled(self._critic_loss))
        self._improve_policy = self.descent(self._pi, self._policy_loss)
        self._warned = False

    def update(self, batch: Batch, weights: NDArray[np.float32]) -> Losses:
        """One gradient update for each `batch_size` rows of `batch`; `weights` float32[rows] scale the losses."""
        beyond, steps = list[Tensor](), list[tuple[Tensor, Tensor]]()
        period = self._settings.target_update_period
        for minibatch, (targets, outside) in self.with_targets(batch, weights, period, self._targets):
            beyond.append(outside)
            steps.append(self._step(minibatch, targets))
        self._warn(float(torch.cat(beyond).float().mean()))
        return self.losses(steps)

    def _targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """y float32[B, atoms], and bool[B]: whether its mean is outside the support."""
        following, returns, discounts = batch.bootstrap_observations, batch.returns, batch.bootstrap_discounts
        with torch.no_grad():
            logits = self._z.target(following, self._pi.target.squashed(following))
            probabilities = torch.softmax(logits, dim=1)
            expected = returns + discounts * (probabilities @ self._support.values)
            beyond = (expected < self._support.lowest) | (expected > self._support.highest)
            return self._support.project(probabilities, returns, discounts), beyond

    def _step(self, batch: Batch, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Update the critic, then the policy if it is due. Copy both to their targets when the period has passed."""
        loss, errors = self._improve_critic(batch, targets)
        self.updates += 1
        if self.updates % self._settings.policy_delay == 0:
            (policy_loss,) = self._improve_policy(batch.observations)
            self.report(policy_loss=policy_loss)
        if self.updates % self._settings.target_update_period == 0:
            self._pi.copy_to_target()
            self._z.copy_to_target()
        return loss, errors

    def _critic_loss(self, batch: Batch, targets: Tensor) -> tuple[Tensor, Tensor]:
        """L, and |TD errors| float32[B]."""
        logits = self._z(batch.observations, self.policy.scale.normalize(batch.actions))
        cross_entropies = -(targets * torch.log_softmax(logits, 1)).sum(1)
        with torch.no_grad():
            errors = (targets @ self._support.values - self._support.mean(logits)).abs()
        return (batch.weights * cross_entropies).mean(), errors

    def _policy_loss(self, observations: Tensor) -> tuple[Tensor]:
        """A loss whose gradient with respect to phi is -dJ/dphi, because clip_1(dQ/da) is a constant.

        The critic gets no gradient.
        """
        squashed = self.policy.squashed(observations)
        actions = squashed.detach().requires_grad_()
        self._train_critic(False)
        try:
            values = self._support.mean(self._z(observations, actions))
        finally:
            self._train_critic(True)
        (direction,) = torch.autograd.grad(values.sum(), actions)
        norms = torch.linalg.vector_norm(direction, dim=1, keepdim=True)
        direction = direction / norms.clamp(min=1.0)
        return (-(direction * squashed).sum(1).mean(),)

    def _train_critic(self, trained: bool) -> None:
        for parameter in self._theta:
            parameter.requires_grad_(trained)

    def _warn(self, beyond: float) -> None:
        if beyond > _TOO_MANY_BEYOND and not self._warned:
            self._warned = True
            _log.warning(
                "%.0f%% of the target returns are outside d4pg.value_min..value_max (%g..%g) and are clipped; "
                "set value_min and value_max to the lowest and highest possible discounted return",
                *(100 * beyond, self._support.lowest, self._support.highest),
            )

    @property
    def flops(self) -> Flops:
        """FLOPs of the targets, of the critic's update, and of the delayed policy update through the critic."""
        actor, critic = self._pi.cost, self._z.cost
        policy = (1 / self._settings.policy_delay) * (3 * actor + critic)
        return Flops(action=actor, update=self.batch_size * (actor + critic + 3 * critic + policy))
