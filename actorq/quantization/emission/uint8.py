"""Finds the tensors that stay uint8 between quantized layers, and the inputs that are uint8 already.

A stretch is the part of the graph from a quantized layer to the next quantized layers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from actorq.quantization.calibration import Range
from actorq.quantization.graph import Graph
from actorq.quantization.layers import CONVOLUTION, Layer
from actorq.quantization.nodes import STANDARD, attributes_of, readers_of, scalars_of

# Operators that only move or select values. They work on uint8 and float alike.
MOVING = ("Flatten", "Reshape", "MaxPool", "Transpose", "Identity", "Squeeze", "Unsqueeze")
# Value ranges of activation functions. A saturating function needs no margin.
_BOUNDS: Mapping[str, Range] = {"Tanh": (-1.0, 1.0), "Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0)}


@dataclass(frozen=True)
class Site:
    """One affine map, real = scale (q - zero_point), for all tensors of a stretch.

    name: the tensor whose range determines the map.
    scale: a fixed scale with zero point 0, for uint8 inputs; None to compute it from the range.
    bounds: range of the tensor's possible values.
    """

    name: str
    scale: float | None = None
    bounds: Range = (-math.inf, math.inf)


class Uint8Tensors:
    """The uint8 tensors of a graph with these quantized layers, and the inputs of `uint8_inputs`.

    stretches: scale and zero point of each stretch, by the output of its first layer. They come from the tensor after
        the Relu if there is one. Its lowest integer then represents 0, so the layer's own clipping computes the Relu.
    tensors: the tensors of all stretches, including a Relu's input and output.
    exits: tensors of stretches that other nodes also read, as float.
    """

    def __init__(self, graph: Graph, layers: tuple[Layer, ...]) -> None:
        self._nodes = graph.model.graph.node
        self._readers = readers_of(graph.model.graph)
        self._outputs = {value.name for value in graph.model.graph.output}
        self._products = {layer.nodes[0]: layer for layer in layers}
        self._makers = {name: node for node in self._nodes for name in node.output}
        self.inputs = uint8_inputs(graph)
        self.stretches: dict[str, Site] = {}
        self.tensors, self.exits = set[str](), set[str]()
        for layer in layers:
            site, tensors, exits = self._stretch(layer)
            # A linear layer can return float instead, without a second rounding.
            if layer.kind == CONVOLUTION or not exits:
                self.stretches[layer.output] = site
                self.tensors |= tensors
                self.exits |= exits

    def bounds(self, tensor: str) -> Range:
        """The range of a tensor's possible values, given its operator."""
        node = self._makers.get(tensor)
        while node is not None and _moves(node):
            node = self._makers.get(node.input[0])
        if node is None or node.domain not in STANDARD:
            return -math.inf, math.inf
        if node.op_type == "Elu":
            return -abs(attributes_of(node).get("alpha", 1.0)), math.inf
        return _BOUNDS.get(node.op_type, (-math.inf, math.inf))

    def _stretch(self, layer: Layer) -> tuple[Site, set[str], set[str]]:
        tensor, tensors, relu = layer.output, {layer.output}, False
        # While only one node reads the tensor, a Relu may still replace the layer's output.
        while tensor not in self._outputs and len(self._readers[tensor]) == 1:
            node = self._nodes[self._readers[tensor][0]]
            if not (_moves(node) or (node.op_type == "Relu" and node.domain in STANDARD)):
                break
            relu = relu or node.op_type == "Relu"
            tensor = node.output[0]
            tensors.add(tensor)
        site = Site(tensor, bounds=(0.0, math.inf)) if relu else Site(layer.output)
        pending, exits = [tensor], set()
        while pending:
            tensor = pending.pop()
            if tensor in self._outputs:
                exits.add(tensor)
            for index in self._readers[tensor]:
                node, reader = self._nodes[index], self._products.get(index)
                if _moves(node):
                    tensors.add(node.output[0])
                    pending.append(node.output[0])
                elif reader is None or reader.input != tensor:
                    exits.add(tensor)
        return site, tensors, exits


def uint8_inputs(graph: Graph) -> dict[str, Site]:
    """The tensors of a uint8 input after conversion to float and optional constant scaling. They are exact in uint8."""
    found = {name: Site(name, 1.0) for name, spec in graph.inputs.items() if spec.dtype == np.uint8}
    constants = {name: float(v.item()) for name, v in scalars_of(graph.model.graph).items() if v.dtype == np.float32}
    for node in graph.model.graph.node:
        if node.domain not in STANDARD or not node.input or node.input[0] not in found:
            continue
        site = found[node.input[0]]
        scale = site.scale or 1.0
        if node.op_type in ("Div", "Mul"):
            constant = constants.get(node.input[1], 0.0)
            scale = (scale / constant if node.op_type == "Div" else scale * constant) if constant > 0 else 0.0
            usable = bool(np.finfo(np.float32).tiny <= scale <= np.finfo(np.float32).max)
        else:
            usable = _moves(node) or (node.op_type == "Cast" and attributes_of(node)["to"] == TensorProto.FLOAT)
        if usable:
            found[node.output[0]] = Site(site.name, scale)
    return found


def _moves(node: onnx.NodeProto) -> bool:
    return node.op_type in MOVING and node.domain in STANDARD and sum(map(bool, node.output)) == 1
