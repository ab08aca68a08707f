"""Rounding with a gradient: what ONNX Runtime computes in integers, computed in float32 for training.

Rounding has no useful gradient, so backward passes take it for the identity: the straight-through estimator (Bengio et
al. 2013, arXiv 1308.3432, sec. 4) as in Jacob et al. 2018, arXiv 1712.05877, sec. 3. Gradients flow to the float
weights, which the optimizer goes on updating. They are those of the rounded layer: the gradient of an input goes
through the rounded weights, that of a weight through the rounded inputs. What a calibrated range clips gets none.

Rounding is half to even everywhere. Products are formed of whole numbers, held as float32: activations within 255 of
their zero point, weights within 127. Their sums are exact below 2^24, in any order, so that a layer gives what ONNX
Runtime's integer kernels give to the last bit: for certain up to 518 inputs, in practice far beyond.
"""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

Layer = nn.Linear | nn.Conv1d | nn.Conv2d

_WEIGHT_LEVELS = 127.0
_ACTIVATION_LEVELS = 255.0
_TINY, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def _float32(value: float) -> float:
    # Results of float32 arithmetic on float32 values: float64 has more than twice their digits, so that rounding twice
    # is as good as once. A tenth of the time that numpy's scalars take.
    return ctypes.c_float(value).value


@dataclass(frozen=True)
class Grid:
    """What uint8 activations can be: whole multiples of `scale` from `lowest` to `lowest` + 255 of them.

    lowest: minus the zero point, so that 0.0 is always among them. Both are float32 values.
    """

    scale: float
    lowest: float

    @classmethod
    def over(cls, low: float, high: float) -> "Grid":
        """The grid that covers low to high, and zero.

        With low <= 0 <= high: scale = (high - low) / 255 and zero_point = round(-low / scale), in float32; scale 1 when
        both are 0. That is ONNX's DynamicQuantizeLinear, and what ONNX Runtime's DynamicQuantizeMatMul does.
        """
        first, last = _float32(min(low, 0.0)), _float32(max(high, 0.0))
        scale = _float32(_float32(last - first) / _ACTIVATION_LEVELS)
        if not _TINY <= scale < math.inf:
            return cls(1.0, 0.0)
        # round() is half to even too; it may be one too many where the scale was rounded down.
        return cls(scale, -float(min(round(_float32(-first / scale)), 255)))

    @classmethod
    def calibrated(cls, low: float, high: float) -> "Grid":
        """As `over`, but computed in float64 and rounded to float32 last, as int8-static has it."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = _float32(min((high - low) / _ACTIVATION_LEVELS, _LARGEST))
        if not scale >= _TINY:
            return cls(1.0, 0.0)
        return cls(scale, -float(min(round(-low / scale), 255)))

    @classmethod
    def of(cls, activations: Tensor) -> "Grid":
        """The grid over a tensor's own range."""
        low, high = torch.aminmax(activations)
        return cls.over(low.item(), high.item())

    @property
    def highest(self) -> float:
        """The highest level."""
        return self.lowest + _ACTIVATION_LEVELS

    def levels(self, activations: Tensor) -> Tensor:
        """Whole numbers l with activations ~ l * scale, of the same shape."""
        return activations.div(self.scale).clamp_(self.lowest, self.highest).round_()

    def covers(self, levels: Tensor) -> Tensor:
        """bool, of the same shape: which whole numbers are levels of the grid and need not be clipped."""
        return (levels >= self.lowest) & (levels <= self.highest)


@dataclass(frozen=True)
class Weights:
    """Symmetric int8 weights: `levels` * `scale`.

    levels: float32[outputs, ...], whole numbers from -127 to 127.
    scale: float32[outputs, 1, ...] or [1, 1, ...].
    """

    levels: Tensor
    scale: Tensor

    @cached_property
    def channels(self) -> Tensor:
        """The scales as outputs have them: channels come last in a linear layer, and before space in a convolution."""
        return self.scale.squeeze(1)

    @classmethod
    def of(cls, weight: Tensor, per_channel: bool, least: Tensor | None = None) -> "Weights":
        """Round float32[outputs, ...]: scale = max|w| / 127 over a channel or all, 1 where that is not a normal number.

        least: float32[outputs, 1, ...], bounds below of the channels' scales. No level is clipped, since no weight is
        beyond the largest.
        """
        if least is None:
            scale = weight.abs().amax(tuple(range(per_channel, weight.ndim)), keepdim=True).div_(_WEIGHT_LEVELS)
        else:
            scale = weight.abs().amax(tuple(range(1, weight.ndim)), keepdim=True).div_(_WEIGHT_LEVELS)
            scale = torch.maximum(scale, least)
            scale = scale if per_channel else scale.amax(0, keepdim=True)
        scale.masked_fill_(scale < _TINY, 1.0)
        return cls(weight.div(scale).round_(), scale)


