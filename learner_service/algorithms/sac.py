"""SAC (Haarnoja et al. 2018, arXiv 1812.05905) with automatic temperature, twin critics and n-step returns.

One update, for transitions i of a batch with importance weights w_i (algorithm 1 of the paper):

    a'_k   ~ pi(. | s_{t+k}; phi)
    y_i    = sum_{k<m} gamma^k r_{t+k} - alpha sum_{0<k<m} gamma^k log pi(a'_k | s_{t+k}; phi)
             + gamma^m (min_{j=1,2} Q_j(s_{t+m}, a'_m; theta^-) - alpha log pi(a'_m | s_{t+m}; phi))   eq. 3 and 5
    delta_ij = y_i - Q_j(s_t, a_t; theta)
    L_Q    = mean_i w_i 1/2 sum_j delta_ij^2
    L_pi   = mean_i alpha log pi(a_i | s_t; phi) - min_j Q_j(s_t, a_i; theta),  a_i ~ pi(. | s_t; phi)     eq. 9
    L_alpha = -log alpha mean_i (log pi(a_i | s_t; phi) + target entropy)                                 eq. 18
    theta^- <- tau theta + (1 - tau) theta^-

L_Q is minimized first. L_pi uses the updated critics. L_alpha has log alpha in place of the paper's alpha, as in the
authors' code, so that alpha stays positive. The whole update uses alpha from before the update.

m is n, or less where the episode ends or the next step is not stored. The bootstrap term and its entropy are absent
past a terminal state. y_i is eq. 3 inserted into itself m - 1 times. With n > 1, each step in between adds the policy's
entropy in that state. An action a'_k, drawn from the present policy, estimates this entropy (as in RLx2, arXiv
2205.15043). k = 0 adds no entropy, because a_t is given.

Actions are scaled from the environment's bounds to [-1, 1], and densities are over these. A transition's new priority
is the mean of its two |delta_ij|. Importance weights correct L_Q only, because only L_Q is a regression.
"""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from actorq.config.algorithms import ActionSpace, SACConfig
from actorq.errors import UserError
from learner_service.algorithms.gradient import GradientAlgorithm
from learner_service.batch import Batch
from learner_service.networks import GaussianPolicy, LayerNormCritic, TwinCritic
from learner_service.networks.by_group.critics import critics_of
from learner_service.sparsity import Flops


class Temperature(nn.Module):
    """The weight alpha of the entropy: constant, or adjusted until the policy has the target entropy.

    constant: the constant weight; None for an adjusted one, which begins at `initial`. A constant weight is not a
        parameter, so a resumed run uses the weight in its settings.
    target_entropy: in nats, of actions in [-1, 1]. components: of an action. name: of the algorithm's settings.
    log_alpha: of the adjusted weight.

    Raises UserError when no policy has the target entropy, because alpha would grow without bound.
    """

    def __init__(
        self, constant: float | None, target_entropy: float, components: int, name: str = "sac", initial: float = 1.0
    ) -> None:
        super().__init__()
        self.target_entropy = target_entropy
        self._is_constant = constant is not None
        self._constant = initial if constant is None else constant
        self.log_alpha = nn.Parameter(torch.tensor(math.log(self._constant)))
        most = components * math.log(2)
        if not self._is_constant and self.target_entropy >= most:
            raise UserError(
                f"{name}.target_entropy must be below A log 2 = {most:.4g}, the entropy of uniform actions in "
                f"[-1, 1], got {self.target_entropy:g}"
            )

    @property
    def alpha(self) -> Tensor:
        """The present weight, float32[]."""
        adjusted = self.log_alpha.detach()
        return torch.full_like(adjusted, self._constant) if self._is_constant else adjusted.exp()

    def loss(self, log_probabilities: Tensor) -> Tensor:
        """L_alpha from log pi of sampled actions, float32[B]. Low entropy raises alpha, high entropy lowers it."""
        if self._is_constant:
            return torch.zeros_like(self.log_alpha)
        return -self.log_alpha * (log_probabilities.detach().mean() + self.target_entropy)


