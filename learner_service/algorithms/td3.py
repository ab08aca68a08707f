"""TD3 (Fujimoto et al. 2018, arXiv 1802.09477): twin critics, smoothed targets, delayed policy; n-step returns.

One update, for transitions i of a batch with importance weights w_i (algorithm 1 of the paper):

    a~     = clip(pi(s_{t+m}; phi^-) + eps, -1, 1),  eps ~ clip(N(0, target_noise), +-target_noise_clip)    eq. 14
    y_i    = sum_{k<m} gamma^k r_{t+k} + gamma^m min_{j=1,2} Q_j(s_{t+m}, a~; theta^-)                      eq. 10
    delta_ij = y_i - Q_j(s_t, a_t; theta)
    L      = mean_i w_i sum_j delta_ij^2

and after every `policy_delay`-th such update of the critics (sec. 5.2)

    J      = mean_i Q_1(s_t, pi(s_t; phi); theta)                                                           eq. 11
    phi^-  <- tau phi + (1 - tau) phi^-,  theta^- likewise

m is n, or less where the episode or the segment ended; the bootstrap term is absent past a terminal state. Actions are
those of the environment scaled to [-1, 1]. A transition's new priority is the mean of its two |delta_ij|; importance
weights correct the critics' loss, which is the one that regresses, and not J.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
from learner_service.networks import ActionScale, DeterministicPolicy, TwinCritic
from learner_service.networks.observations import feature_layers, normalizer_for
from learner_service.networks.precision import use_precision
from learner_service.replay import NStepBatch
from learner_service.sparsity import METHODS, Flops, SparsityPlan


class TD3:
    """Twin delayed deterministic policy gradients; see the module's docstring for the update."""

    name = "td3"
    action_spaces: ClassVar[tuple[ActionSpace, ...]] = ("continuous",)
    stochastic = False
    sparsity_methods = METHODS

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._config = config.td3
        self._device = device
        self.batch_size, self.n_step, self.discount = config.td3.batch_size, config.td3.n_step, config.td3.discount
        self._normalizer = normalizer_for(config, spec, device)
        self._scale = ActionScale(spec).to(device)
        sparsity = SparsityPlan(config, spec, self.batch_size)
        with torch.random.fork_rng(devices=()):
            sizes = config.td3.hidden_sizes
            policy_sizes = sparsity.sizes("actor", sizes, lambda sizes: self._policy(config, spec, sizes))
            critic_sizes = sparsity.sizes("critic", sizes, lambda sizes: self._twins(config, spec, sizes))
            torch.manual_seed(config.seed)
            self.policy, self._target_policy = (self._policy(config, spec, policy_sizes).to(device) for _ in range(2))
            self._critic, self._target_critic = (self._twins(config, spec, critic_sizes).to(device) for _ in range(2))
        copy_network(self.policy, self._target_policy)
        copy_network(self._critic, self._target_critic)
        self._policy_parameters, self._target_policy_parameters = (
            FlatParameters(policy) for policy in (self.policy, self._target_policy)
        )
        self._critic_parameters, self._target_critic_parameters = (
            FlatParameters(critic) for critic in (self._critic, self._target_critic)
        )
        actor = sparsity.topology(
            "actor",
            self._policy_parameters,
            self._target_policy_parameters,
            updates_per_step=config.td3.policy_delay,
        )
        critic = sparsity.topology("critic", self._critic_parameters, self._target_critic_parameters)
        self._policy_minimizer = Minimizer(self._policy_parameters, config.td3.learning_rate, actor)
        self._critic_minimizer = Minimizer(self._critic_parameters, config.td3.learning_rate, critic)
        networks = (
            *(self._policy_parameters, self._target_policy_parameters),
            *(self._critic_parameters, self._target_critic_parameters),
        )
        self.precision = use_precision(config, self.batch_size, networks)
        self._actor_cost = sparsity.cost("actor", self._policy_parameters, actor)
        self._critic_cost = sparsity.cost("critic", self._critic_parameters, critic)
        self._critic_loss_of = torch.compile(self._critic_loss) if config.learner.compile else self._critic_loss
        self._generator = torch.Generator(device).manual_seed(config.seed)
        self._updates = 0

    def _policy(self, config: RunConfig, spec: EnvironmentSpec, sizes: Sequence[int]) -> DeterministicPolicy:
        return DeterministicPolicy(spec, sizes, self._normalizer, feature_layers(config, spec))

    def _twins(self, config: RunConfig, spec: EnvironmentSpec, sizes: Sequence[int]) -> TwinCritic:
        return TwinCritic(spec, sizes, self._normalizer, feature_layers(config, spec))

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
        """What the networks cost: targets, both critics, and every so often the policy, judged by one of them."""
        actor, critics = self._actor_cost(), self._critic_cost()
        policy = (1 / self._config.policy_delay) * (3 * actor + 0.5 * critics)
        return Flops(action=actor, update=self.batch_size * (actor + critics + 3 * critics + policy))

    def _step(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        noise = torch.randn(
            (len(batch.weights), self._scale.components), generator=self._generator, device=self._device
        )
        loss, errors = self._critic_loss_of(batch, noise)
        self._critic_minimizer.step(loss)
        self._updates += 1
        if self._updates % self._config.policy_delay == 0:
            self._policy_minimizer.step(self._policy_loss(batch.observations))
            self._target_policy_parameters.move_towards(self._policy_parameters, self._config.target_rate)
            self._target_critic_parameters.move_towards(self._critic_parameters, self._config.target_rate)
        return loss.detach(), errors

    def _critic_loss(self, batch: Minibatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        """L, and the mean of both critics' |delta|, float32[B]; noise: standard normal, float32[B, components]."""
        with torch.no_grad():
            largest = self._config.target_noise_clip
            noise = (self._config.target_noise * noise).clamp(-largest, largest)
            following = batch.bootstrap_observations
            smoothed = (self._target_policy.squashed(following) + noise).clamp(-1.0, 1.0)
            values = self._target_critic(following, smoothed).amin(0)
            targets = batch.returns + batch.bootstrap_discounts * values

        errors = targets - self._critic(batch.observations, self._scale.normalize(batch.actions))
        return (batch.weights * errors.square().sum(0)).mean(), errors.detach().abs().mean(0)

    def _policy_loss(self, observations: Tensor) -> Tensor:
        return -self._critic.judge(observations, self.policy.squashed(observations), critics=1).mean()

    def state(self) -> dict[str, Tensor]:
        """Networks and their targets, Adam's moments, the generator of noise, the number of updates."""
        return {
            **prefixed("policy.", self._policy_minimizer.state()),
            **prefixed("critic.", self._critic_minimizer.state()),
            "target_policy": self._target_policy_parameters.vector.clone(),
            "target_critic": self._target_critic_parameters.vector.clone(),
            "generator": self._generator.get_state(),
            "updates": torch.tensor(self._updates),
            **({} if self._normalizer is None else prefixed("normalizer.", self._normalizer.state_dict())),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned; raises KeyError or RuntimeError when names or shapes differ."""
        self._policy_minimizer.load_state(without_prefix("policy.", state, self._device))
        self._critic_minimizer.load_state(without_prefix("critic.", state, self._device))
        load_vector(self._target_policy_parameters, state["target_policy"])
        load_vector(self._target_critic_parameters, state["target_critic"])
        restore_generator(self._generator, state["generator"])
        self._updates = int(state["updates"])
        if self._normalizer is not None:
            self._normalizer.load_state_dict(without_prefix("normalizer.", state))
