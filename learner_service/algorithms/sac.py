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

L_Q is minimized first, the policy is then judged by the critics as they are after it. L_alpha is the paper's with log
alpha in place of alpha, as its authors' code has it, so that alpha stays positive. alpha itself is the one from before
the update throughout.

m is n, or less where the episode or the segment ended; the bootstrap term is absent past a terminal state, and with it
its entropy. y_i is eq. 3 put into itself m - 1 times: with n > 1 each step in between adds the entropy of the policy in
its state, estimated by an action a'_k that is drawn afresh from the present policy (as RLx2 does, arXiv 2205.15043),
whatever the action was that was taken there. a_t itself is given, so that there is none for k = 0.

Actions are those of the environment scaled to [-1, 1], and densities are over these. A transition's new priority is the
mean of its two |delta_ij|; importance weights correct L_Q, which is the one that regresses.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actorq.config.algorithms import SACConfig
from actorq.config.run_config import RunConfig
from actorq.domain.trajectory import EnvironmentSpec
from learner_service.algorithms.base import (
    ActionSpace,
    Losses,
    Minibatch,
    minibatches,
    prefixed,
    restore_generator,
    without_prefix,
)
from learner_service.kernels.parameters import FlatParameters, Minimizer, copy_network, load_vector
from learner_service.networks import ActionScale, GaussianPolicy, TwinCritic
from learner_service.networks.observations import feature_layers, normalizer_for
from learner_service.networks.precision import use_precision
from learner_service.replay import NStepBatch
from learner_service.sparsity import METHODS, Flops, SparsityPlan


class Temperature(nn.Module):
    """The weight alpha of the entropy: a constant, or adjusted so that the policy keeps an entropy.

    target_entropy: in nats, of actions that are in [-1, 1].
    """

    def __init__(self, config: SACConfig, components: int) -> None:
        super().__init__()
        self.target_entropy = float(-components) if config.target_entropy is None else config.target_entropy
        initial = 1.0 if config.temperature is None else config.temperature
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))
        self._is_constant = config.temperature is not None

    def loss(self, log_probabilities: Tensor) -> Tensor:
        """L_alpha, for log pi of actions of the policy, float32[B]: low entropy drives alpha up, high entropy down."""
        if self._is_constant:
            return torch.zeros_like(self.log_alpha)
        return -self.log_alpha * (log_probabilities.detach().mean() + self.target_entropy)