class SAC(GradientAlgorithm):
    """Soft actor-critic; see the module's docstring for the update. temperature: makes alpha."""

    name = "sac"
    action_spaces: ClassVar[tuple[ActionSpace, ...]] = SACConfig.actions
    takes_noise = True
    needs_windows = True
    has_critic: ClassVar[bool] = True
    has_groups: ClassVar[bool] = True
    settings = SACConfig
    policy: GaussianPolicy
    _settings: SACConfig

    def make_networks(self, settings: SACConfig) -> None:
        """Make alpha, pi, and the two Q, which are one module."""
        sizes, rate = settings.hidden_sizes, settings.learning_rate
        components = math.prod(self._spec.actions.shape)
        target_entropy = float(-components) if settings.target_entropy is None else settings.target_entropy
        initial = settings.initial_temperature
        self.temperature = Temperature(settings.temperature, target_entropy, components, initial=initial).to(
            self._device
        )
        # One parameter vector for policy and temperature, because they are updated together.
        policy, critics = self.kinds()
        self._pi = self.network("actor", policy, sizes, rate, has_target=False, besides=(self.temperature,))
        self._q = self.network("critic", critics, sizes, rate)
        self._loss = self.compiled(self._loss_of_drawn)
        self._improve_critics = self.descent(self._q, self._critic_loss)
        self._improve_policy = self.descent(self._pi, self._policy_loss)
        # Number of sampled actions for the entropies in between, in the last update.
        self._steps_between = settings.n_step - 1

    def kinds(self) -> tuple[Callable[..., GaussianPolicy], Callable[..., TwinCritic]]:
        """What makes policy and critics."""
        critics = LayerNormCritic if self._settings.layer_norm else TwinCritic
        return GaussianPolicy, critics_of(critics, self._spec)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Update the critics, then policy and temperature, then the target critics."""
        rows, between = len(batch.weights), None
        following = self.noise(rows)
        if "between_discounts" in batch:
            self._steps_between = batch.between_discounts.shape[1]
            between = self.noise(batch.between_discounts.numel())
        # With a shared encoder, the critics' update also returns the features that the policy's update reads.
        loss, errors, *features = self._improve_critics(batch, following, between)
        (policy_loss,) = self._improve_policy(*(features or [batch.observations]), self.noise(rows))
        self.report(policy_loss=policy_loss, temperature=self.temperature.alpha)
        self._q.move_target(self._settings.target_rate)
        self.updates += 1
        return loss, errors

    def _critic_loss(self, batch: Batch, following: Tensor, between: Tensor | None) -> tuple[Tensor, ...]:
        """L_Q, and the mean of both |delta|, float32[B].

        following, between: standard normal, for a'_m and for the other a'_k; float32[B or B * (m - 1), components].
        """
        alpha = self.temperature.alpha
        # The policy samples outside of the compiled function, because quantized layers may replace its layers.
        with torch.no_grad():
            drawn = self.policy.sample(batch.bootstrap_observations, following)
            soft = batch.returns if between is None else soft_returns(batch, self.policy, between, alpha)
        batch = batch.without("between_observations", "between_discounts").with_columns(returns=soft)
        return self._loss(batch, *drawn, alpha)  # type: ignore[no-any-return]

    def _policy_loss(self, observations: Tensor, noise: Tensor) -> tuple[Tensor]:
        """L_pi + L_alpha. Neither has a gradient for the other's parameters. noise: standard normal, for a_i."""
        actions, log_probabilities = self.policy.sample(observations, noise)
        values = self._q.network.judge(observations, actions).amin(0)
        policy_loss = (self.temperature.alpha * log_probabilities - values).mean()  # eq. 9
        return (policy_loss + self.temperature.loss(log_probabilities),)

    def _loss_of_drawn(
        self, batch: Batch, following: Tensor, log_probabilities: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`_critic_loss` with drawn actions. following: a'_m, float32[B, components], and then log pi(a'_m)."""
        with torch.no_grad():
            values = self._valued(self._q.target, batch.bootstrap_observations, following).amin(0)
            targets = batch.returns + batch.bootstrap_discounts * (values - alpha * log_probabilities)  # eq. 3

        acted = self.policy.scale.normalize(batch.actions)
        errors = targets - self._valued(self._q.network, batch.observations, acted)
        return 0.5 * (batch.weights * errors.square().sum(0)).mean(), errors.detach().abs().mean(0)

    def _valued(self, critics: TwinCritic, observations: Tensor, actions: Tensor) -> Tensor:
        """Both critics' values, float32[2, B]."""
        values: Tensor = critics(observations, actions)
        return values

    @property
    def flops(self) -> Flops:
        """FLOPs of the targets with their entropies, of both critics, and of the policy through both critics."""
        actor, critics = self._pi.cost, self._q.cost
        targets = (1 + self._steps_between) * actor + critics
        return Flops(action=actor, update=self.batch_size * (targets + 3 * critics + 3 * actor + critics))


def soft_returns(batch: Batch, policy: GaussianPolicy, noise: Tensor, alpha: Tensor) -> Tensor:
    """The returns, float32[B], plus alpha times the discounted entropies of the steps in between.

    noise: standard normal, float32[B * (m - 1), components].
    """
    _, log_probabilities = policy.sample(batch.between_observations.flatten(0, 1), noise)
    entropies = -log_probabilities.view_as(batch.between_discounts)
    soft: Tensor = batch.returns + alpha * (batch.between_discounts * entropies).sum(1)
    return soft
