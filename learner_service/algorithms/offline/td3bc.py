"""TD3+BC (Fujimoto and Gu 2021, arXiv 2106.06860): TD3 whose policy stays near the actions of stored data.

The critics and both targets are those of TD3. Every `policy_delay`-th update of the critics improves the policy by

    lambda = alpha / mean_i |Q_1(s_i, pi(s_i; phi); theta)|,  without gradient                              eq. 5
    J      = mean_i lambda Q_1(s_i, pi(s_i; phi); theta) - (pi(s_i; phi) - a_i)^2                           eq. 3

As in the authors' code, lambda is computed from the policy's actions, and the square is a mean over the components of
an action. Actions are scaled from the environment's bounds to [-1, 1]. The paper also normalizes observations
(sec. 5): `normalize_observations`, which the preset turns on.
"""

from typing import ClassVar

from torch import Tensor

from actorq.config.algorithms import ActionSpace, TD3BCConfig
from learner_service.algorithms.td3 import TD3
from learner_service.batch import Batch


class TD3BC(TD3):
    """TD3 with behavior cloning; see the module's docstring for the update of the policy."""

    name = "td3bc"
    action_spaces: ClassVar[tuple[ActionSpace, ...]] = TD3BCConfig.actions
    settings = TD3BCConfig
    _settings: TD3BCConfig

    def make_networks(self, settings: TD3BCConfig) -> None:  # type: ignore[override]
        """Make the networks of TD3."""
        super().make_networks(settings)
        self._improve_policy = self.descent(self._pi, self._cloning_loss)

    def _step(self, batch: Batch, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Update the critics. Every `policy_delay`-th time, also update the policy and both targets."""
        loss, errors = self._improve_critics(batch, targets)
        self.updates += 1
        if self.updates % self._settings.policy_delay == 0:
            policy_loss, distance = self._improve_policy(batch.observations, batch.actions)
            self.report(policy_loss=policy_loss, distance=distance)
            self._pi.move_target(self._settings.target_rate)
            self._q.move_target(self._settings.target_rate)
        return loss, errors

    def _cloning_loss(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """-J, and the mean square of pi(s) - a."""
        taken = self.policy.squashed(observations)
        values = self._q.network.judge(observations, taken, critics=1)
        weight = self._settings.alpha / values.detach().abs().mean()  # eq. 5
        distance = (taken - self.policy.scale.normalize(actions)).square().mean()
        return distance - weight * values.mean(), distance.detach()  # eq. 3
