"""Linear layers that choose the fastest matrix product for the size and the device.

Matrix products take most of an update's time in 256-unit networks. On the CPU, torch computes float32 products with
MKL. On AMD processors MKL does not use AVX-512, so large products go to oneDNN, which torch uses for convolutions. This
halves the time of a 256 x 256 x 256 product on Zen 5. Small products stay with MKL, because oneDNN first searches a
kernel for each product. On Intel processors all products stay with MKL, which makes updates about a sixth shorter. Very
sparse layers skip their zeros.

Callers see activations [B, units]. Sparse products read and write them column by column. The following layers keep this
memory order, because a change of order takes half as long as a sparse product.
"""

import contextlib
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from learner_service.kernels import bfloat16
from learner_service.kernels.bfloat16 import Bfloat16Weight
from learner_service.kernels.convolution import Conv2d
from learner_service.kernels.sparse_products import ActiveWeights
from learner_service.kernels.torch_private import Product, onednn_product, plain_product
from learner_service.kernels.written_gradient import WrittenGradient, write

# Number of multiplications above which a product counts as large (measured).
_LARGE = 2**20
# With at least this ratio of units to inputs, the weight gradient is computed transposed. For 64 rows, 5 inputs and
# 2048 units this reduces the time to a sixth.
_FEW_INPUTS = 2
# A product with at least this many outputs counts as large, even with few inputs.
_MANY_OUTPUTS = 2**17
# Number of weights above which a direct write of their gradient saves time.
_LARGE_WEIGHT = 2**15
_CPUINFO = Path("/proc/cpuinfo")


@cache
def large_product(cpuinfo: Path = _CPUINFO) -> Product:
    """The faster product on this processor. Its vendor decides, not a measurement, so that runs are reproducible."""
    with contextlib.suppress(OSError):
        if "GenuineIntel" in cpuinfo.read_text(encoding="utf-8", errors="replace"):
            return plain_product
    return onednn_product()


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False, active: ActiveWeights | None = None
) -> Tensor:
    """x W^T + b, with `relu` max(0, x W^T + b): float32[B, K], [N, K], [N] -> [B, N], without gradient.

    x and W may both be bfloat16. Then b and the result are still float32.
    """
    if x.dtype == torch.bfloat16:
        y = functional.linear(x, weight).float()
        y = y if bias is None else y.add_(bias)
        return y.relu_() if relu else y
    if active is not None and active.multiplies and _is_large(x, len(weight)):
        y = active.product(weight, x.t(), bias)
    elif _in_columns(x):
        y = _dense(weight, x)
        y = y if bias is None else y.add_(bias.unsqueeze(1))
    else:
        return _dense(x, weight, bias, relu)
    return (y.relu_() if relu else y).t()


def weight_gradient(gradient: Tensor, x: Tensor, active: ActiveWeights | None = None) -> Tensor:
    """The gradient of W in x W^T, [N, K]. gradient: of the product, [B, N]. All float32, or all bfloat16."""
    if x.dtype == torch.bfloat16:
        return gradient.t() @ x
    if active is not None and not active.whole_gradient and _is_large(x, gradient.shape[1]):
        return active.gradient(gradient.t(), x.t())
    if _FEW_INPUTS * x.shape[1] <= gradient.shape[1]:
        return _dense(x.t(), gradient.t()).t()
    return _dense(gradient.t(), x.t())


def input_gradient(gradient: Tensor, weight: Tensor, active: ActiveWeights | None = None) -> Tensor:
    """The gradient of x in x W^T, float32[B, K]. gradient: of the product, [B, N], of the type of W."""
    if weight.dtype == torch.bfloat16:
        return (gradient @ weight).float()
    if active is not None and active.multiplies and _is_large(gradient, weight.shape[1]):
        return active.transposed_product(weight, gradient.t()).t()
    return _dense(weight.t(), gradient).t() if _in_columns(gradient) else _dense(gradient, weight.t())


def in_columns(x: Tensor) -> Tensor:
    """The same values float32[B, K] in column-major order, for networks with sparse products."""
    return x.t().contiguous().t()


