"""int8: int8 weights, and activations in uint8 whose range is found at each call; ends of the net in float.

A quantized layer is one DynamicQuantizeMatMul of com.microsoft. What ONNX Runtime computes, bit for bit (a test
compares): with x float32[B, K] the layer's input, W int8[K, N] and s_W float32[] or [N] as quantize_int8 in
emission.weights gives them, all in float32 but for the sum,

    low = min(0, min x), high = max(0, max x)                 over the whole tensor: every row of the batch
    s_x = (high - low) / 255, or 1 where high = low
    z_x = rint(clip(0 - low / s_x, 0, 255))
    q_x = clip(rint(x / s_x) + z_x, 0, 255)
    y   = float32(sum_k (q_x - z_x) W) * (s_x * s_W) + bias    the sum in int32, exact

with rint rounding half to even, and W and bias corrected with `Options.compensate` (emission.correction).

It is the operator DynamicQuantizeLinear of ONNX, which is the affine quantization of
Jacob et al. 2018 (arXiv 1712.05877), eq. 1 and 3 and section 3.

The first layers stay in float because raw observations have the widest ranges, and one range for all of them is
where most of the error would come from; it also keeps the rows of a batch from disturbing each other much, because
they share an activation range. The last layers stay in float because nothing after them evens their error out.
`Options.ends` quantizes both. Convolutions stay in float: ConvInteger, their dynamic form, takes twice as long.
"""

import ctypes
import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from onnx import helper

from actorq.quantization.emission.correction import Correction
from actorq.quantization.emission.linear import forms_of, held_name, replaced, units_first
from actorq.quantization.emission.selection import select, unfit_for_linear
from actorq.quantization.emission.skeleton import Skeleton
from actorq.quantization.emission.weights import SMALLEST_SCALE, UINT8_LARGEST, quantize_int8, transposed
from actorq.quantization.graph import Graph
from actorq.quantization.schemes.base import Emission, Options
from actorq.quantization.statistics import Statistics
from actorq.quantization.training import TrainingForm, Uint8

_DOMAIN = "com.microsoft"


def dynamic_grid(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point of an input whose values lie from low to high; see the module."""
    # In float64 and rounded to float32 after each operation, which is the same and takes a tenth of numpy's time.
    first, last = _float32(min(low, 0.0)), _float32(max(high, 0.0))
    scale = _float32(_float32(last - first) / UINT8_LARGEST)
    if not SMALLEST_SCALE <= scale < math.inf:
        return 1.0, 0
    # round() is half to even too. It may be one too many where the scale was rounded down.
    return scale, min(round(_float32(-first / scale)), int(UINT8_LARGEST))


def _float32(value: float) -> float:
    return ctypes.c_float(value).value


class Int8:
    """Quantizes linear layers that have a layer before and after them, or all with `Options.ends`."""

    name = "int8"

    def plan(self, graph: Graph, options: Options) -> "_Int8Plan":
        """Choose the layers and rewrite their nodes."""
        return _Int8Plan(graph, options)


class _Int8Plan:
    def __init__(self, graph: Graph, options: Options) -> None:
        self._selection = select(graph, options, unfit_for_linear, options.ends)
        self._per_tensor_error = options.per_tensor_error
        self._correction = Correction(graph, self._selection.layers, options.compensate)
        self.observed = self._correction.observed
        self._forms = forms_of(self._selection.layers)
        nodes = {}
        for layer in self._selection.layers:
            # The empty name is the weights' zero point, which is 0 when absent.
            held = held_name(layer)
            bias = self._correction.bias_name(layer)
            inputs = [layer.input, f"{held}:int8", f"{held}:scale", "", bias]
            nodes[layer] = helper.make_node(
                "DynamicQuantizeMatMul", inputs, [layer.output], name=f"{layer.name}:{layer.nodes[0]}", domain=_DOMAIN
            )
        tensors = [f"{held}:{part}" for held in self._forms for part in ("int8", "scale")]
        tensors += self._correction.bias_names
        self._skeleton = Skeleton(graph, replaced(graph, nodes), tensors, {_DOMAIN: 1} if nodes else {})

    def training(self) -> Mapping[str, TrainingForm]:
        return {layer.name: TrainingForm(inputs=Uint8(dynamic_grid)) for layer in self._selection.layers}

    def emit(
        self, parameters: Mapping[str, NDArray[Any]], statistics: Statistics, metadata: Mapping[str, str]
    ) -> Emission:
        values, forms = dict(parameters), {}
        for held, layers in self._forms.items():
            weight = units_first(layers[0], parameters)
            feedback = self._correction.feedback(layers, statistics)
            rounded = quantize_int8(weight, self._per_tensor_error, feedback=feedback)
            # The operator takes [K, N].
            values[f"{held}:int8"], values[f"{held}:scale"] = transposed(rounded.values), rounded.scale
            values |= self._correction.biases(layers, parameters, weight, rounded, statistics)
            forms[layers[0].name] = rounded.form
        return Emission(self._skeleton.fill(values, metadata), self._selection.report(forms))