def int4_weight(weight: Tensor, block: int) -> Weights:
    """Round float32[N, K] to 4 bits in blocks of `block` inputs; the levels are already times the scale of their block.

    For the weight w of largest magnitude in the block: scale = -w / 8, levels from -8 to 7, so that w is at -8.
    """
    blocks = _in_blocks(weight, block)
    high, low = blocks.amax(-1, keepdim=True), blocks.amin(-1, keepdim=True)
    scale = torch.where(high > -low, high, low).div_(-8.0)
    scale.masked_fill_(scale.abs() < _TINY, 1.0)
    levels = blocks.div(scale).round_().clamp_(max=7.0)
    return Weights(_out_of_blocks(levels.mul_(scale), weight), weight.new_ones(1, 1))


def int8_blocks(x: Tensor, block: int) -> Tensor:
    """Round float32[..., K] to int8 in blocks of `block` inputs of each row; returns the values that these stand for.

    ONNX Runtime's MatMulNBits with accuracy_level 4 does so: levels = round(x * (127 / max|x|)), times max|x| / 127.
    """
    blocks = _in_blocks(x, block)
    largest = blocks.abs().amax(-1, keepdim=True)
    levels = blocks.mul(torch.where(largest > 0, _WEIGHT_LEVELS / largest, 0.0)).round_()
    return _out_of_blocks(levels.mul_(largest.div_(_WEIGHT_LEVELS)), x)


def _in_blocks(x: Tensor, block: int) -> Tensor:
    """float32[..., K] as [..., blocks, block], the last one filled up with zeros."""
    missing = -x.shape[-1] % block
    padded = functional.pad(x, (0, missing)) if missing else x
    return padded.reshape(*x.shape[:-1], -1, block)


def _out_of_blocks(blocks: Tensor, like: Tensor) -> Tensor:
    return blocks.flatten(-2)[..., : like.shape[-1]]


class RoundedWeight:
    """What a layer's weight is rounded to, rounded once between two backward passes: nothing else changes weights."""

    def __init__(self, layer: Layer, round_weight: Callable[[Tensor], Weights]) -> None:
        self._layer = layer
        self._round = round_weight
        self._rounded: Weights | None = None

    @property
    def rounded(self) -> Weights:
        """The weight as it is now, rounded."""
        if self._rounded is None:
            self._rounded = self._round(self._layer.weight.detach())
        return self._rounded

    def forget(self) -> None:
        """The weight has changed, or is about to."""
        self._rounded = None