def row_limits(*modules: nn.Module) -> list[int]:
    """Numbers of rows from which a layer uses another product, in ascending order. They include 2."""
    # A single row has no standard deviation, and losses may divide by it.
    limits = {2}
    for layer in (layer for module in modules for layer in module.modules()):
        if isinstance(layer, Conv2d):
            limits.add(layer.fewest_images)
        elif isinstance(layer, Linear):
            units, inputs = layer.weight.shape
            limits |= {_LARGE // (units * inputs) + 1, -(-_MANY_OUTPUTS // units), -(-_MANY_OUTPUTS // inputs)}
            limits.add(bfloat16.FEWEST_MULTIPLICATIONS // (units * inputs) + 1)
    return sorted(limits)


class Linear(nn.Linear):
    """nn.Linear with faster products for large layers. Parameters, initial values and exported graph are the same.

    active: the active weights of a sparse layer; None for a dense one.
    bf16_weight: the weight for products in bfloat16; None for products in float32.
    written: where the gradient of a large weight is written; None leaves it to autograd.
    keeps_fp32: products are always in float32, as in first and last layers.
    """

    active: ActiveWeights | None = None
    bf16_weight: Bfloat16Weight | None = None
    keeps_fp32: bool = False
    written: WrittenGradient | None = None

    def write_gradients(self) -> list[WrittenGradient]:
        """Write the gradient of a large weight into the present `weight.grad` in later backward passes."""
        self.written = WrittenGradient(self.weight) if self.weight.numel() >= _LARGE_WEIGHT else None
        return [] if self.written is None else [self.written]

    def wide_weights(self) -> list[Tensor]:
        """The weight if its products are faster in bfloat16: the layer must be dense, wide and hidden."""
        dense = self.active is None and not self.keeps_fp32
        return [self.weight] if dense and bfloat16.is_wide(self.weight) else []

    def use_bfloat16(self, vector: Tensor) -> None:
        """Multiply the wide weights in bfloat16 in later calls. vector: the vector that the parameters are views of."""
        self.bf16_weight = Bfloat16Weight(vector) if self.wide_weights() else None

    def forward(self, input: Tensor) -> Tensor:
        """float32[B, K] -> float32[B, N]."""
        # Keep torch's own operation while tracing, because compilers and exporters know it.
        if torch.compiler.is_compiling() or input.ndim != 2:
            return functional.linear(input, self.weight, self.bias)
        copy = None
        if self.bf16_weight is not None and bfloat16.is_large(len(input), self.weight):
            copy = self.bf16_weight.of(self.weight)
        else:
            faster = self.active is not None or large_product() is not plain_product
            if not (faster and _is_large(input, self.out_features)) and not _in_columns(input):
                return functional.linear(input, self.weight, self.bias)
        if not torch.is_grad_enabled():
            x, weight = (input, self.weight) if copy is None else (input.to(torch.bfloat16), copy)
            return product(x, weight, self.bias, active=self.active)
        arguments = input, self.weight, self.bias, copy, self.active, self.written
        y: Tensor = _Product.apply(*arguments)  # type: ignore[no-untyped-call]
        return y


def keep_fp32(layer: Linear) -> Linear:
    """Make a first or last layer keep float32 products in every precision. Returns the layer."""
    layer.keeps_fp32 = True
    return layer


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers from sizes[0] inputs to sizes[-1] units, each followed by a ReLU or another activation."""
    layers: list[nn.Module] = []
    for number, (inputs, units) in enumerate(pairwise(sizes)):
        layer = Linear(inputs, units)
        layers += [layer if number else keep_fp32(layer), activation()]
    return nn.Sequential(*layers)


def _dense(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    chosen = large_product() if _is_large(x, len(weight)) else plain_product
    return chosen(x, weight, bias, relu)


def _in_columns(x: Tensor) -> bool:
    # Every layer calls this. `len` of a tensor is ten times as slow as its shape.
    return x.stride(0) == 1 and x.shape[0] > 1 and x.stride(1) == x.shape[0]


def _is_large(x: Tensor, units: int) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and (x.numel() * units > _LARGE or x.shape[0] * units >= _MANY_OUTPUTS)
    )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        copy: Tensor | None,
        active: ActiveWeights | None,
        written: WrittenGradient | None,
    ) -> Tensor:
        ctx.rows, ctx.active, ctx.written = not _in_columns(x), active, written
        if copy is not None:
            x, weight = x.to(torch.bfloat16), copy
        elif active is not None:
            x = in_columns(x)
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias, active=active)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        if x.dtype == torch.float32 and _in_columns(x):
            gradient = in_columns(gradient)
        slopes = gradient.to(x.dtype)
        to_x = input_gradient(slopes, weight, ctx.active) if needs_x else None
        return (
            # The gradient of x has the memory order of x, because mixed orders slow the next operations several times.
            to_x.contiguous() if to_x is not None and ctx.rows else to_x,
            write(weight_gradient(slopes, x, ctx.active), ctx.written) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
            *(None, None, None),
        )
