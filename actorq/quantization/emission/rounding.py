"""Rounds weights so that the errors in a row cancel out on the layer's inputs.

Rounding to the nearest integer minimizes the error of the weights, not of the layer's outputs. Let w float[K] be a row
in units of its scale, q its integers, and H the mean of x x^T over the layer's inputs x. The output error is

    mean of (w x - q x)^2 = (w - q) H (w - q)^T

This module rounds weights one after another. Later weights compensate for the error of earlier ones. This is optimal
brain quantization (Frantar and Alistarh 2022, arXiv 2208.11580) in GPTQ's fixed order (Frantar et al. 2022, arXiv
2210.17323, sections 3.2 and 3.3). GPTQ updates the remaining weights with a Cholesky factor of the inverse of H. The
same integers follow without an inverse: with H = M M^T and M upper triangular,

    q_j = clip(rint(w_j + sum over k < j of (w_k - q_k) M_kj / M_jj))

Reason: GPTQ uses the factorization (M^-1)^T M^-1 = H^-1, and its updates of one weight add up to this sum.
"""

import numpy as np
from numpy.typing import NDArray

from actorq.quantization.calibration import SINGLE_THREADED_PRODUCTS

# OpenBLAS multiplies a matrix of this many values with a vector on the calling thread.
_MOST_VALUES = 8192
# Share of the mean of H's diagonal that is added to the diagonal. H is singular when inputs are always 0 or copies of
# each other, or when there are fewer observations than inputs. GPTQ uses 0.01. Here observations are few and come from
# exploring actors, so they get less weight.
DAMPING = 0.1


class ErrorFeedback:
    """Compensates errors of weights in later weights. Depends only on a layer's inputs.

    moments: float64[K, K], the mean of x x^T over inputs x of the layer.
    """

    def __init__(self, moments: NDArray[np.float64]) -> None:
        inputs = len(moments)
        damping = DAMPING * float(np.diagonal(moments).mean())
        # Row j has the factors for the errors of weights up to j. In float64, because sums of errors cancel.
        self._factors = np.eye(inputs)
        if np.isfinite(moments).all() and damping > 0:
            try:
                upper = np.linalg.cholesky((moments + damping * self._factors)[::-1, ::-1])[::-1, ::-1]
            except np.linalg.LinAlgError:
                # The matrix is still singular in float64, so no errors are compensated.
                return
            self._factors = np.ascontiguousarray((upper / np.diagonal(upper)).T)

    def round(
        self, weight: NDArray[np.float32], scale: NDArray[np.float32], block: int, lowest: int, highest: int
    ) -> NDArray[np.float64]:
        """Round float32[N, K] to whole numbers [N, K] from lowest to highest, with a scale for each block.

        scale: float32[N, B] or [1, B], none of them 0.
        block: number of inputs that share a scale; the last block may have fewer.
        """
        units, inputs = weight.shape
        values = np.empty((inputs, units))
        # The number of output channels per step. It keeps matrix products on the calling thread.
        step = max(1, min(_MOST_VALUES // inputs, SINGLE_THREADED_PRODUCTS // inputs**2))
        for first in range(0, units, step):
            part = slice(first, first + step)
            scales = (scale[part] if len(scale) > 1 else scale).astype(np.float64)
            values[:, part] = self._round(weight[part].T.astype(np.float64), scales, block, lowest, highest)
        return values.T

    def _round(
        self, weight: NDArray[np.float64], scale: NDArray[np.float64], block: int, lowest: int, highest: int
    ) -> NDArray[np.float64]:
        """The same for a weight [K, N], inputs first, so that one step works on contiguous memory."""
        inputs, units = weight.shape
        values, errors = np.empty((2, inputs, units))
        found = np.empty(units)
        for number, start in enumerate(range(0, inputs, block)):
            end = min(start + block, inputs)
            part, unit = slice(start, end), scale[:, number]
            exact = weight[part] / unit
            factors = self._factors[part, part]
            # The targets of the weights, given earlier rounded weights. Errors of earlier blocks have other units.
            wanted = factors @ exact + self._factors[part, :start] @ errors[:start] / unit
            rounded = values[part]
            for j, (row, target, value) in enumerate(zip(factors, wanted, rounded, strict=True)):
                if j:
                    np.dot(row[:j], rounded[:j], out=found)
                    target -= found
                np.rint(target, out=value)
                np.maximum(value, lowest, out=value)
                np.minimum(value, highest, out=value)
            errors[part] = (exact - rounded) * unit
        return values
