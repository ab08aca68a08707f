"""Linear layers in the fastest form for the size and the device, with the gradient that belongs to it.

The matrix products of 256-unit networks are most of an update's time, and torch gives float32 ones on the CPU to MKL,
which on AMD's processors leaves AVX-512 unused. oneDNN, which torch has for convolutions and compiled models, uses it:
rows x 256 x 256 take 155 us in place of 320 us for 256 rows on one thread of an EPYC of the Zen 5 generation. Small
products are faster in MKL, because oneDNN looks each one up first.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

# Multiplications from which oneDNN's product is the faster one; measured, see above.
_LARGE = 2**20
_HAS_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """x W^T + b, and max(0, .) of that if asked for: float32[B, K], [N, K], [N] -> [B, N]; gradients do not flow."""
    if _is_large(x, weight):
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "relu" if relu else "none", [], "")
        return y
    y = functional.linear(x, weight, bias)
    return y.relu_() if relu else y


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient [N, K] of W in x W^T, given that of the product, [B, N]."""
    return product(gradient.t(), x.t())


def input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient [B, K] of x in x W^T, given that of the product, [B, N]."""
    return product(gradient, weight.t())


class Linear(nn.Linear):
    """torch's layer, of the same parameters, initial values and exported graph, but faster on the CPU when large."""

    def forward(self, input: Tensor) -> Tensor:
        """float32[B, K] -> float32[B, N]."""
        # What is traced keeps torch's own operation, for which compilers and exporters have rules.
        if torch.compiler.is_compiling() or input.ndim != 2 or not _is_large(input, self.weight):
            return functional.linear(input, self.weight, self.bias)
        if not torch.is_grad_enabled():
            return product(input, self.weight, self.bias)
        y: Tensor = _Product.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return y


def relu_mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers from sizes[0] inputs to sizes[-1] units, each followed by a ReLU."""
    layers: list[nn.Module] = []
    for inputs, units in pairwise(sizes):
        layers += [Linear(inputs, units), nn.ReLU()]
    return nn.Sequential(*layers)


def _is_large(x: Tensor, weight: Tensor) -> bool:
    return _HAS_ONEDNN and x.device.type == "cpu" and x.dtype == torch.float32 and len(x) * weight.numel() > _LARGE


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        to_x, to_weight, to_bias = ctx.needs_input_grad
        return (
            input_gradient(gradient, weight) if to_x else None,
            weight_gradient(gradient, x) if to_weight else None,
            gradient.sum(0) if to_bias else None,
        )
