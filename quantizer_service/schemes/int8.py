"""int8: weights int8 per output channel, activations uint8 with ranges found at run time, ends of the net in float.

The first layers stay in float because raw observations have the widest ranges, and one range for all of them is
where most of the error would come from; it also keeps the rows of a batch from disturbing each other much, because
they share an activation range. The last layers stay in float because nothing after them evens their error out.
Quantized layers become one DynamicQuantizeMatMul of com.microsoft.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import helper

from actorq.policy import FLOAT32, INT8_PER_CHANNEL, LayerReport
from quantizer_service.graph import Graph
from quantizer_service.layers import LinearLayer, layer_name, linear_layers
from quantizer_service.schemes.base import Emission, Options, Range
from quantizer_service.schemes.skeleton import Skeleton

_DOMAIN = "com.microsoft"
_LARGEST = 127.0
_STRIP = 16
_TINY = float(np.finfo(np.float32).tiny)


class Int8:
    """Quantizes linear layers that have a linear layer before and after them."""

    name = "int8"

    def plan(self, graph: Graph, options: Options) -> "_Int8Plan":
        """Choose the layers and rewrite their nodes."""
        return _Int8Plan(graph, options)


def quantize_per_channel(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Symmetric int8 weights and the scale of each output channel.

    weight: float32[K, N], finite. Returns int8[K, N] in [-127, 127] and scale float32[N] > 0 with
    weight ~ int8 * scale, where scale_j = max |weight_:j| / 127, rounded half to even.
    """
    scale = np.maximum(weight.max(axis=0), -weight.min(axis=0)) / np.float32(_LARGEST)
    # A channel of zeros, or one so small that its scale is not a normal number, would divide by zero.
    scale = np.where(scale < _TINY, np.float32(1), scale)
    scaled = weight / scale
    np.rint(scaled, out=scaled)
    np.clip(scaled, -_LARGEST, _LARGEST, out=scaled)
    return _row_major(scaled.astype(np.int8)), scale


def _row_major(array: NDArray[np.int8]) -> NDArray[np.int8]:
    """The same matrix in C order."""
    if array.flags.c_contiguous:
        return array
    result = np.empty(array.shape, np.int8)
    # In strips of a few columns the cache holds what is written: 1.3 ms instead of 19 for 2048 x 2048.
    for start in range(0, array.shape[1], _STRIP):
        result[:, start : start + _STRIP] = array[:, start : start + _STRIP]
    return result


@dataclass(frozen=True)
class _Quantized:
    """A layer and the names of its initializers in the emitted model."""

    layer: LinearLayer
    weight: str
    scale: str

    @property
    def node(self) -> onnx.NodeProto:
        # The empty name is the weights' zero point, which is 0 when absent.
        inputs = [self.layer.input, self.weight, self.scale, "", self.layer.bias or ""]
        name = f"{layer_name(self.layer.weight)}/DynamicQuantizeMatMul"
        return helper.make_node("DynamicQuantizeMatMul", inputs, [self.layer.output], name=name, domain=_DOMAIN)


class _Int8Plan:
    observed = ()

    def __init__(self, graph: Graph, options: Options) -> None:
        layers = [
            layer
            for layer in linear_layers(graph)
            if (options.ends or not (layer.first or layer.last)) and layer_name(layer.weight) not in options.keep_float
        ]
        # Numbered, because a weight may be used by several layers.
        self._quantized = [
            _Quantized(layer, f"{layer.weight}:int8:{i}", f"{layer.weight}:scale:{i}") for i, layer in enumerate(layers)
        ]
        tensors: dict[str, tuple[DTypeLike, tuple[int, ...]]] = {}
        for item in self._quantized:
            rows, columns = graph.parameters[item.layer.weight]
            inputs, units = (columns, rows) if item.layer.transposed else (rows, columns)
            tensors[item.weight] = (np.int8, (inputs, units))
            tensors[item.scale] = (np.float32, (units,))
        self._skeleton = Skeleton(graph, self._nodes(graph), tensors)
        if self._quantized:
            self._skeleton.require(_DOMAIN, 1)
        in_float = set(self._skeleton.parameters)
        self._layers = tuple(
            LayerReport(layer_name(name), FLOAT32 if name in in_float else INT8_PER_CHANNEL)
            for name, shape in graph.parameters.items()
            if len(shape) > 1
        )

    def _nodes(self, graph: Graph) -> list[onnx.NodeProto]:
        replacement = {item.layer.nodes[0]: item.node for item in self._quantized}
        absorbed = {index for item in self._quantized for index in item.layer.nodes[1:]}
        return [
            replacement.get(index, node) for index, node in enumerate(graph.model.graph.node) if index not in absorbed
        ]

    def emit(self, parameters: Mapping[str, NDArray[Any]], ranges: Mapping[str, Range]) -> Emission:
        values = dict(parameters)
        for item in self._quantized:
            weight = parameters[item.layer.weight]
            values[item.weight], values[item.scale] = quantize_per_channel(
                weight.T if item.layer.transposed else weight
            )
        return Emission(self._skeleton.fill(values), self._layers)
