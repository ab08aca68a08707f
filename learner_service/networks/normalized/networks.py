"""The batch-normalized policy and critics of XQC (arXiv 2509.25174), and plain critics with running statistics."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from actorq.domain.spaces import EnvironmentSpec
from learner_service.kernels.linear import Linear, keep_fp32, mlp
from learner_service.networks.continuous import GaussianPolicy
from learner_service.networks.normalized.mlp import NormalizedMLP
from learner_service.networks.observations import FeatureNetwork


class NormalizedPolicy(FeatureNetwork):
    """The outputs of a Gaussian policy, normalized with the statistics of the batch.

    forward: observations [B, *policy_observations] -> means and log standard deviations float32[B, 2 A], and the
        statistics of the batch (see `NormalizedMLP`).
    """

    def __init__(self, spec: EnvironmentSpec, hidden_sizes: Sequence[int], **given: Any) -> None:
        super().__init__(spec, **given)
        self.body = NormalizedMLP((self.inputs, *hidden_sizes), 2 * math.prod(spec.actions.shape))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs and the statistics."""
        found: tuple[Tensor, Tensor] = self.body(self.seen(observations))
        return found

    def fold_into(self, policy: GaussianPolicy) -> None:
        """Copy this network to a plain policy of the same sizes. The policy computes with running statistics."""
        self.body.fold_into(policy.torso, policy.head)


class NormalizedCritics(FeatureNetwork):
    """Two critics that predict distributions of returns, normalized with the statistics of the batch.

    forward: observations [B, *policy_observations], actions float32[B, A] in [-1, 1], and the rows that need logits.
        Returns logits float32[2, rows, atoms] and each critic's statistics of the batch, float32[2, 2, values].
    """

    def __init__(self, spec: EnvironmentSpec, hidden_sizes: Sequence[int], atoms: int, **given: Any) -> None:
        super().__init__(spec, **given)
        sizes = (self.inputs + math.prod(spec.actions.shape), *hidden_sizes)
        self.both = nn.ModuleList(NormalizedMLP(sizes, atoms) for _ in range(2))

    def forward(self, observations: Tensor, actions: Tensor, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return the logits and the statistics."""
        x = torch.cat((self.seen(observations), actions), 1)
        logits, statistics = zip(*(critic(x, rows) for critic in self.both), strict=True)
        return torch.stack(logits), torch.stack(statistics)

    @property
    def statistics(self) -> Tensor:
        """The running statistics of both critics, float32[2, 2, values], a copy."""
        return torch.stack([critic.statistics for critic in self._critics])

    def set_statistics(self, statistics: Tensor) -> None:
        """Set what `statistics` returned."""
        for critic, own in zip(self._critics, statistics, strict=True):
            critic.statistics.copy_(own)

    def follow(self, statistics: Tensor) -> None:
        """Move the running statistics toward those of a batch."""
        for critic, own in zip(self._critics, statistics, strict=True):
            critic.follow(own)

    def project(self) -> None:
        """Give all rows of hidden weights norm 1."""
        for critic in self._critics:
            critic.project()

    def fold_into(self, plain: "PlainCritics") -> None:
        """Copy these critics to plain ones of the same sizes, which compute with running statistics."""
        for critic, (layers, head) in zip(self._critics, plain.parts, strict=True):
            critic.fold_into(layers, head)

    @property
    def _critics(self) -> list[NormalizedMLP]:
        return [critic for critic in self.both if isinstance(critic, NormalizedMLP)]


class PlainCritics(FeatureNetwork):
    """Critics of plain layers, folded from `NormalizedCritics`. They have gradients for the actions only.

    forward: observations [B, *policy_observations], actions float32[B, A] in [-1, 1] -> logits float32[2, B, atoms].
    """

    def __init__(self, spec: EnvironmentSpec, hidden_sizes: Sequence[int], atoms: int, **given: Any) -> None:
        super().__init__(spec, **given)
        sizes = (self.inputs + math.prod(spec.actions.shape), *hidden_sizes)
        self.parts = [(mlp(sizes), keep_fp32(Linear(sizes[-1], atoms))) for _ in range(2)]
        self.layers = nn.ModuleList(nn.Sequential(*layers, head) for layers, head in self.parts)
        self.requires_grad_(False)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the logits."""
        x = torch.cat((self.seen(observations), actions), 1)
        return torch.stack([critic(x) for critic in self.layers])
