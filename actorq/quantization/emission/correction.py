"""Corrects the error of rounded weights with statistics of each layer's inputs on the calibration batch.

There are two corrections, in this order. W' denotes the weights after rounding.

- Linear layers of at most `MOST_INPUTS` inputs are rounded with error feedback (emission.rounding). For 64 x 64 weights
  this adds 0.3 to 0.5 ms to a version. In wider layers more errors cancel by chance, so weights are rounded to nearest.
- The bias of a linear layer absorbs the mean of the remaining error: b' = b + (W - W') mean(x). The mean of the layer's
  outputs over the calibration batch then equals the mean in FP32. A layer without a bias gets one. This is bias
  correction, Nagel et al. 2019 (arXiv 1906.04721), section 4.2, with means of observations instead of batch
  normalization's means.

int8 layers of more than `WIDEST_INT8` inputs are not corrected. The correction would remove little of their error, and
emission would have to wait for the FP32 run. For 4-bit weights it removes 30 to 40% at any width.

Convolutions are not corrected. In a trained Nature CNN, the correction changed errors by less than 2%. A correction
would also need the inputs of the convolutions.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from actorq.quantization.calibration import Observed, Statistic, Statistics
from actorq.quantization.emission.rounding import ErrorFeedback
from actorq.quantization.emission.weights import Int4Weight, Int8Weight
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.layers import CONVOLUTION, Layer

MOST_INPUTS = 64
WIDEST_INT8 = 256


class Correction:
    """Corrects the rounding errors of a plan's layers; corrects nothing if `on` is False.

    layers: the quantized layers. Layers whose input is neither a data input nor a node's output are not corrected.
    widest: maximum number of inputs of a corrected layer.
    """

    def __init__(self, graph: Graph, layers: Sequence[Layer], on: bool, widest: float = WIDEST_INT8) -> None:
        given = graph.inputs.keys() | {name for node in graph.model.graph.node for name in node.output}
        fit = (each for each in layers if each.kind != CONVOLUTION and each.inputs <= widest and each.input in given)
        self._layers = tuple(fit) if on else ()
        needs = [Observed(layer.input, Statistic.MEAN) for layer in self._layers]
        needs += [Observed(layer.input, Statistic.MOMENTS) for layer in self._layers if self._passes_on(layer)]
        self.observed = tuple(dict.fromkeys(needs))
        """The statistics that the correction uses."""

    def bias_name(self, layer: Layer) -> str:
        """The name of a layer's bias: a new name for a correction, its parameter's name, or empty without a bias."""
        return f"{layer.weight}:{layer.nodes[0]}:bias" if layer in self._layers else layer.bias or ""

    def feedback(self, layers: Sequence[Layer], statistics: Statistics) -> ErrorFeedback | None:
        """The error feedback for the common weight of these layers; None to round to nearest."""
        if not all(map(self._passes_on, layers)):
            return None
        moments = [statistics[Observed(layer.input, Statistic.MOMENTS)] for layer in layers]
        return ErrorFeedback(np.mean(moments, axis=0))

    def biases(
        self,
        layers: Sequence[Layer],
        parameters: Parameters,
        weight: NDArray[np.float32],
        rounded: Int8Weight | Int4Weight,
        statistics: Statistics,
    ) -> dict[str, NDArray[np.float32]]:
        """The biases of these layers, float32[N] by `bias_name`, including unchanged ones.

        weight: the common weight of the layers, output channels first.
        rounded: the weight after rounding.
        """
        found = {}
        for layer in layers:
            bias: NDArray[np.float32] | None = parameters[layer.bias] if layer.bias else None
            if layer in self._layers:
                error = rounded.mean_error(weight, statistics[Observed(layer.input, Statistic.MEAN)].astype(np.float32))
                corrected = error if bias is None else bias + error
                # For weights near float32's limit, errors may exceed its range.
                bias = np.where(np.isfinite(corrected), corrected, np.float32(0) if bias is None else bias)
            if bias is not None:
                found[self.bias_name(layer)] = bias
        return found

    def _passes_on(self, layer: Layer) -> bool:
        return layer in self._layers and layer.inputs <= MOST_INPUTS