class Product(Protocol):
    """What a layer computes from its inputs and its weight, without the bias: linear in both."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product y."""
        ...

    def to_input(self, gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """The gradient for x, given that for y."""
        ...

    def to_weight(self, gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """The gradient for the weight, given that for y."""
        ...

    def to_bias(self, gradient: Tensor) -> Tensor:
        """The gradient for the bias, given that for y: its sum over everything but the channels."""
        ...


class LinearProduct:
    """x [..., K] and weight [N, K] give [..., N]."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product y."""
        return functional.linear(x, weight)

    def to_input(self, gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """The gradient for x."""
        return gradient.matmul(weight)

    def to_weight(self, gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """The gradient for the weight."""
        if gradient.ndim > 2:
            gradient, x = gradient.flatten(0, -2), x.flatten(0, -2)
        return gradient.t().mm(x)

    def to_bias(self, gradient: Tensor) -> Tensor:
        """The gradient for the bias."""
        return gradient.sum(tuple(range(gradient.ndim - 1)))


@dataclass(frozen=True)
class Convolution:
    """x [B, C, *space] and weight [N, C / groups, *kernel] give [B, N, *space]; tuples: of each dimension of space."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product y."""
        geometry = (self.stride, self.padding, self.dilation, False, (0,) * len(self.stride), self.groups)
        return torch.convolution(x, weight, None, *geometry)

    def to_input(self, gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """The gradient for x."""
        return self._backward(gradient, weight, x, (True, False, False))[0]

    def to_weight(self, gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """The gradient for the weight."""
        return self._backward(gradient, weight, x, (False, True, False))[1]

    def to_bias(self, gradient: Tensor) -> Tensor:
        """The gradient for the bias."""
        return gradient.sum((0, *range(2, gradient.ndim)))

    def _backward(
        self, gradient: Tensor, weight: Tensor, x: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor, ...]:
        geometry = (self.stride, self.padding, self.dilation, False, (0,) * len(self.stride), self.groups)
        result: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(gradient, x, weight, None, *geometry, wanted)
        return result


def quantized_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    source: RoundedWeight,
    grid: Grid | None,
    outputs: Grid | None,
    product: Product,
) -> Tensor:
    """y = product(levels(x), levels(W)) (scale(x) scale(W)) + b, with its gradient as one node of the autograd graph.

    x: float32, as the product takes it. weight: float32[N, ...], which the gradient goes to; bias: float32[N] or None.
    source: of `weight`.
    grid: of x. None for the one over x's own range, which is int8 of actorq.quantization.schemes. With a given one the
        bias is rounded to a multiple of scale(x) scale(W), which is int8-static.
    outputs: the grid that y is rounded to, given `grid`; None when y is float.
    """
    if torch.is_grad_enabled():
        y: Tensor = _QuantizedProduct.apply(x, weight, bias, source, grid, outputs, product)  # type: ignore[no-untyped-call]
        return y
    return _forward(x, bias, source.rounded, grid, outputs, product)[0]


def _forward(
    x: Tensor, bias: Tensor | None, weights: Weights, grid: Grid | None, outputs: Grid | None, product: Product
) -> tuple[Tensor, Grid, Tensor, Tensor | None]:
    """The output y, the grid and the levels of x, and which outputs were not clipped, None when all."""
    used = grid or Grid.of(x)
    levels = used.levels(x)
    scale = weights.channels * used.scale
    offset = None if bias is None else bias.view(-1, *scale.shape[1:])
    y = product.forward(levels, weights.levels)
    if grid is None:
        y.mul_(scale)
        return y if offset is None else y.add_(offset), used, levels, None
    if offset is not None:
        y.add_(offset.div(scale).round_())
    if outputs is None:
        return y.mul_(scale), used, levels, None
    y.mul_(scale.div_(outputs.scale)).round_()
    inside = outputs.covers(y)
    return y.clamp_(outputs.lowest, outputs.highest).mul_(outputs.scale), used, levels, inside


class _QuantizedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        source: RoundedWeight,
        grid: Grid | None,
        outputs: Grid | None,
        product: Product,
    ) -> Tensor:
        weights = source.rounded
        y, used, levels, inside = _forward(x, bias, weights, grid, outputs, product)
        # A range of x's own covers all of it.
        covered = None if grid is None else grid.covers(x.div(grid.scale).round_())
        ctx.save_for_backward(levels, covered, inside)
        ctx.source, ctx.product, ctx.weights, ctx.scale = source, product, weights, used.scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Straight through the rounding, but not through what was clipped."""
        levels, covered, inside = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        gradient = gradient if inside is None else gradient * inside
        to_x = to_weight = None
        if need_x:
            to_x = ctx.product.to_input(gradient * ctx.weights.channels, ctx.weights.levels, levels)
            if covered is not None:
                to_x.mul_(covered)
        if need_weight:
            ctx.source.forget()
            to_weight = ctx.product.to_weight(gradient, ctx.weights.levels, levels).mul_(ctx.scale)
        to_bias = ctx.product.to_bias(gradient) if need_bias else None
        return to_x, to_weight, to_bias, None, None, None, None


class RoundedActivations(torch.autograd.Function):
    """Gives `rounded` in place of x, of the same shape; the gradient goes to x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor) -> Tensor:
        """Return what x was rounded to."""
        return rounded

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Pass the gradient on."""
        return gradient, None


class RoundedParameter(torch.autograd.Function):
    """Gives what `source` rounds `weight` to, as values, float32 of its shape; the gradient goes to the weight."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, source: RoundedWeight) -> Tensor:
        """Return what the weight was rounded to."""
        ctx.source = source
        return source.rounded.levels * source.rounded.scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Pass the gradient on."""
        ctx.source.forget()
        return gradient, None
