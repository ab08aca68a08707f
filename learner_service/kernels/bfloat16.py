"""Copies of weights for products in bfloat16 (linear.py, convolution.py). The weights stay float32.

bfloat16 has the range of float32 and 8 bits of precision. GPUs, and processors with AVX512-BF16 or AMX, multiply
bfloat16 faster and add the products in float32. The inputs and outputs of a layer are float32. With large products, the
gain is larger than the cost of the conversions.

The bias is added in float32, because torch's elementwise operations are slower in bfloat16.
"""

import torch
from torch import Tensor

from learner_service.kernels.recorded import is_recording

FEWEST_UNITS = 128
"""Smallest number of inputs and of units for which bfloat16 is faster."""
FEWEST_MULTIPLICATIONS = 2**23
"""Number of multiplications above which bfloat16 is faster, conversions included."""


def is_large(rows: int, weight: Tensor) -> bool:
    """Whether this number of rows and a weight [..., units, inputs] give enough multiplications."""
    return rows * weight.shape[-2] * weight.shape[-1] > FEWEST_MULTIPLICATIONS


def is_wide(weight: Tensor) -> bool:
    """Whether products with a weight [..., units, inputs] are faster in bfloat16, given enough rows."""
    return min(weight.shape[-2:]) >= FEWEST_UNITS


class Bfloat16Weight:
    """The bfloat16 copy of a weight. The copy is renewed after each change of the weight.

    vector: the vector that the weight is a view of (parameters.py). torch counts their changes separately.
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
            # A recording does not notice a change of the weight.
            return weight.detach().to(torch.bfloat16)
        state = (weight.data_ptr(), weight._version, self._vector._version)
        if self._copy is None:
            self._copy = weight.detach().to(torch.bfloat16)
        elif state != self._copied:
            self._copy.copy_(weight.detach())
        self._copied = state
        return self._copy
