"""DQN (Mnih et al. 2015) with double selection, dueling heads, n-step returns, prioritized replay.

One update, for transitions i of a batch with importance weights w_i:

    a*     = argmax_a Q(s_{t+m}, a; theta)                                        double DQN, arXiv 1509.06461, eq. 4
    y_i    = sum_{k<m} gamma^k r_{t+k} + gamma^m Q(s_{t+m}, a*; theta^-)          n-step, arXiv 1710.02298, sec. 3
    delta_i = y_i - Q(s_t, a_t; theta)
    L      = mean_i w_i Huber(delta_i)                                            prioritized, arXiv 1511.05952

m is n, or less where the episode ends or the next step is not stored. The bootstrap term is absent past a terminal
state. |delta_i| is the transition's new priority. theta^- is a copy of theta, renewed every `target_update_period`
updates.

With `value_rescaling`, Q is on another scale (Pohlen et al. 2018, arXiv 1805.11593), with h of `rescaled`:

    y_i    = h(sum_{k<m} gamma^k r_{t+k} + gamma^m h^-1(Q(s_{t+m}, a*; theta^-)))

Rewards then need no clipping.
"""

from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from actorq.config.algorithms import ActionSpace, DQNConfig
from learner_service.algorithms.base import Losses
from learner_service.algorithms.gradient import GradientAlgorithm
from learner_service.algorithms.trainable import annealed
from learner_service.batch import Batch
from learner_service.networks import QNetwork
from learner_service.sparsity import Flops
from learner_service.sparsity.network_sparsity import Network

# Of h. With it h^-1 is Lipschitz continuous.
_EPSILON = 1e-3


class DQN(GradientAlgorithm):
    """Double, dueling, n-step DQN with a hard target network; see the module's docstring for the update."""

    name = "dqn"
    action_spaces: ClassVar[tuple[ActionSpace, ...]] = DQNConfig.actions
    has_groups: ClassVar[bool] = True
    settings = DQNConfig
    policy: QNetwork
    _settings: DQNConfig
    state_names: ClassVar[dict[Network, tuple[str, str]]] = {"actor": ("online", "target")}

    def make_networks(self, settings: DQNConfig) -> None:
        """Make Q. It is both policy and critic, and has the actor's sparsity."""
        network = partial(QNetwork, dueling=settings.dueling, memory=self._config.memory)
        self._q = self.network(
            *("actor", network, settings.hidden_sizes, settings.learning_rate),
            max_gradient_norm=settings.max_gradient_norm,
        )
        # Column of the first value of each part of an action, within the values of all parts.
        self._starts = torch.tensor([0, *self._spec.sizes[:-1]], device=self._device).cumsum(0)
        self._improve = self.descent(self._q, self.compiled(self._loss))

    def update(self, batch: Batch, weights: NDArray[np.float32]) -> Losses:
        """One gradient update for each `batch_size` rows of `batch`; `weights` float32[rows] scale the losses."""
        pairs = self.with_targets(batch, weights, self._settings.target_update_period, self._target_values)
        return self.losses(self._step(minibatch, *target_values) for minibatch, target_values in pairs)

    def _target_values(self, batch: Batch) -> tuple[Tensor]:
        """Q(s_{t+m}, .; theta^-), float32[B, actions]."""
        with torch.no_grad():
            return (self._q.target(batch.bootstrap_observations),)

    def _step(self, batch: Batch, target_values: Tensor) -> tuple[Tensor, Tensor]:
        """Make one update; returns L, float32[], and |delta|, float32[B]."""
        settings = self._settings
        progress = self.updates / settings.learning_rate_updates
        self._q.set_learning_rate(annealed(settings.learning_rate, settings.learning_rate_end, progress))
        loss, errors = self._improve(batch, target_values)
        self.updates += 1
        if self.updates % settings.target_update_period == 0:
            self._q.copy_to_target()
        return loss, errors

    def _loss(self, batch: Batch, target_values: Tensor) -> tuple[Tensor, Tensor]:
        """L, float32[], and |delta|, float32[B]. target_values: Q(s_{t+m}, .; theta^-), float32[B, actions]."""
        with torch.no_grad():
            best = self._best(self._q(batch.bootstrap_observations) if self._settings.double else target_values)
            targets = self.targets(batch, mean_of_parts(self._of_parts(target_values, best)))
        taken = self._columns(batch.actions.to(torch.int64).view_as(best))
        values = self._of_parts(self._q(batch.observations), taken)
        # All parts of an action share one target (arXiv 1711.08946).
        targets = targets if values.ndim == 1 else targets.unsqueeze(1).expand_as(values)
        losses = functional.huber_loss(values, targets, reduction="none", delta=self._settings.huber_delta)
        return (batch.weights * mean_of_parts(losses)).mean(), mean_of_parts((targets - values.detach()).abs_())

    def targets(self, batch: Batch, following: Tensor) -> Tensor:
        """y_i, in the shape of the returns. following: Q(s_{t+m}, a*; theta^-)."""
        if not self._settings.value_rescaling:
            targets: Tensor = batch.returns + batch.bootstrap_discounts * following
            return targets
        return rescaled(batch.returns + batch.bootstrap_discounts * restored(following))

    def _best(self, values: Tensor) -> Tensor:
        """a* of each part of an action, int64[B, parts], as columns of `values`, float32[B, actions]."""
        if len(self._spec.sizes) == 1:
            return values.argmax(1, keepdim=True)
        best = [part.argmax(1, keepdim=True) for part in torch.split(values, list(self._spec.sizes), 1)]
        return self._columns(torch.cat(best, 1))

    def _of_parts(self, values: Tensor, columns: Tensor) -> Tensor:
        """The values in these columns, float32[B, parts]; float32[B] for a single part."""
        chosen = values.gather(1, columns)
        return chosen.squeeze(1) if len(self._spec.sizes) == 1 else chosen

    def _columns(self, choices: Tensor) -> Tensor:
        """The columns of choices of each part, int64[B, parts], within the values of all parts."""
        return choices if len(self._spec.sizes) == 1 else choices + self._starts

    @property
    def flops(self) -> Flops:
        """FLOPs of the target network's values, of the choice of a*, and of the update."""
        network = self._q.cost
        return Flops(action=network, update=self.batch_size * ((5 if self._settings.double else 4) * network))


def mean_of_parts(parts: Tensor) -> Tensor:
    """The mean over the parts of an action, [B, parts] or [B] -> [B]."""
    return parts if parts.ndim == 1 else parts.mean(1)


def rescaled(values: Tensor) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x (Pohlen et al. 2018, arXiv 1805.11593, section 3.2)."""
    return values.sign() * ((values.abs() + 1).sqrt() - 1) + _EPSILON * values


def restored(values: Tensor) -> Tensor:
    """h^-1, for h of `rescaled` (arXiv 1805.11593, proposition A.2)."""
    root = (1 + 4 * _EPSILON * (values.abs() + 1 + _EPSILON)).sqrt()
    return values.sign() * (((root - 1) / (2 * _EPSILON)).square() - 1)
