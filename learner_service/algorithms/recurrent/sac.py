"""SAC with memory (Ni et al. 2022, arXiv 2110.05038): its update at each trained step of sequences.

The policy's cell is the only one. The critics read the cell's output beside the observation. The present policy
computes it, from the stored state of the sequence. L_Q and L_pi both train the cell, so that it remembers what values
depend on. Both losses use the networks from before the update.
"""

from functools import partial

import torch
from torch import Tensor

from learner_service.algorithms.recurrent.sequences import (
    SequenceAlgorithm,
    bootstrapped,
    mean_of_trained,
    priorities_of,
    remembered,
)
from learner_service.algorithms.sac import SAC
from learner_service.batch import Batch
from learner_service.networks import RecurrentGaussianPolicy, TwinCritic
from learner_service.networks.continuous import sample_of
from learner_service.sparsity import Flops


class RecurrentSAC(SequenceAlgorithm, SAC):
    """SAC on sequences; see the module's docstring."""

    policy: RecurrentGaussianPolicy

    def kinds(self) -> tuple[partial[RecurrentGaussianPolicy], partial[TwinCritic]]:
        """What makes policy and critics."""
        memory = self._config.memory
        return partial(RecurrentGaussianPolicy, memory=memory), partial(TwinCritic, remembered=memory.units)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Update policy, temperature and critics together, then the target critics."""
        following, drawn = self.noise(batch.begins.numel()), self.noise(batch.mask.numel())

        def losses() -> tuple[Tensor, ...]:
            outputs = remembered(self.policy, batch)
            loss, priorities = self._critic_loss(batch, outputs, following)
            (policy_loss,) = self._policy_loss(batch, outputs[: len(batch.mask)], drawn)
            return loss + policy_loss, loss.detach(), policy_loss.detach(), priorities

        loss, policy_loss, priorities = self.descend_together((self._pi, self._q), losses)
        self.report(policy_loss=policy_loss, temperature=self.temperature.alpha)
        self._q.move_target(self._settings.target_rate)
        self.updates += 1
        return loss, priorities

    def _critic_loss(self, batch: Batch, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """L_Q, and the priorities, float32[B].

        outputs: of the policy's cell, float32[P, B, U]. noise: standard normal, float32[P * B, components].
        """
        observations, read, shape = batch.observations.flatten(0, 1), outputs.flatten(0, 1), batch.mask.shape
        with torch.no_grad():
            alpha = self.temperature.alpha
            actions, log_probabilities = sample_of(self.policy.computed(observations, read), noise)
            values = self._q.target(observations, torch.cat((read, actions), 1)).amin(0)
            entropies = -alpha * log_probabilities.view(outputs.shape[:2])
            following = bootstrapped(values.view(entropies.shape) + entropies, batch)
            targets = batch.returns + batch.bootstrap_discounts * following
            if "between_discounts" in batch:
                windows = entropies[1:].unfold(0, batch.between_discounts.shape[-1], 1)[: len(targets)]
                targets = targets + (batch.between_discounts * windows).sum(-1)
        acted = self.policy.scale.normalize(batch.actions.flatten(0, 1))
        rows = slice(0, targets.numel())
        errors = targets - self._q(observations[rows], torch.cat((read[rows], acted), 1)).view(2, *shape)
        squares = 0.5 * errors.square().sum(0)
        return mean_of_trained(squares, batch), priorities_of(errors.detach().abs().mean(0), batch)

    def _policy_loss(self, batch: Batch, outputs: Tensor, noise: Tensor) -> tuple[Tensor]:  # type: ignore[override]
        """L_pi + L_alpha.

        outputs: of the policy's cell, float32[R, B, U]. noise: standard normal, float32[R * B, components].
        """
        shape, read = batch.mask.shape, outputs.flatten(0, 1)
        observations = batch.observations[: len(batch.mask)].flatten(0, 1)
        actions, log_probabilities = sample_of(self.policy.computed(observations, read), noise)
        values = self._q.network.judge(observations, torch.cat((read.detach(), actions), 1)).amin(0)
        losses = self.temperature.alpha * log_probabilities - values
        mean = mean_of_trained(log_probabilities.detach().view(shape), batch, weighted=False)
        return (mean_of_trained(losses.view(shape), batch, weighted=False) + self.temperature.loss(mean),)

    @property
    def flops(self) -> Flops:
        """FLOPs of the policy over whole sequences, of the targets, of both critics, and of the policy's update."""
        memory, actor, critics = self._config.memory, self._pi.cost, self._q.cost
        trained, later = memory.sequence_length, memory.sequence_length + self.n_step
        policy = (memory.burn_in + 3 * later) * actor
        return Flops(action=actor, update=self.sequences * (policy + (later + 4 * trained) * critics))
