"""Rounding weights such that the errors of a row even each other out on the inputs that the layer sees.

Each weight to its nearest integer makes the least error of the weights, not of what the layer gives. With w float[K] a
row in units of its scale, q its integers and H the mean of x x^T over the layer's inputs x, the latter is

    mean of (w x - q x)^2 = (w - q) H (w - q)^T

Here weights are rounded one after another, and what each rounding costs is made up for by those that are still to come:
optimal brain quantization (Frantar and Alistarh 2022, arXiv 2208.11580) in GPTQ's fixed order (Frantar et al. 2022,
arXiv 2210.17323, sections 3.2 and 3.3). GPTQ changes the weights that remain by a Cholesky factor of the inverse of H.
The same integers come without an inverse: with H = M M^T and M upper triangular,

    q_j = clip(rint(w_j + sum over k < j of (w_k - q_k) M_kj / M_jj))

since (M^-1)^T M^-1 = H^-1 is the factorization that GPTQ uses, and all its updates of one weight add up to this sum.
"""

import numpy as np
from numpy.typing import NDArray

# Share of the mean of H's diagonal that is added to it, GPTQ's value: inputs that are always 0, or copies of others,
# leave H singular, and so do fewer observations than inputs.
DAMPING = 0.01


class ErrorFeedback:
    """How the errors of weights are passed on to those after them; depends on a layer's inputs only.

    moments: float64[K, K], the mean of x x^T over inputs x of the layer.
    """

    def __init__(self, moments: NDArray[np.float64]) -> None:
        inputs = len(moments)
        damping = DAMPING * float(np.diagonal(moments).mean())
        factors = np.zeros((inputs, inputs))
        if np.isfinite(moments).all() and damping > 0:
            try:
                upper = np.linalg.cholesky((moments + damping * np.eye(inputs))[::-1, ::-1])[::-1, ::-1]
                factors = (upper / np.diagonal(upper)).T
            except np.linalg.LinAlgError:
                # Second moments of float64 that differ by 10^14 and more: rounding to nearest is what is left.
                pass
        # Row j: the factors of the errors of the weights before j.
        self._factors = np.ascontiguousarray(factors, dtype=np.float32)

    def round(
        self, weight: NDArray[np.float32], scale: NDArray[np.float32], block: int, lowest: int, highest: int
    ) -> NDArray[np.float32]:
        """Whole numbers float32[N, K] in [lowest, highest] of a weight float32[N, K] with a scale for each block.

        scale: float32[N, B] or [1, B], none of them 0. block: inputs that share one; the last block may have fewer.
        """
        units, inputs = weight.shape
        low, high = np.float32(lowest), np.float32(highest)
        # Inputs first, so that one step works on memory in a row.
        values, errors = np.empty((2, inputs, units), np.float32)
        target = np.empty(units, np.float32)
        for number, start in enumerate(range(0, inputs, block)):
            end, unit = min(start + block, inputs), scale[:, number]
            # All in units of the block's scale; the errors before it are in those of the weight.
            own = np.ascontiguousarray(weight[:, start:end].T) / unit
            passed_on = self._factors[start:end, :start] @ errors[:start] / unit
            for j in range(start, end):
                value, exact = values[j], own[j - start]
                if j == start:
                    target[:] = 0
                else:
                    np.dot(self._factors[j, start:j], errors[start:j], out=target)
                target += passed_on[j - start]
                target += exact
                np.rint(target, out=value)
                np.maximum(value, low, out=value)
                np.minimum(value, high, out=value)
                np.subtract(exact, value, out=errors[j])
            errors[start:end] *= unit
        return values.T
