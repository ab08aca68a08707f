"""DQN with memory: R2D2 (Kapturowski et al. 2019) with the stored state, burn-in, double and dueling networks.

The update is that of DQN at each trained step of a sequence. Q and its target network each compute their own states,
from the same stored one. A sequence has one priority.
"""

import torch
from torch import Tensor
from torch.nn import functional

from learner_service.algorithms.dqn import DQN, mean_of_parts
from learner_service.algorithms.recurrent.sequences import (
    SequenceAlgorithm,
    bootstrapped,
    mean_of_trained,
    priorities_of,
    remembered,
)
from learner_service.batch import Batch
from learner_service.networks import QNetwork
from learner_service.sparsity import Flops


class RecurrentDQN(SequenceAlgorithm, DQN):
    """DQN on sequences; see the module's docstring."""

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Update Q. Every `target_update_period`-th time, also copy it to the target network."""
        return self._step(batch, *self._target_values(batch))

    def _target_values(self, batch: Batch) -> tuple[Tensor]:
        """Q(s, .; theta^-) at all observations after the burn-in, float32[P * B, actions]."""
        with torch.no_grad():
            return (_values(self._q.target, batch),)

    def _loss(self, batch: Batch, target_values: Tensor) -> tuple[Tensor, Tensor]:
        """L, float32[], and the priorities, float32[B]. target_values: of `_target_values`."""
        values, trained = _values(self._q.network, batch), batch.mask.shape
        with torch.no_grad():
            best = self._best(values if self._settings.double else target_values)
            following = mean_of_parts(self._of_parts(target_values, best)).view(-1, trained[1])
            targets = self.targets(batch, bootstrapped(following, batch)).flatten()
        actions = batch.actions.to(torch.int64).flatten(0, 1).view(len(targets), -1)
        chosen = self._of_parts(values[: len(targets)], self._columns(actions))
        targets = targets if chosen.ndim == 1 else targets.unsqueeze(1).expand_as(chosen)
        losses = functional.huber_loss(chosen, targets, reduction="none", delta=self._settings.huber_delta)
        errors = mean_of_parts((targets - chosen.detach()).abs_())
        return mean_of_trained(mean_of_parts(losses).view(trained), batch), priorities_of(errors.view(trained), batch)

    @property
    def flops(self) -> Flops:
        """FLOPs of both networks over whole sequences, and of the gradient of the steps after the burn-in."""
        memory, network = self._config.memory, self._q.cost
        later = memory.sequence_length + self.n_step
        return Flops(action=network, update=self.sequences * ((2 * memory.burn_in + 4 * later) * network))


def _values(network: QNetwork, batch: Batch) -> Tensor:
    """Q at all observations after the burn-in, float32[P * B, actions]."""
    return network.valued(batch.observations.flatten(0, 1), remembered(network, batch).flatten(0, 1))
