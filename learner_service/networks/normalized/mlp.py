"""An MLP with batch normalization and unit rows (arXiv 2509.25174), and its folding into plain linear layers.

For a layer's input x, its weights W without bias, and statistics mean and variance of W x over a batch:

    y = ReLU(scale (W x - mean) / sqrt(variance + epsilon) + shift)      arXiv 1502.03167, algorithm 1

The raw input is normalized and scaled before the first layer. It has no shift, because the next layer's mean would
subtract it again. Each row of W has norm 1 after each optimizer step. This changes no output, because the normalization
cancels the norm. Without it the norm would grow, and steps of the same size would change the output less and less.

With running statistics, everything before the ReLU is linear. An actor's policy therefore has plain linear layers:

    y = ReLU(W' x + b'),   W' = f W,   b' = shift - f mean,   f = scale / sqrt(variance + epsilon)       backward
    W f (x - mean) = (W f) x - W f mean                                                                  forward
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from learner_service.kernels.linear import Linear, keep_fp32

# Both as in the published code of arXiv 2604.04539.
MOMENTUM = 0.01
EPSILON = 1e-5
_ALL = slice(None)


class NormalizedMLP(nn.Module):
    """Hidden layers with batch normalization and unit rows, and a linear head. It normalizes with its batch only.

    sizes: inputs, and units of each hidden layer. outputs: of the head, which has a bias and no normalization.
    statistics: running mean and variance of all normalized values, float32[2, sum(sizes)]. Only `fold_into` reads them.
    forward: float32[B, sizes[0]], and the rows that need outputs -> outputs float32[rows, outputs], and the statistics
        of the whole batch, float32[2, sum(sizes)], without gradient. The variance has divisor B.
    """

    statistics: Tensor

    def __init__(self, sizes: Sequence[int], outputs: int) -> None:
        super().__init__()
        self._sizes = tuple(sizes)
        self.layers = nn.ModuleList(Linear(inputs, units, bias=False) for inputs, units in pairwise(sizes))
        self.head = keep_fp32(Linear(sizes[-1], outputs))
        self.scales = nn.ParameterList(torch.ones(size) for size in sizes)
        self.shifts = nn.ParameterList(torch.zeros(size) for size in sizes[1:])
        keep_fp32(self._linear(0))
        for layer in self.layers:
            assert isinstance(layer, Linear)
            nn.init.orthogonal_(layer.weight)
        self.project()
        total = sum(sizes)
        self.register_buffer("statistics", torch.stack((torch.zeros(total), torch.ones(total))))

    def forward(self, x: Tensor, rows: slice = _ALL) -> tuple[Tensor, Tensor]:
        """Return the outputs and the statistics."""
        y, mean, factor = _normalized(x, self.scales[0], None)
        means, factors = [mean], [factor]
        for layer, scale, shift in zip(self.layers, self.scales[1:], self.shifts, strict=True):
            y, mean, factor = _normalized(layer(y.relu() if len(means) > 1 else y), scale, shift)
            means.append(mean)
            factors.append(factor)
        with torch.no_grad():
            # The operation returns 1 / sqrt(variance + epsilon).
            variances = torch.cat(factors).pow(-2).sub(EPSILON).clamp(min=0.0)
            statistics = torch.stack((torch.cat(means), variances))
        return self.head(y[rows].relu()), statistics

    @torch.no_grad()
    def follow(self, statistics: Tensor) -> None:
        """Move the running statistics toward those of a batch."""
        self.statistics.lerp_(statistics, MOMENTUM)

    @torch.no_grad()
    def project(self) -> None:
        """Divide each row of the hidden weights by its norm."""
        for number in range(len(self.layers)):
            weight = self._linear(number).weight
            weight.div_(torch.linalg.vector_norm(weight, dim=1, keepdim=True).clamp_(min=1e-12))

    def folded(self) -> list[Tensor]:
        """Weight and bias of each layer of a plain MLP whose outputs are those with running statistics. Head last.

        Gradients flow to this network's parameters.
        """
        means, variances = (part.split(self._sizes) for part in self.statistics)
        factors = [scale * torch.rsqrt(each + EPSILON) for scale, each in zip(self.scales, variances, strict=True)]
        found: list[Tensor] = []
        for number, shift in enumerate(self.shifts):
            weight, factor = self._linear(number).weight, factors[number + 1]
            mean = means[number + 1]
            if number == 0:
                weight = weight * factors[0]
                mean = mean + weight @ means[0]
            found += (factor.unsqueeze(1) * weight, shift - factor * mean)
        return [*found, self.head.weight, self.head.bias]

    @torch.no_grad()
    def fold_into(self, layers: nn.Module, head: nn.Linear) -> None:
        """Copy this network to a plain MLP of the same sizes, whose outputs are those with running statistics.

        layers: has one linear layer with a bias for each hidden layer, in order, and a ReLU after each.
        """
        for parameter, value in zip(plain_parameters(layers, head), self.folded(), strict=True):
            parameter.copy_(value)

    def _linear(self, number: int) -> Linear:
        layer = self.layers[number]
        assert isinstance(layer, Linear)
        return layer


def plain_parameters(layers: nn.Module, head: nn.Linear) -> list[Tensor]:
    """Weight and bias of each linear layer of a plain MLP, in the order of `NormalizedMLP.folded`."""
    linear = [*(layer for layer in layers.modules() if isinstance(layer, nn.Linear)), head]
    return [parameter for layer in linear for parameter in (layer.weight, layer.bias)]


def _normalized(x: Tensor, scale: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The normalized values, and their mean and 1 / sqrt(variance + epsilon) in this batch."""
    # torch's own operation is five times as fast as single ones: its variance over rows is slow on the CPU.
    found: tuple[Tensor, Tensor, Tensor] = torch.native_batch_norm(x, scale, shift, None, None, True, MOMENTUM, EPSILON)
    return found
