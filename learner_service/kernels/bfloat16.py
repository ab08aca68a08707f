"""Products of wide hidden layers in bfloat16, whose weights stay float32.

bfloat16 has the range of float32 and 8 bits of precision. GPUs, and processors with AVX512-BF16 or AMX, multiply
bfloat16 faster and add the products in float32. A layer takes and returns float32. Its conversions cost less than a
large product gains.

The bias is added in float32, because torch's elementwise operations are slower in bfloat16.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from learner_service.kernels.recorded import is_recording
from learner_service.kernels.written_gradient import WrittenGradient, write

FEWEST_UNITS = 128
"""Smallest number of inputs and of units for which bfloat16 is faster."""


FEWEST_MULTIPLICATIONS = 2**23
"""Number of multiplications above which bfloat16 is faster, conversions included."""


def is_large(rows: int, weight: Tensor) -> bool:
    """Whether this many rows of inputs and a weight [..., units, inputs] are enough multiplications."""
    return rows * weight.shape[-2] * weight.shape[-1] > FEWEST_MULTIPLICATIONS


def is_wide(weight: Tensor) -> bool:
    """Whether products with a weight [..., units, inputs] are faster in bfloat16, given enough rows."""
    return min(weight.shape[-2:]) >= FEWEST_UNITS


class Bfloat16Weight:
    """The bfloat16 copy of a weight. It is renewed when the weight has changed.

    vector: the vector that the weight is a view of (parameters.py). torch counts the changes of both separately.
    """

    def __init__(self, vector: Tensor) -> None:
        self._vector = vector
        self._copy: Tensor | None = None
        self._copied: tuple[int, ...] = ()

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """Return None: a copied network, such as the exported one, computes in float32."""

    def of(self, weight: Tensor) -> Tensor:
        """The copy of this weight, bfloat16 of the same shape, without gradient."""
        if is_recording():
            # A recording does not see when the weight changes.
            return weight.detach().to(torch.bfloat16)
        state = (weight.data_ptr(), weight._version, self._vector._version)
        if self._copy is None:
            self._copy = weight.detach().to(torch.bfloat16)
        elif state != self._copied:
            self._copy.copy_(weight.detach())
        self._copied = state
        return self._copy


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b: bfloat16[B, K], bfloat16[N, K], float32[N] -> float32[B, N], without gradient."""
    y = functional.linear(x, weight).float()
    return y if bias is None else y.add_(bias)


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of W in x W^T, bfloat16[N, K]. gradient: of the product, bfloat16[B, N]; x: bfloat16[B, K]."""
    return gradient.t() @ x


def input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient of x in x W^T, float32[B, K]. gradient: of the product, bfloat16[B, N]; weight: bfloat16[N, K]."""
    return (gradient @ weight).float()


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, copy: Tensor, written: WrittenGradient | None = None
) -> Tensor:
    """x W^T + b of float32 tensors, with gradient.

    copy: the weight in bfloat16. written: where the weight's gradient is written; None leaves it to autograd.
    """
    if not torch.is_grad_enabled():
        return product(x.to(torch.bfloat16), copy, bias)
    y: Tensor = _Product.apply(x, weight, bias, copy, written)  # type: ignore[no-untyped-call]
    return y


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, copy: Tensor, written: WrittenGradient | None
    ) -> Tensor:
        ctx.written = written
        rounded = x.to(torch.bfloat16)
        ctx.save_for_backward(rounded, copy)
        return product(rounded, copy, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, copy = ctx.saved_tensors
        rounded = gradient.to(torch.bfloat16)
        needs_x, needs_weight, needs_bias, _, _ = ctx.needs_input_grad
        return (
            input_gradient(rounded, copy) if needs_x else None,
            write(weight_gradient(rounded, x), ctx.written) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
            None,
            None,
        )