class SAC:
    """Soft actor-critic; see the module's docstring for the update."""

    name = "sac"
    action_spaces: ClassVar[tuple[ActionSpace, ...]] = ("continuous",)
    stochastic = True
    needs_windows = True
    sparsity_methods = METHODS

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._config = config.sac
        self._device = device
        self.batch_size, self.n_step, self.discount = config.sac.batch_size, config.sac.n_step, config.sac.discount
        self._normalizer = normalizer_for(config, spec, device)
        self._scale = ActionScale(spec).to(device)
        self._temperature = Temperature(config.sac, self._scale.components).to(device)
        sparsity = SparsityPlan(config, spec, self.batch_size)
        with torch.random.fork_rng(devices=()):
            sizes = config.sac.hidden_sizes
            policy_sizes = sparsity.sizes("actor", sizes, lambda sizes: self._policy(config, spec, sizes))
            critic_sizes = sparsity.sizes("critic", sizes, lambda sizes: self._twins(config, spec, sizes))
            torch.manual_seed(config.seed)
            self.policy = self._policy(config, spec, policy_sizes).to(device)
            self._critic, self._target_critic = (self._twins(config, spec, critic_sizes).to(device) for _ in range(2))
        copy_network(self._critic, self._target_critic)
        # One vector for both, since they take their steps together.
        policy_parameters = FlatParameters(self.policy, self._temperature)
        self._critic_parameters, self._target_parameters = (
            FlatParameters(critic) for critic in (self._critic, self._target_critic)
        )
        actor = sparsity.topology("actor", policy_parameters)
        critic = sparsity.topology("critic", self._critic_parameters, self._target_parameters)
        self._policy_minimizer = Minimizer(policy_parameters, config.sac.learning_rate, actor)
        self._critic_minimizer = Minimizer(self._critic_parameters, config.sac.learning_rate, critic)
        networks = (policy_parameters, self._critic_parameters, self._target_parameters)
        self.precision = use_precision(config, self.batch_size, networks)
        self._actor_cost = sparsity.cost("actor", policy_parameters, actor)
        self._critic_cost = sparsity.cost("critic", self._critic_parameters, critic)
        self._critic_loss_of = torch.compile(self._critic_loss) if config.learner.compile else self._critic_loss
        self._generator = torch.Generator(device).manual_seed(config.seed)
        # How many actions a target takes besides the last one, as of the last update.
        self._steps_between = self.n_step - 1

    def _policy(self, config: RunConfig, spec: EnvironmentSpec, sizes: Sequence[int]) -> GaussianPolicy:
        return GaussianPolicy(spec, sizes, self._normalizer, feature_layers(config, spec))

    def _twins(self, config: RunConfig, spec: EnvironmentSpec, sizes: Sequence[int]) -> TwinCritic:
        return TwinCritic(spec, sizes, self._normalizer, feature_layers(config, spec))

    @property
    def temperature(self) -> float:
        """The weight alpha of the entropy as it is now."""
        return float(self._temperature.log_alpha.detach().exp())

    def update(self, batch: NStepBatch, weights: NDArray[np.float32]) -> Losses:
        """One gradient update for each `batch_size` rows of `batch`; `weights` float32[rows] scale the losses."""
        losses, errors = [], []
        for minibatch in minibatches(batch, weights, self.batch_size, self._device):
            loss, error = self._step(minibatch)
            losses.append(loss)
            errors.append(error)
        return Losses(loss=float(torch.stack(losses).mean()), priorities=torch.cat(errors).cpu().numpy())

    def normalize(self, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
        """Normalize observations with these from now on, if the run asks for it and they are not frames."""
        if self._normalizer is not None:
            self._normalizer.set(mean, std)

    @property
    def flops(self) -> Flops:
        """What the networks cost: targets with their entropies, both critics, and the policy, judged by both."""
        actor, critics = self._actor_cost(), self._critic_cost()
        targets = (1 + self._steps_between) * actor + critics
        return Flops(action=actor, update=self.batch_size * (targets + 3 * critics + 3 * actor + critics))

    def _step(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        alpha = self._temperature.log_alpha.detach().exp()

        # The policy draws outside of what is compiled, because its layers may be replaced by quantized ones.
        with torch.no_grad():
            following = self._draw(batch.bootstrap_observations)
            soft = self._soft_returns(batch, alpha)
            batch = batch._replace(returns=soft, between_observations=None, between_discounts=None)
        loss, errors = self._critic_loss_of(batch, *following, alpha)
        self._critic_minimizer.step(loss)

        actions, log_probabilities = self._draw(batch.observations)
        values = self._critic.judge(batch.observations, actions).amin(0)
        policy_loss = (alpha * log_probabilities - values).mean()
        # Neither has a gradient for the other's parameters.
        self._policy_minimizer.step(policy_loss + self._temperature.loss(log_probabilities))

        self._target_parameters.move_towards(self._critic_parameters, self._config.target_rate)
        return loss.detach(), errors

    def _critic_loss(
        self, batch: Minibatch, following: Tensor, log_probabilities: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """L_Q, and the mean of both |delta|, float32[B]; following: a' float32[B, components], then its log pi."""
        with torch.no_grad():
            values = self._target_critic(batch.bootstrap_observations, following).amin(0)
            targets = batch.returns + batch.bootstrap_discounts * (values - alpha * log_probabilities)

        errors = targets - self._critic(batch.observations, self._scale.normalize(batch.actions))
        return 0.5 * (batch.weights * errors.square().sum(0)).mean(), errors.detach().abs().mean(0)

    def _soft_returns(self, batch: Minibatch, alpha: Tensor) -> Tensor:
        """The returns float32[B] with the entropies of the steps in between, where a window has any."""
        if batch.between_observations is None or batch.between_discounts is None:
            return batch.returns
        self._steps_between = batch.between_discounts.shape[1]
        _, log_probabilities = self._draw(batch.between_observations.flatten(0, 1))
        entropies = -log_probabilities.view_as(batch.between_discounts)
        return batch.returns + alpha * (batch.between_discounts * entropies).sum(1)

    def _draw(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        shape = (len(observations), self._scale.components)
        noise = torch.randn(shape, generator=self._generator, device=self._device)
        return self.policy.sample(observations, noise)

    def state(self) -> dict[str, Tensor]:
        """Networks, target critics, log alpha (the last of the policy's parameters), Adam's moments, the generator."""
        return {
            **prefixed("policy.", self._policy_minimizer.state()),
            **prefixed("critic.", self._critic_minimizer.state()),
            "target_critic": self._target_parameters.vector.clone(),
            "generator": self._generator.get_state(),
            **({} if self._normalizer is None else prefixed("normalizer.", self._normalizer.state_dict())),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned; raises KeyError or RuntimeError when names or shapes differ."""
        self._policy_minimizer.load_state(without_prefix("policy.", state, self._device))
        self._critic_minimizer.load_state(without_prefix("critic.", state, self._device))
        load_vector(self._target_parameters, state["target_critic"])
        restore_generator(self._generator, state["generator"])
        if self._normalizer is not None:
            self._normalizer.load_state_dict(without_prefix("normalizer.", state))
