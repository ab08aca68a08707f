"""Convolutions of bytes, and convolutions whose products may be in bfloat16, as in wide linear layers (linear.py).

The bytes of an image stand for numbers from 0 to 1. The first convolution reads the bytes and divides its few products
by 255 instead of the many pixels. bfloat16 represents all bytes exactly, but not all of their 255th parts.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from learner_service.kernels import bfloat16
from learner_service.kernels.bfloat16 import Bfloat16Weight


class Conv2d(nn.Conv2d):
    """nn.Conv2d without padding. Parameters, initial values and exported graph are those of nn.Conv2d.

    Its input may be bytes, uint8, instead of their 255th parts.

    image: channels, height and width of its input.
    bf16_weight: the weight for products in bfloat16; None for products in float32.
    """

    bf16_weight: Bfloat16Weight | None = None

    def __init__(self, image: tuple[int, int, int], units: int, kernel: int, stride: int) -> None:
        super().__init__(image[0], units, kernel, stride)
        self.image = image

    @property
    def output(self) -> tuple[int, int, int]:
        """Channels, height and width of its output."""
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        height, width = ((side - kernel) // stride + 1 for side in self.image[1:])
        return self.out_channels, height, width

    @property
    def multiplications(self) -> int:
        """Of an image."""
        return math.prod(self.output) * math.prod(self.weight.shape[1:])

    @property
    def fewest_images(self) -> int:
        """The smallest number of images that is faster in bfloat16."""
        return bfloat16.FEWEST_MULTIPLICATIONS // self.multiplications + 1

    def use_bfloat16(self, vector: Tensor) -> None:
        """Multiply in bfloat16 in later calls. vector: the vector that the parameters are views of."""
        self.bf16_weight = Bfloat16Weight(vector)

    def forward(self, input: Tensor) -> Tensor:
        """float32[B, channels, height, width], or the same of bytes -> float32[B, units, ...]."""
        # Keep torch's own operation while tracing, because compilers and exporters know it.
        if torch.compiler.is_compiling():
            return super().forward(input)
        is_bf16 = self.bf16_weight is not None and len(input) >= self.fewest_images
        if not is_bf16 and input.is_floating_point():
            return super().forward(input)
        factor = self.bf16_weight.of(self.weight) if is_bf16 else self.weight.detach()  # type: ignore[union-attr]
        y: Tensor = _Convolution.apply(input, self.weight, self.bias, factor, self.stride)  # type: ignore[no-untyped-call]
        return y


def fractions(images: Tensor) -> Tensor:
    """Bytes divided by 255, float32 of the same shape and memory order. Other numbers stay as they are."""
    return images if images.is_floating_point() else images.to(torch.float32).div_(255)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, factor: Tensor, stride: tuple[int, ...]) -> Tensor:
        """factor: the weight, in the format of the products."""
        scale = 1.0 if x.is_floating_point() else 1 / 255
        x = x.to(factor.dtype)
        ctx.save_for_backward(x, factor)
        ctx.stride, ctx.scale = stride, scale
        # The bias is added in float32, as in linear layers.
        return torch.add(bias.view(-1, 1, 1), functional.conv2d(x, factor, None, stride), alpha=scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, factor = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        to_x, to_weight, _ = torch.ops.aten.convolution_backward(
            gradient.to(factor.dtype),
            *(x, factor, None, ctx.stride, (0, 0), (1, 1), False, (0, 0), 1, (needs_x, needs_weight, False)),
        )
        return (
            to_x.float() if needs_x else None,
            to_weight.float().mul_(ctx.scale) if needs_weight else None,
            gradient.sum((0, 2, 3)) if needs_bias else None,
            *(None, None),
        )
