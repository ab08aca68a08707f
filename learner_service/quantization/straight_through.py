"""Quantized layers for training: float32 arithmetic with the results of ONNX Runtime's integer kernels, and a gradient.

Rounding has no useful gradient, so backward passes treat it as the identity. This is the straight-through estimator
(Bengio et al. 2013, arXiv 1308.3432, sec. 4; Jacob et al. 2018, arXiv 1712.05877, sec. 3). Gradients flow to the float
weights, which the optimizer updates. They are the gradients of the rounded layer. An input's gradient uses the rounded
weights, and a weight's gradient uses the rounded inputs. Values that a calibrated range clips get no gradient.

All rounding is half to even. Products have whole numbers in float32 as factors: activations within 255 of their zero
point, weights within 127. Sums below 2^24 are exact in any order, so the results equal ONNX Runtime's results to the
last bit. This is certain up to 518 inputs. In practice it holds for far more inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from actorq.quantization.emission import weights as integers
from actorq.quantization.training import Place, TrainingForm, Uint8
from learner_service.kernels.convolution import fractions
from learner_service.quantization.remaining_units import Remaining

Layer = nn.Linear | nn.Conv1d | nn.Conv2d
# The factors of a layer's product: inputs, weights, and the weights' scale per channel if they are whole numbers.
_Factors = tuple[Tensor, Tensor, Tensor | None]


@dataclass(frozen=True)
class Grid:
    """The grid of uint8 activations: n * `scale` for whole numbers n from `lowest` to `lowest` + `width`.

    lowest: minus the zero point, so 0.0 is always on the grid. width: 255, or 2^bits - 1 with fewer bits.
    """

    scale: float
    lowest: float
    width: float = integers.UINT8_LARGEST

    @classmethod
    def over(cls, values: Tensor, rounding: Uint8, bits: int = 8) -> "Grid":
        """The grid for the range of a tensor. With fewer bits the same range has fewer and larger steps."""
        low, high = torch.aminmax(values)
        scale, zero_point = rounding.grid(low.item(), high.item())
        width = 2.0**bits - 1
        coarser = integers.UINT8_LARGEST / width
        return cls(scale * coarser, -float(round(zero_point / coarser)), width)

    @property
    def highest(self) -> float:
        """The largest whole number n of the grid."""
        return self.lowest + self.width

    def levels(self, activations: Tensor) -> Tensor:
        """Whole numbers l with activations ~ l * scale, of the same shape."""
        return activations.div(self.scale).clamp_(self.lowest, self.highest).round_()

    def covers(self, levels: Tensor) -> Tensor:
        """bool, of the same shape: whether each level is inside the grid, so that it is not clipped."""
        return (levels >= self.lowest) & (levels <= self.highest)


@dataclass(frozen=True)
class Weights:
    """Rounded weights: `levels` * `scale`.

    levels: float32[outputs, ...]; for int8 weights whole numbers from -127 to 127.
    scale: float32[outputs, 1, ...] or [1, 1, ...].
    """

    levels: Tensor
    scale: Tensor

    @cached_property
    def values(self) -> Tensor:
        """The rounded weights, float32[outputs, ...]."""
        return self.levels * self.scale

    @cached_property
    def channels(self) -> Tensor:
        """The scales in the shape of outputs: channels are last in a linear layer, before space in a convolution."""
        return self.scale.squeeze(1)

    @classmethod
    def of(cls, weight: Tensor, per_channel: bool, least: Tensor | None = None, bits: int = 8) -> "Weights":
        """Round float32[outputs, ...]: scale = max|w| / 127 per channel or overall, 1 if that is not a normal number.

        least: float32[outputs, 1, ...], lower bounds of the channels' scales. No level needs clipping.
        bits: with fewer than 8, the largest level is 2^(bits - 1) - 1 instead of 127.
        """
        by_channel = per_channel or least is not None
        # 127 with 8 bits.
        largest = (integers.INT8_LARGEST + 1) / 2.0 ** (8 - bits) - 1
        scale = weight.abs().amax(tuple(range(by_channel, weight.ndim)), keepdim=True).div_(largest)
        if least is not None:
            scale = torch.maximum(scale, least)
            scale = scale if per_channel else scale.amax(0, keepdim=True)
        scale.masked_fill_(scale < integers.SMALLEST_SCALE, 1.0)
        return cls(weight.div(scale).round_(), scale)

    @classmethod
    def in_blocks(cls, weight: Tensor, block: int) -> "Weights":
        """Round float32[N, K] to 4 bits in blocks of `block` inputs. The levels include their block's scale.

        scale = -w / 8 for the weight w with the largest magnitude in the block. Levels go from -8 to 7, and w is at -8.
        """
        blocks = _in_blocks(weight, block)
        high, low = blocks.amax(-1, keepdim=True), blocks.amin(-1, keepdim=True)
        scale = torch.where(high > -low, high, low).div_(integers.INT4_LOWEST)
        scale.masked_fill_(scale.abs() < integers.SMALLEST_SCALE, 1.0)
        levels = blocks.div(scale).round_().clamp_(max=integers.INT4_HIGHEST)
        return cls(_out_of_blocks(levels.mul_(scale), weight), weight.new_ones(1, 1))


def int8_blocks(x: Tensor, block: int) -> Tensor:
    """Round float32[..., K] to int8 in blocks of `block` inputs per row. Returns the rounded values as float32.

    As ONNX Runtime's MatMulNBits with accuracy_level 4: round(x * (127 / max|x|)) * max|x| / 127.
    """
    blocks = _in_blocks(x, block)
    largest = blocks.abs().amax(-1, keepdim=True)
    levels = blocks.mul(torch.where(largest > 0, integers.INT8_LARGEST / largest, 0.0)).round_()
    return _out_of_blocks(levels.mul_(largest.div_(integers.INT8_LARGEST)), x)


def _in_blocks(x: Tensor, block: int) -> Tensor:
    """float32[..., K] as [..., blocks, block], with zeros at the end of the last block."""
    missing = -x.shape[-1] % block
    padded = functional.pad(x, (0, missing)) if missing else x
    return padded.reshape(*x.shape[:-1], -1, block)


def _out_of_blocks(blocks: Tensor, like: Tensor) -> Tensor:
    return blocks.flatten(-2)[..., : like.shape[-1]]


class StraightThrough:
    """Computes a layer of torch.nn with the rounding of its training form.

    form: may change between two passes.
    remaining: the units of the rounded layer.
    inputs, outputs: grids of calibrated activations. Without them, the grid of the inputs has their own range.
    """

    def __init__(self, module: Layer, form: TrainingForm) -> None:
        self.module = module
        self.form = form
        self.remaining = Remaining()
        self.inputs: Grid | None = None
        self.outputs: Grid | None = None
        self._rounded: Weights | None = None
        self._padding: tuple[list[int], str] | None = None
        # Trailing arguments of torch.convolution; empty for a linear layer.
        self._geometry: tuple[Any, ...] = ()
        if not isinstance(module, nn.Linear):
            padding = module.padding
            if module.padding_mode != "zeros" or isinstance(padding, str):
                # Padding other than a number of zeros per dimension is done before the convolution.
                padding = (0,) * len(module.stride)
                mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
                self._padding = (module._reversed_padding_repeated_twice, mode)
            none = (0,) * len(module.stride)
            self._geometry = (module.stride, padding, module.dilation, False, none, module.groups)

    def forward(self, x: Tensor) -> Tensor:
        """Replaces the module's `forward`."""
        x = fractions(x)
        x = x if self._padding is None else functional.pad(x, *self._padding)
        return self.remaining.around(self._compute, x, self.module.weight, self.module.bias)

    def calibrate(self, ranges: Mapping[Place, Tensor]) -> None:
        """Set the grids of inputs and outputs from the lowest and highest activation at the form's places."""
        self.inputs, self.outputs = (
            Grid.over(ranges[rounding.place], rounding, self.form.bits)
            if rounding is not None and rounding.place
            else None
            for rounding in (self.form.inputs, self.form.outputs)
        )

    def forget(self) -> None:
        """Forget the rounded weight, because the weight changes. It is rounded once between two backward passes."""
        self._rounded = None

    def _compute(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if torch.is_grad_enabled():
            y: Tensor = _StraightThrough.apply(x, weight, bias, self)  # type: ignore[no-untyped-call]
            return y
        return self.run(x, bias)[0]

    def run(self, x: Tensor, bias: Tensor | None) -> tuple[Tensor, _Factors, float, Tensor | None]:
        """The output y, the factors of its product, the scale of the inputs, and which outputs were not clipped."""
        form = self.form
        if form.inputs is None:
            inputs, weights = int8_blocks(x, form.block) if form.block else x, self._weights(bias, 1.0)
            return self._product(inputs, weights.values, bias), (inputs, weights.values, None), 1.0, None
        # y = product(levels(x), levels(W)) (scale(x) scale(W)) + b
        grid = self.inputs or Grid.over(x, form.inputs, form.bits)
        levels, weights = grid.levels(x), self._weights(bias, grid.scale)
        y = self._product(levels, weights.levels, None)
        factors = levels, weights.levels, weights.channels
        unit = weights.channels * grid.scale
        offset = None if bias is None else bias.view(-1, *unit.shape[1:])
        if not form.largest_bias:
            y.mul_(unit)
            return y if offset is None else y.add_(offset), factors, grid.scale, None
        if offset is not None:
            y.add_(offset.div(unit).round_())
        if self.outputs is None:
            return y.mul_(unit), factors, grid.scale, None
        y.mul_(unit.div_(self.outputs.scale)).round_()
        inside = self.outputs.covers(y)
        y.clamp_(self.outputs.lowest, self.outputs.highest).mul_(self.outputs.scale)
        return y, factors, grid.scale, inside

    def gradient(self, index: int, gradient: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """The gradient of a product's inputs (index 0) or weight (index 1), from the gradient of the product."""
        if self._geometry:
            wanted = [index == 0, index == 1, False]
            found = torch.ops.aten.convolution_backward(gradient, inputs, weight, None, *self._geometry, wanted)
            result: Tensor = found[index]
            return result
        return gradient.flatten(0, -2).t().mm(inputs.flatten(0, -2)) if index else gradient.matmul(weight)

    def _weights(self, bias: Tensor | None, scale: float) -> Weights:
        """The remaining part of the present weight, rounded. scale: of the inputs."""
        if self._rounded is None:
            weight = self.remaining.weight(self.module.weight.detach())
            least = None
            if self.form.largest_bias and bias is not None:
                # The bias is an integer times both scales. A scale that is too small would overflow the integer.
                least = bias.detach().abs().div(scale * self.form.largest_bias).view(-1, *(1,) * (weight.ndim - 1))
            form = self.form
            self._rounded = (
                Weights.in_blocks(weight, form.block)
                if form.block
                else Weights.of(weight, form.per_channel, least, form.bits)
            )
        return self._rounded

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self._geometry:
            return torch.convolution(x, weight, bias, *self._geometry)
        return functional.linear(x, weight, bias)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: StraightThrough) -> Tensor:
        y, (inputs, factor, channels), scale, inside = layer.run(x, bias)
        grid = layer.inputs
        # Without a calibrated grid, the range of x covers all its values.
        covered = None if grid is None else grid.covers(x.div(grid.scale).round_())
        ctx.save_for_backward(inputs, factor, channels, covered, inside)
        ctx.layer, ctx.scale = layer, scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients pass through the rounding, but not through clipped values."""
        inputs, factor, channels, covered, inside = ctx.saved_tensors
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        layer = ctx.layer
        gradient = gradient if inside is None else gradient * inside
        to_x = to_weight = None
        if need_x:
            to_x = layer.gradient(0, gradient if channels is None else gradient * channels, inputs, factor)
            if covered is not None:
                to_x.mul_(covered)
        if need_weight:
            layer.forget()
            to_weight = layer.gradient(1, gradient, inputs, factor)
            if channels is not None:
                to_weight.mul_(ctx.scale)
        channel = 1 if isinstance(layer.module, nn.Conv1d | nn.Conv2d) else gradient.ndim - 1
        others = [axis for axis in range(gradient.ndim) if axis != channel]
        return to_x, to_weight, gradient.sum(others) if need_bias else None, None
