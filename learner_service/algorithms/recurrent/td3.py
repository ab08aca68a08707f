"""TD3 with memory (Ni et al. 2022, arXiv 2110.05038): its update at each trained step of sequences.

Only the policy and its target network have a cell. The critics read the output of the policy's cell beside the
observation. The target policy computes its own states, from the same stored ones. When the policy is updated, L and J
both train the cell, so that it remembers what values depend on. Both use the networks from before the update.
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
from learner_service.algorithms.td3 import TD3
from learner_service.batch import Batch
from learner_service.networks import DeterministicPolicy, TwinCritic
from learner_service.sparsity import Flops


class RecurrentTD3(SequenceAlgorithm, TD3):
    """TD3 on sequences; see the module's docstring."""

    def kinds(self) -> tuple[partial[DeterministicPolicy], partial[TwinCritic]]:
        """What makes policy and critics."""
        memory = self._config.memory
        return partial(DeterministicPolicy, memory=memory), partial(TwinCritic, remembered=memory.units)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Update the critics. Every `policy_delay`-th time, also update the policy and all targets."""
        noise = self.noise(batch.begins.numel())
        self.updates += 1
        if self.updates % self._settings.policy_delay:
            with torch.no_grad():
                outputs = remembered(self.policy, batch)
            loss, priorities = self._improve_critics(batch, outputs, *self._targets(batch, outputs, noise))
            return loss, priorities

        def losses() -> tuple[Tensor, ...]:
            outputs = remembered(self.policy, batch)
            loss, priorities = self._critic_loss(batch, outputs, *self._targets(batch, outputs, noise))
            (policy_loss,) = self._policy_loss(batch, outputs[: len(batch.mask)])
            return loss + policy_loss, loss.detach(), policy_loss.detach(), priorities

        loss, policy_loss, priorities = self.descend_together((self._pi, self._q), losses)
        self.report(policy_loss=policy_loss)
        self._pi.move_target(self._settings.target_rate)
        self._q.move_target(self._settings.target_rate)
        return loss, priorities

    def _targets(self, batch: Batch, outputs: Tensor, noise: Tensor) -> tuple[Tensor]:  # type: ignore[override]
        """y, float32[R, B].

        outputs: of the policy's cell, float32[P, B, U]. noise: standard normal, float32[P * B, components].
        """
        observations = batch.observations.flatten(0, 1)
        with torch.no_grad():
            largest = self._settings.target_noise_clip
            noise = (self._settings.target_noise * noise).clamp(-largest, largest)
            target = self._pi.target
            own = remembered(target, batch).flatten(0, 1)
            smoothed = (target.squashed(observations, own) + noise).clamp(-1.0, 1.0)
            values = self._q.target(observations, torch.cat((outputs.flatten(0, 1), smoothed), 1)).amin(0)
            following = bootstrapped(values.view(outputs.shape[:2]), batch)
            return (batch.returns + batch.bootstrap_discounts * following,)

    def _critic_loss(self, batch: Batch, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """L, and the priorities, float32[B]."""
        rows = slice(0, targets.numel())
        acted = self.policy.scale.normalize(batch.actions.flatten(0, 1))
        read = torch.cat((outputs.flatten(0, 1)[rows], acted), 1)
        errors = targets - self._q(batch.observations.flatten(0, 1)[rows], read).view(2, *targets.shape)
        return mean_of_trained(errors.square().sum(0), batch), priorities_of(errors.detach().abs().mean(0), batch)

    def _policy_loss(self, batch: Batch, outputs: Tensor) -> tuple[Tensor]:  # type: ignore[override]
        """-J. outputs: of the policy's cell, float32[R, B, U]."""
        read = outputs.flatten(0, 1)
        observations = batch.observations[: len(batch.mask)].flatten(0, 1)
        acted = torch.cat((read.detach(), self.policy.squashed(observations, read)), 1)
        values = self._q.network.judge(observations, acted, critics=1)
        return (-mean_of_trained(values.view(batch.mask.shape), batch, weighted=False),)

    @property
    def flops(self) -> Flops:
        """FLOPs of both policies over whole sequences, of the targets, of both critics, and of the policy's update."""
        memory, actor, critics = self._config.memory, self._pi.cost, self._q.cost
        trained, later = memory.sequence_length, memory.sequence_length + self.n_step
        policy = (1 / self._settings.policy_delay) * (3 * trained * actor + 0.5 * trained * critics)
        targets = 2 * (memory.burn_in + later) * actor + later * critics
        return Flops(action=actor, update=self.sequences * (targets + 3 * trained * critics + policy))
