"""D4PG (Barth-Maron et al. 2018, arXiv 1804.08617): deterministic policy, distribution of returns, n-step targets.

One update, for transitions i of a batch with importance weights w_i; Z(s, a) has probabilities p(s, a) on fixed values
z, and Q(s, a) = sum_j p_j(s, a) z_j:

    a'      = pi(s_{t+m}; phi^-)                                                  arXiv 1804.08617, algorithm 1
    y_i     = Phi( sum_{k<m} gamma^k r_{t+k} + gamma^m Z(s_{t+m}, a'; theta^-) )  projected, arXiv 1707.06887, eq. 7
    L       = mean_i w_i  -sum_j y_ij log p_j(s_t, a_t; theta)                    cross entropy
    dJ/dphi = mean_i clip_1(dQ(s_t, a; theta)/da at a = pi(s_t)) dpi(s_t; phi)/dphi

m is n, or less where the episode or the segment ended; past a terminal state Z is 0 and all mass is on the return.
|E[y_i] - Q(s_t, a_t)| is the transition's new priority. phi^- and theta^- are copies of phi and theta from every
`target_update_period` updates. clip_1 keeps a state's gradient to norm 1, as Acme does: it tells a direction, and
states of high value are not to drown the others. Actions are in [-1, 1] here; the policy's graph scales them.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorq.config.run_config import RunConfig
from actorq.domain.trajectory import EnvironmentSpec
from learner_service.algorithms.base import ActionSpace, Losses, Minibatch, minibatches, prefixed, without_prefix
from learner_service.kernels.parameters import FlatParameters, Minimizer, copy_network, load_vector
from learner_service.networks import CategoricalCritic, LayerNormPolicy, Support
from learner_service.networks.observations import are_frames, feature_layers, normalizer_for
from learner_service.networks.precision import use_precision
from learner_service.replay import NStepBatch
from learner_service.sparsity import METHODS, Flops, SparsityPlan

_log = logging.getLogger(__name__)

# Of the targets of some updates; from here on the distribution is more clipped than learned.
_TOO_MANY_BEYOND = 0.1


class D4PG:
    """Distributional deterministic policy gradients with hard target networks; see the module's docstring."""

    name = "d4pg"
    action_spaces: ClassVar[tuple[ActionSpace, ...]] = ("continuous",)
    stochastic = False
    sparsity_methods = METHODS

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._config = d4pg = config.d4pg
        self._device = device
        self.batch_size, self.n_step, self.discount = d4pg.batch_size, d4pg.n_step, d4pg.discount
        self._normalizer = normalizer_for(config, spec, device)
        sparsity = SparsityPlan(config, spec, self.batch_size)
        with torch.random.fork_rng(devices=()):
            policy_sizes = sparsity.sizes(
                "actor", d4pg.policy_sizes, lambda sizes: self._make_policy(config, spec, sizes)
            )
            critic_sizes = sparsity.sizes(
                "critic", d4pg.critic_sizes, lambda sizes: self._make_critic(config, spec, sizes)
            )
            torch.manual_seed(config.seed)
            self.policy, self._target_policy = (
                self._make_policy(config, spec, policy_sizes).to(device) for _ in range(2)
            )
            self._critic, self._target_critic = (
                self._make_critic(config, spec, critic_sizes).to(device) for _ in range(2)
            )
        copy_network(self.policy, self._target_policy)
        copy_network(self._critic, self._target_critic)
        self._support = Support(d4pg.value_min, d4pg.value_max, d4pg.atoms).to(device)
        self._parameters = {"policy": FlatParameters(self.policy), "critic": FlatParameters(self._critic)}
        self._targets = {"policy": FlatParameters(self._target_policy), "critic": FlatParameters(self._target_critic)}
        for target in (self._target_policy, self._target_critic):
            target.requires_grad_(False)
        self._trained = tuple(parameter for parameter in self._critic.parameters() if parameter.requires_grad)
        rates = {"policy": d4pg.policy_learning_rate, "critic": d4pg.critic_learning_rate}
        topologies = {
            "policy": sparsity.topology("actor", self._parameters["policy"], self._targets["policy"]),
            "critic": sparsity.topology("critic", self._parameters["critic"], self._targets["critic"]),
        }
        self._minimizers = {
            name: Minimizer(parameters, rates[name], topologies[name], d4pg.max_gradient_norm)
            for name, parameters in self._parameters.items()
        }
        networks = (*self._parameters.values(), *self._targets.values())
        self.precision = use_precision(config, self.batch_size, networks)
        self._costs = {
            "policy": sparsity.cost("actor", self._parameters["policy"], topologies["policy"]),
            "critic": sparsity.cost("critic", self._parameters["critic"], topologies["critic"]),
        }
        self._judges_many = device.type != "cpu" or not are_frames(spec)
        self._critic_loss_of = torch.compile(self._critic_loss) if config.learner.compile else self._critic_loss
        self._updates = 0
        self._warned = False

    def _make_policy(self, config: RunConfig, spec: EnvironmentSpec, sizes: Sequence[int]) -> LayerNormPolicy:
        return LayerNormPolicy(spec, sizes, self._normalizer, feature_layers(config, spec))

    def _make_critic(self, config: RunConfig, spec: EnvironmentSpec, sizes: Sequence[int]) -> CategoricalCritic:
        return CategoricalCritic(spec, sizes, config.d4pg.atoms, self._normalizer, feature_layers(config, spec))

    def update(self, batch: NStepBatch, weights: NDArray[np.float32]) -> Losses:
        """One gradient update for each `batch_size` rows of `batch`; `weights` float32[rows] scale the losses."""
        cut = list(minibatches(batch, weights, self.batch_size, self._device))
        losses, errors, beyond = zip(*(self._step(*each) for each in self._with_targets(cut)), strict=True)
        self._warn(float(torch.stack(beyond).mean()))
        return Losses(float(torch.stack(losses).mean()), torch.cat(errors).cpu().numpy())

    @property
    def flops(self) -> Flops:
        """What the networks cost: targets, the critic, and the policy, judged by it."""
        actor, critic = self._costs["policy"](), self._costs["critic"]()
        return Flops(action=actor, update=self.batch_size * (actor + critic + 3 * critic + 3 * actor + critic))

    def _with_targets(self, cut: Sequence[Minibatch]) -> Iterator[tuple[Minibatch, Tensor, Tensor]]:
        """The minibatches with their target distributions, float32[B, atoms], and the share of them beyond the support.

        The target networks stand still between two copies. One call of them serves all minibatches until the next copy,
        but for frames, of which many at a time leave the caches.
        """
        while cut:
            period = self._config.target_update_period
            together = period - self._updates % period if self._judges_many else 1
            now, cut = cut[:together], cut[together:]
            targets, beyond = self._targets_of(now)
            yield from zip(now, *(torch.split(each, self.batch_size) for each in (targets, beyond)), strict=True)

    def _targets_of(self, cut: Sequence[Minibatch]) -> tuple[Tensor, Tensor]:
        """The target distributions of all rows, float32[rows, atoms], and which are beyond the support, bool[rows]."""
        following, returns, discounts = (
            torch.cat(columns)
            for columns in zip(
                *((each.bootstrap_observations, each.returns, each.bootstrap_discounts) for each in cut), strict=True
            )
        )
        with torch.no_grad():
            probabilities = torch.softmax(
                self._target_critic(following, self._target_policy.squashed(following)), dim=1
            )
            expected = returns + discounts * (probabilities @ self._support.values)
            beyond = (expected < self._support.lowest) | (expected > self._support.highest)
            return self._support.project(probabilities, returns, discounts), beyond

    def _step(self, batch: Minibatch, targets: Tensor, beyond: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss, errors = self._critic_loss_of(batch, targets)
        self._minimizers["critic"].step(loss)

        squashed, direction = self._direction(batch.observations)
        # Its gradient by phi is -dJ/dphi: the direction is a constant here.
        self._minimizers["policy"].step(-(direction * squashed).sum(1).mean())

        self._updates += 1
        if self._updates % self._config.target_update_period == 0:
            self._copy_to_targets()
        return loss.detach(), errors, beyond.float().mean()

    def _critic_loss(self, batch: Minibatch, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and |TD errors| float32[B]."""
        logits = self._critic(batch.observations, self.policy.scale.normalize(batch.actions))
        cross_entropies = -(targets * torch.log_softmax(logits, 1)).sum(1)
        with torch.no_grad():
            errors = (targets @ self._support.values - self._support.mean(logits)).abs()
        return (batch.weights * cross_entropies).mean(), errors

    def _direction(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """pi(s) float32[B, components], and dQ/da there of norm 1 at most; the critic's parameters get no gradient."""
        squashed = self.policy.squashed(observations)
        actions = squashed.detach().requires_grad_()
        self._train_critic(False)
        values = self._support.mean(self._critic(observations, actions))
        self._train_critic(True)
        (direction,) = torch.autograd.grad(values.sum(), actions)
        norms = torch.linalg.vector_norm(direction, dim=1, keepdim=True)
        return squashed, direction / norms.clamp(min=1.0)

    def _train_critic(self, trained: bool) -> None:
        """Whether the critic's parameters get gradients, but for those that a user's network has frozen."""
        for parameter in self._trained:
            parameter.requires_grad_(trained)

    def _copy_to_targets(self) -> None:
        for name, target in self._targets.items():
            target.copy_from(self._parameters[name])

    def _warn(self, beyond: float) -> None:
        if beyond > _TOO_MANY_BEYOND and not self._warned:
            self._warned = True
            _log.warning(
                "%.0f%% of the returns to learn are beyond d4pg.value_min..value_max (%g..%g) and are clipped to it; "
                "set these to the lowest and highest discounted return that can be",
                *(100 * beyond, self._support.lowest, self._support.highest),
            )

    def normalize(self, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
        """Normalize observations with these from now on, if the run asks for it and they are not frames."""
        if self._normalizer is not None:
            self._normalizer.set(mean, std)

    def state(self) -> dict[str, Tensor]:
        """Networks, Adam's moments, the number of updates, the normalizer."""
        state = {"updates": torch.tensor(self._updates)}
        for name, minimizer in self._minimizers.items():
            state |= prefixed(f"{name}.", minimizer.state())
            state[f"target_{name}"] = self._targets[name].vector.clone()
        if self._normalizer is not None:
            state |= prefixed("normalizer.", self._normalizer.state_dict())
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned; raises KeyError or RuntimeError when names or shapes differ."""
        for name, minimizer in self._minimizers.items():
            minimizer.load_state(without_prefix(f"{name}.", state, self._device))
            load_vector(self._targets[name], state[f"target_{name}"])
        self._updates = int(state["updates"])
        if self._normalizer is not None:
            self._normalizer.load_state_dict(without_prefix("normalizer.", state))
