"""Actions of several discrete parts: from a policy's values or logits, float32[N, sum of sizes], to one choice each."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def slices_of(sizes: Sequence[int]) -> list[slice]:
    """The columns of each part. sizes: the number of values of each."""
    stops = np.cumsum(sizes).tolist()
    return [slice(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]


def best_choices(outputs: NDArray[np.floating], sizes: Sequence[int]) -> NDArray[np.int64]:
    """The choice of the highest value of each part, int64[N, parts]."""
    return np.stack([outputs[:, part].argmax(axis=1) for part in slices_of(sizes)], axis=1)


def allowed_choices(
    allowed: NDArray[np.bool_], uniforms: NDArray[np.float64], sizes: Sequence[int]
) -> NDArray[np.int64]:
    """Uniformly random allowed choices, int64[N, parts].

    allowed: bool[N, sum of sizes], at least one of each part. uniforms: float64[N, parts] in [0, 1).
    """
    chosen = np.empty(uniforms.shape, np.int64)
    for number, part in enumerate(slices_of(sizes)):
        counts = allowed[:, part].cumsum(axis=1)
        # The k-th allowed choice is the first one with a count above k.
        limits = np.floor(uniforms[:, number] * counts[:, -1])
        chosen[:, number] = (counts > limits[:, None]).argmax(axis=1)
    return chosen
