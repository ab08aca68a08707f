"""What is done about the rounding of a layer's weights, from statistics of its inputs on the calibration batch.

Two corrections, in this order, W' being what the integers stand for:

- Linear layers of at most `MOST_INPUTS` inputs are rounded with their errors passed on (emission.rounding). That takes
  0.3 to 0.5 ms for 64 x 64 weights and two to three times that for 128 x 128, where a version takes 1.2 ms without
  it; in wider layers more errors even each other out by chance, and they are rounded to nearest.
- The bias of a linear layer takes up the mean error that is left, b' = b + (W - W') mean(x), so that the mean of the
  layer's outputs over the calibration batch is that of FP32: bias correction, Nagel et al. 2019 (arXiv 1906.04721),
  section 4.2, with means of observations instead of batch normalization's. A layer without a bias gets one.

Of int8 weights, layers of more than `WIDEST_INT8` inputs are left alone: it would take 5 to 10% of their errors away,
which is not worth waiting for the FP32 run before they are emitted. Of 4-bit weights it takes 30 to 40% at any width.

Convolutions are left alone: with the mean of each input channel over all places the errors of a trained Nature CNN were
the same within 2%, and their inputs would have to be fetched for it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actorq.quantization.calibration import Observed, Statistic, Statistics
from actorq.quantization.emission.rounding import ErrorFeedback
from actorq.quantization.graph import Graph
from actorq.quantization.layers import CONVOLUTION, Layer

MOST_INPUTS = 64
WIDEST_INT8 = 256


class RoundedWeight(Protocol):
    """Integers and scales in the place of a weight."""

    def mean_error(self, weight: NDArray[np.float32], mean: NDArray[np.float32]) -> NDArray[np.float32]:
        """(W - W') mean, float32[N]; weight: W, float32[N, K], mean: float32[K]."""
        ...


class Correction:
    """Corrects the rounding of a plan's layers; of none where it is off.

    layers: those that are quantized. Convolutions, and those whose input neither a node nor a data input gives, are not
        corrected.
    widest: inputs beyond which a layer is left alone.
    """

    def __init__(self, graph: Graph, layers: Sequence[Layer], on: bool, widest: float = WIDEST_INT8) -> None:
        given = graph.inputs.keys() | {name for node in graph.model.graph.node for name in node.output}
        self._layers = tuple(
            layer
            for layer in layers
            if on and layer.kind != CONVOLUTION and layer.inputs <= widest and layer.input in given
        )
        needs = [_mean_of(layer) for layer in self._layers]
        needs += [_moments_of(layer) for layer in self._layers if self._passes_on(layer)]
        self.observed = tuple(dict.fromkeys(needs))
        """The statistics that it takes."""
        self.bias_names = tuple(map(_bias_name, self._layers))
        """Names of the biases that it makes."""

    def bias_name(self, layer: Layer) -> str:
        """What the bias of a layer is called: one of `bias_names`, or its parameter's name, or empty for none."""
        return _bias_name(layer) if layer in self._layers else layer.bias or ""

    def feedback(self, layers: Sequence[Layer], statistics: Statistics) -> ErrorFeedback | None:
        """How to round the weight that these layers use; None where it is to nearest."""
        if not all(map(self._passes_on, layers)):
            return None
        return ErrorFeedback(np.mean([statistics[_moments_of(layer)] for layer in layers], axis=0))

    def biases(
        self,
        layers: Sequence[Layer],
        parameters: Mapping[str, NDArray[Any]],
        weight: NDArray[np.float32],
        rounded: RoundedWeight,
        statistics: Statistics,
    ) -> dict[str, NDArray[np.float32]]:
        """The biases of these layers, float32[N] by `bias_name`; also those that are as they were.

        weight: what they all use, output channels first; rounded: what is computed with.
        """
        found = {}
        for layer in layers:
            bias: NDArray[np.float32] | None = parameters[layer.bias] if layer.bias else None
            if layer in self._layers:
                error = rounded.mean_error(weight, statistics[_mean_of(layer)].astype(np.float32))
                corrected = error if bias is None else bias + error
                # Weights near the end of float32 may have errors beyond it.
                bias = np.where(np.isfinite(corrected), corrected, np.float32(0) if bias is None else bias)
            if bias is not None:
                found[self.bias_name(layer)] = bias
        return found

    def _passes_on(self, layer: Layer) -> bool:
        return layer in self._layers and layer.inputs <= MOST_INPUTS


def _bias_name(layer: Layer) -> str:
    return f"{layer.weight}:{layer.nodes[0]}:bias"


def _mean_of(layer: Layer) -> Observed:
    return Observed(layer.input, Statistic.MEAN)


def _moments_of(layer: Layer) -> Observed:
    return Observed(layer.input, Statistic.MOMENTS)
