"""SAC from images: random shifts (DrQ, arXiv 2004.13649), and one encoder for policy and critics (arXiv 2107.09645).

With the encoder f, `sac.py` computes with f(s) in place of each s. Before each update, all images are shifted.

    L_Q   trains the critics and f. Targets use the present f of s_{t+m}, without gradient. f has no target network.
    L_pi  trains the policy. Policy and critics read the features f(s_t) of the critics' update, without gradient.

The policy's loss does not train f, because its gradients make the features worse (arXiv 1910.01741). An
update encodes each state once. SAC with two encoders encodes s_t three times and s_{t+m} twice.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from actorq.config.algorithms import SACConfig
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import UserError
from learner_service.algorithms.images.random_shift import RandomShift
from learner_service.algorithms.sac import SAC
from learner_service.batch import Batch
from learner_service.networks import GaussianPolicy, TwinCritic
from learner_service.networks.images.shared_encoder import (
    SharedEncoderCritic,
    SharedEncoderLayerNormCritic,
    SharedEncoderPolicy,
)
from learner_service.networks.observations import has_images
from learner_service.sparsity import Flops
from learner_service.sparsity.flops import Cost, dense_flops
from learner_service.sparsity.trace import trace
from learner_service.sparsity.weights import maskable_weights


class ShiftedSAC(SAC):
    """SAC with random shifts of the images. Shifts are outside of recorded operations, because they draw numbers."""

    def make_networks(self, settings: SACConfig) -> None:
        """Make the shift, then the networks of SAC."""
        self._shift = RandomShift(self._spec, settings.random_shift, "sac.random_shift")
        super().make_networks(settings)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Shift the images, then update as SAC."""
        return super().step(self._shift(batch, self.generator))


class SharedEncoderSAC(ShiftedSAC):
    """SAC whose policy and critics share an encoder; see the module's docstring."""

    policy: SharedEncoderPolicy

    def make_networks(self, settings: SACConfig) -> None:
        """Make the networks, and give the policy the critics' encoder.

        Raises UserError for observations without images.
        """
        if not has_images(self._spec):
            raise UserError(
                f"sac.shared_encoder: expected observations with images, got {self._spec.observations_text} in "
                f"{self._spec.environment_id}; give --no-sac.shared-encoder"
            )
        super().make_networks(settings)
        critics = self._q.network
        pairs = zip(self.policy.encoder.parameters(), critics.features.parameters(), strict=True)
        self._encoders = [(copy.detach(), trained.detach()) for copy, trained in pairs]
        self._encoder_cost = _cost_of_encoder(critics, self._spec, self._device)
        self._copy_encoder()

    def kinds(self) -> tuple[Callable[..., GaussianPolicy], Callable[..., TwinCritic]]:
        """What makes policy and critics."""
        return SharedEncoderPolicy, SharedEncoderLayerNormCritic if self._settings.layer_norm else SharedEncoderCritic

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Update as `ShiftedSAC`, then copy the encoder into the policy."""
        found = super().step(batch)
        self._copy_encoder()
        return found

    def _critic_loss(self, batch: Batch, following: Tensor, between: Tensor | None) -> tuple[Tensor, ...]:
        """L_Q, the mean of both |delta|, float32[B], and the features of s_t, float32[B, F]."""
        critics: Any = self._q.network
        encoded = critics.encoded
        features = encoded(batch.observations)
        with torch.no_grad():
            later = {"bootstrap_observations": encoded(batch.bootstrap_observations)}
            if "between_observations" in batch:
                windows = batch.between_observations
                later["between_observations"] = encoded(windows.flatten(0, 1)).view(*windows.shape[:2], -1)
        found = super()._critic_loss(batch.with_columns(observations=features, **later), following, between)
        return *found, features.detach()

    def _valued(self, critics: TwinCritic, features: Tensor, actions: Tensor) -> Tensor:
        assert isinstance(critics, SharedEncoderCritic)
        return critics.valued(features, actions)

    @torch.no_grad()
    def _copy_encoder(self) -> None:
        for copy, trained in self._encoders:
            copy.copy_(trained)

    @property
    def flops(self) -> Flops:
        """FLOPs of the targets with their entropies, of both critics, and of the policy through both critics.

        The encoder computes s_t with its gradient once, and each other state once.
        """
        encoder = self._encoder_cost
        actor, critics = self._pi.cost, self._q.cost
        own, judges = actor + (-1) * encoder, critics + (-1) * encoder
        states = 1 + self._steps_between
        update = states * (encoder + own) + judges + 3 * (encoder + judges) + 3 * own + judges
        return Flops(action=actor, update=self.batch_size * update)


def _cost_of_encoder(critics: TwinCritic, spec: EnvironmentSpec, device: torch.device) -> Cost:
    """FLOPs of the encoder for one row."""
    seen = spec.policy_observations
    example = torch.zeros((2, *seen.shape), dtype=getattr(torch, seen.dtype), device=device)
    encoder = critics.features
    with torch.no_grad():
        traced = trace(encoder, critics.observe(example))
    flops = sum(
        dense_flops(each, traced[each.name].positions if each.name in traced else 1)
        for each in maskable_weights(encoder)
    )
    return Cost(flops, flops)
