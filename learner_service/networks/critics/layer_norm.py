"""Twin critics with layer normalization, whose values stay bounded far from the stored actions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from actorq.domain.spaces import EnvironmentSpec
from learner_service.kernels.written_gradient import WrittenGradient
from learner_service.networks.twin import TwinCritic


class LayerNormCritic(TwinCritic):
    """A `TwinCritic` with layer normalization (arXiv 1607.06450) before each ReLU, as in RLPD (arXiv 2302.02948).

    All products are dense products in float32, over both critics at once.

    scales, shifts: of each hidden layer's normalization, [2, units].
    """

    def __init__(self, spec: EnvironmentSpec, hidden_sizes: Sequence[int], **given: Any) -> None:
        super().__init__(spec, hidden_sizes, **given)
        self.scales = nn.ParameterList(torch.ones(2, units) for units in hidden_sizes)
        self.shifts = nn.ParameterList(torch.zeros(2, units) for units in hidden_sizes)

    def write_gradients(self) -> list[WrittenGradient]:
        """None: all gradients go through autograd."""
        return []

    def wide_weights(self) -> list[Tensor]:
        """None: all products are in float32."""
        return []

    def values(self, x: Tensor, judges: int | None = None) -> Tensor:
        """See `TwinCritic`."""

        def own(parameter: Tensor) -> Tensor:
            return parameter if judges is None else parameter.detach()[:judges]

        stacked = [own(parameter) for parameter in self.stacked]
        y = x.expand(len(stacked[0]), *x.shape)
        for layer, (weight, bias) in enumerate(zip(stacked[::2], stacked[1::2], strict=True)):
            y = torch.baddbmm(bias.unsqueeze(1), y, weight.transpose(1, 2))
            if layer < len(self.scales):
                y = functional.layer_norm(y, y.shape[-1:])
                scale, shift = own(self.scales[layer]), own(self.shifts[layer])
                y = torch.addcmul(shift.unsqueeze(1), y, scale.unsqueeze(1)).relu()
        return y.squeeze(2)
