"""DQN (Mnih et al. 2015) with double selection, dueling heads, n-step returns, prioritized replay.

One update, for transitions i of a batch with importance weights w_i:

    a*     = argmax_a Q(s_{t+m}, a; theta)                                        double DQN, arXiv 1509.06461, eq. 4
    y_i    = sum_{k<m} gamma^k r_{t+k} + gamma^m Q(s_{t+m}, a*; theta^-)          n-step, arXiv 1710.02298, sec. 3
    delta_i = y_i - Q(s_t, a_t; theta)
    L      = mean_i w_i Huber(delta_i)                                            prioritized, arXiv 1511.05952
    dL / dQ(s_t, a_t; theta) = -w_i clip(delta_i, -kappa, kappa) / batch size     kappa is `huber_delta`

m is n, or less where the episode or the segment ended; the bootstrap term is absent past a terminal state. |delta_i|
is the transition's new priority. theta^- is a copy of theta from every `target_update_period` updates.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from actorq.config.run_config import RunConfig
from actorq.domain.trajectory import EnvironmentSpec
from learner_service.algorithms.base import ActionSpace, Losses, Minibatch, minibatches, prefixed, without_prefix
from learner_service.kernels.parameters import FlatParameters, Minimizer, copy_network, load_vector
from learner_service.networks import QNetwork
from learner_service.networks.observations import are_frames, feature_layers, normalizer_for
from learner_service.networks.precision import use_precision
from learner_service.replay import NStepBatch
from learner_service.sparsity import METHODS, Flops, SparsityPlan


class DQN:
    """Double, dueling, n-step DQN with a hard target network; see the module's docstring for the update."""

    name = "dqn"
    action_spaces: ClassVar[tuple[ActionSpace, ...]] = ("discrete",)
    stochastic = False
    sparsity_methods = METHODS

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        self._config = config.dqn
        self._device = device
        self.batch_size, self.n_step, self.discount = config.dqn.batch_size, config.dqn.n_step, config.dqn.discount
        self._normalizer = normalizer_for(config, spec, device)
        # The network is the policy and its own critic; what actors run decides how sparse it is.
        sparsity = SparsityPlan(config, spec, self.batch_size)
        with torch.random.fork_rng(devices=()):
            sizes = config.dqn.hidden_sizes
            sizes = sparsity.sizes("actor", sizes, lambda sizes: self._network(config, spec, sizes))
            torch.manual_seed(config.seed)
            self.policy, self._target = (self._network(config, spec, sizes).to(device) for _ in range(2))
        self._target.requires_grad_(False)
        copy_network(self.policy, self._target)
        self._online_parameters, self._target_parameters = FlatParameters(self.policy), FlatParameters(self._target)
        topology = sparsity.topology("actor", self._online_parameters, self._target_parameters)
        self._minimizer = Minimizer(
            self._online_parameters, config.dqn.learning_rate, topology, config.dqn.max_gradient_norm
        )
        networks = (self._online_parameters, self._target_parameters)
        self.precision = use_precision(config, self.batch_size, networks)
        self._cost = sparsity.cost("actor", self._online_parameters, topology)
        self._judges_many = device.type != "cpu" or not are_frames(spec)
        differences = self._temporal_differences
        self._values_and_errors = torch.compile(differences) if config.learner.compile else differences
        self._updates = 0

    def _network(self, config: RunConfig, spec: EnvironmentSpec, sizes: Sequence[int]) -> QNetwork:
        return QNetwork(spec, sizes, config.dqn.dueling, self._normalizer, feature_layers(config, spec))

    def update(self, batch: NStepBatch, weights: NDArray[np.float32]) -> Losses:
        """One gradient update for each `batch_size` rows of `batch`; `weights` float32[rows] scale the losses."""
        cut = list(minibatches(batch, weights, self.batch_size, self._device))
        errors = torch.cat([self._step(minibatch, values) for minibatch, values in self._with_target_values(cut)])
        losses = functional.huber_loss(
            errors, torch.zeros_like(errors), reduction="none", delta=self._config.huber_delta
        )
        scales = torch.cat([minibatch.weights for minibatch in cut])
        return Losses(loss=float((scales * losses).mean()), priorities=errors.abs_().cpu().numpy())

    def normalize(self, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
        """Normalize observations with these from now on, if the run asks for it and they are not frames."""
        if self._normalizer is not None:
            self._normalizer.set(mean, std)

    @property
    def flops(self) -> Flops:
        """What the network costs: the target's values, the choice between them, and the update."""
        network = self._cost()
        return Flops(action=network, update=self.batch_size * ((5 if self._config.double else 4) * network))

    def _with_target_values(self, cut: Sequence[Minibatch]) -> Iterator[tuple[Minibatch, Tensor]]:
        """The minibatches with Q(s_{t+m}, .; theta^-), float32[B, actions] each.

        theta^- stands still between two copies: one call of the target network serves all minibatches until the next,
        but for frames on the CPU, of which more at a time leave its caches and take longer. Where masks change between
        two minibatches, those that are left of the call have the values from before.
        """
        while cut:
            until_copy = self._config.target_update_period - self._updates % self._config.target_update_period
            together = until_copy if self._judges_many else 1
            now, cut = cut[:together], cut[together:]
            with torch.no_grad():
                values = self._target(torch.cat([minibatch.bootstrap_observations for minibatch in now]))
            yield from zip(now, values.split(self.batch_size), strict=True)

    def _step(self, batch: Minibatch, target_values: Tensor) -> Tensor:
        """One update; returns delta, float32[B]. The gradient of L by Q(s_t, a_t) is written down, the rest torch's."""
        values, errors = self._values_and_errors(batch, target_values)
        slopes = errors.clamp(-self._config.huber_delta, self._config.huber_delta)
        self._set_learning_rate()
        self._minimizer.step(values, batch.weights * slopes / -len(slopes))
        self._updates += 1
        if self._updates % self._config.target_update_period == 0:
            self._target_parameters.copy_from(self._online_parameters)
        return errors

    def _temporal_differences(self, batch: Minibatch, target_values: Tensor) -> tuple[Tensor, Tensor]:
        """Q(s_t, a_t; theta), float32[B], and delta, float32[B], without gradient."""
        with torch.no_grad():
            if self._config.double:
                best = self.policy(batch.bootstrap_observations).argmax(1, keepdim=True)
                bootstrap = target_values.gather(1, best).squeeze(1)
            else:
                bootstrap = target_values.amax(1)
            targets = batch.returns + batch.bootstrap_discounts * bootstrap
        values = self.policy(batch.observations).gather(1, batch.actions.to(torch.int64).unsqueeze(1)).squeeze(1)
        return values, targets - values.detach()

    def _set_learning_rate(self) -> None:
        start, end = self._config.learning_rate, self._config.learning_rate_end
        if end is None:
            return
        progress = min(1.0, self._updates / self._config.learning_rate_updates)
        self._minimizer.set_learning_rate(start + (end - start) * progress)

    def state(self) -> dict[str, Tensor]:
        """Networks, Adam's moments and the number of updates."""
        return {
            **prefixed("online.", self._minimizer.state()),
            "target": self._target_parameters.vector.clone(),
            "updates": torch.tensor(self._updates),
            **({} if self._normalizer is None else prefixed("normalizer.", self._normalizer.state_dict())),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned; raises KeyError or RuntimeError when names or shapes differ."""
        self._minimizer.load_state(without_prefix("online.", state, self._device))
        load_vector(self._target_parameters, state["target"])
        self._updates = int(state["updates"])
        if self._normalizer is not None:
            self._normalizer.load_state_dict(without_prefix("normalizer.", state))
