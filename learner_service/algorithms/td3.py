"""TD3 (Fujimoto et al. 2018, arXiv 1802.09477): twin critics, smoothed targets, delayed policy; n-step returns.

One update, for transitions i of a batch with importance weights w_i (algorithm 1 of the paper):

    a~     = clip(pi(s_{t+m}; phi^-) + eps, -1, 1),  eps ~ clip(N(0, target_noise), +-target_noise_clip)    eq. 14
    y_i    = sum_{k<m} gamma^k r_{t+k} + gamma^m min_{j=1,2} Q_j(s_{t+m}, a~; theta^-)                      eq. 10
    delta_ij = y_i - Q_j(s_t, a_t; theta)
    L      = mean_i w_i sum_j delta_ij^2

and after every `policy_delay`-th such update of the critics (sec. 5.2)

    J      = mean_i Q_1(s_t, pi(s_t; phi); theta)                                                           eq. 11
    phi^-  <- tau phi + (1 - tau) phi^-,  theta^- likewise

m is n, or less where the episode ends or the next step is not stored. The bootstrap term is absent past a terminal
state. Actions are scaled from the environment's bounds to [-1, 1]. A transition's new priority is the mean of its two
|delta_ij|. Importance weights correct the critics' loss only, because only that loss is a regression.
"""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorq.config.algorithms import ActionSpace, TD3Config
from learner_service.algorithms.base import Losses
from learner_service.algorithms.gradient import GradientAlgorithm
from learner_service.batch import Batch
from learner_service.networks import DeterministicPolicy, TwinCritic
from learner_service.networks.by_group.critics import critics_of
from learner_service.sparsity import Flops


class TD3(GradientAlgorithm):
    """Twin delayed deterministic policy gradients; see the module's docstring for the update."""

    name = "td3"
    action_spaces: ClassVar[tuple[ActionSpace, ...]] = TD3Config.actions
    has_critic: ClassVar[bool] = True
    has_groups: ClassVar[bool] = True
    settings = TD3Config
    policy: DeterministicPolicy
    _settings: TD3Config

    def make_networks(self, settings: TD3Config) -> None:
        """Make pi and the two Q, which are one module."""
        sizes, rate = settings.hidden_sizes, settings.learning_rate
        policy, critics = self.kinds()
        self._pi = self.network("actor", policy, sizes, rate, updates_per_step=settings.policy_delay)
        self._q = self.network("critic", critics, sizes, rate)
        self._smoothed_targets = self.recorded(self.compiled(self._targets))
        self._improve_critics = self.descent(self._q, self.compiled(self._critic_loss))
        self._improve_policy = self.descent(self._pi, self._policy_loss)

    def kinds(self) -> tuple[Callable[..., DeterministicPolicy], Callable[..., TwinCritic]]:
        """What makes policy and critics."""
        return DeterministicPolicy, critics_of(TwinCritic, self._spec)

    def update(self, batch: Batch, weights: NDArray[np.float32]) -> Losses:
        """One gradient update for each `batch_size` rows of `batch`; `weights` float32[rows] scale the losses."""
        pairs = self.with_targets(batch, weights, self._settings.policy_delay, self._targets_of)
        return self.losses(self._step(minibatch, *targets) for minibatch, targets in pairs)

    def _step(self, batch: Batch, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Update the critics. Every `policy_delay`-th time, also update the policy and both targets."""
        loss, errors = self._improve_critics(batch, targets)
        self.updates += 1
        if self.updates % self._settings.policy_delay == 0:
            (policy_loss,) = self._improve_policy(batch.observations)
            self.report(policy_loss=policy_loss)
            self._pi.move_target(self._settings.target_rate)
            self._q.move_target(self._settings.target_rate)
        return loss, errors

    def _targets_of(self, batch: Batch) -> tuple[Tensor, ...]:
        # The noise of each update is drawn separately, so that it does not depend on the number of updates per call.
        noise = torch.cat([self.noise(self.batch_size) for _ in range(len(batch.weights) // self.batch_size)])
        return self._smoothed_targets(batch, noise)

    def _targets(self, batch: Batch, noise: Tensor) -> tuple[Tensor]:
        """y, float32[B]. noise: standard normal, float32[B, components]."""
        with torch.no_grad():
            largest = self._settings.target_noise_clip
            noise = (self._settings.target_noise * noise).clamp(-largest, largest)
            following = batch.bootstrap_observations
            smoothed = (self._pi.target.squashed(following) + noise).clamp(-1.0, 1.0)  # eq. 14
            values = self._q.target(following, smoothed).amin(0)
            return (batch.returns + batch.bootstrap_discounts * values,)  # eq. 10

    def _critic_loss(self, batch: Batch, targets: Tensor) -> tuple[Tensor, Tensor]:
        """L, and the mean of both critics' |delta|, float32[B]."""
        errors = targets - self._q(batch.observations, self.policy.scale.normalize(batch.actions))
        return (batch.weights * errors.square().sum(0)).mean(), errors.detach().abs().mean(0)

    def _policy_loss(self, observations: Tensor) -> tuple[Tensor]:
        """-J (eq. 11)."""
        return (-self._q.network.judge(observations, self.policy.squashed(observations), critics=1).mean(),)

    @property
    def flops(self) -> Flops:
        """FLOPs of the targets, of both critics, and of the delayed policy update through one critic."""
        actor, critics = self._pi.cost, self._q.cost
        policy = (1 / self._settings.policy_delay) * (3 * actor + 0.5 * critics)
        return Flops(action=actor, update=self.batch_size * (actor + critics + 3 * critics + policy))
