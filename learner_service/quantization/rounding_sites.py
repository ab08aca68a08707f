"""Where a policy in int8-static rounds activations, and whose range each place takes: read off the exported graph.

Between two quantized layers everything stays in uint8, so that a layer rounds its output once, to the range that the
values have after a Relu if there is one, and the next layer takes them as they are. docs/schemes.md has the whole rule.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from actorq.domain.policy import PolicyGraph

# They move or choose values, so that they do to uint8 what they do to float.
_MOVING = ("Flatten", "Reshape", "MaxPool", "Transpose", "Identity", "Squeeze", "Unsqueeze")
# Of activation functions that saturate.
_BOUNDS = {"Tanh": (-1.0, 1.0), "Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0)}
_LINEAR, _CONVOLUTION = ("Gemm", "MatMul"), "Conv"


@dataclass(frozen=True)
class Fixed:
    """Whole multiples of `scale`: observations that are uint8 themselves."""

    scale: float


@dataclass(frozen=True)
class RangeOf:
    """The range of a layer's input or output; `relu`: of that output after a Relu.

    bounds: beyond which there are no values, whatever was seen.
    """

    layer: str
    output: bool = False
    relu: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)


Site = Fixed | RangeOf


@dataclass(frozen=True)
class Sites:
    """Where a quantized layer gets the ranges of its input and output; its output is float where there is none."""

    input: Site
    output: Site | None


def rounding_sites(graph: PolicyGraph, quantized: Collection[str]) -> dict[str, Sites]:
    """The sites of the quantized layers that the graph has; layers by the names of their weights without ".weight"."""
    return _Graph(graph, quantized).sites()


class _Graph:
    """A policy graph, to be asked what lies around its layers."""

    def __init__(self, graph: PolicyGraph, quantized: Collection[str]) -> None:
        body = onnx.ModelProto.FromString(graph.model).graph
        self._nodes = list(body.node)
        self._inputs = {value.name: value.type.tensor_type.elem_type for value in body.input}
        self._data_inputs = graph.inputs
        self._outputs = {value.name for value in body.output}
        self._scalars = dict(_scalars(body))
        self._makers = {name: node for node in self._nodes for name in node.output}
        self._readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self._nodes:
            for name in set(node.input):
                self._readers[name].append(node)
        self._quantized = quantized

    def sites(self) -> dict[str, Sites]:
        held: dict[str, Site] = {
            name: Fixed(1.0) for name in self._data_inputs if self._inputs[name] == onnx.TensorProto.UINT8
        }
        found = {}
        for node in self._nodes:
            layer = self._layer(node)
            if layer in self._quantized:
                site, tensors = self._output(node, layer)
                own = RangeOf(layer, bounds=self._bounds(node.input[0]))
                found[layer] = Sites(held.get(node.input[0], own), site)
                held |= {} if site is None else dict.fromkeys(tensors, site)
            elif node.input and isinstance(frames := held.get(node.input[0]), Fixed):
                scale = self._scale_of_frames(node, frames.scale)
                held |= {} if scale is None else {node.output[0]: Fixed(scale)}
        return found

    def _layer(self, node: onnx.NodeProto) -> str:
        """The layer that a node computes, empty when it is none."""
        if node.op_type not in (*_LINEAR, _CONVOLUTION) or len(node.input) < 2:
            return ""
        weight = node.input[1]
        while weight in self._makers and self._makers[weight].op_type in ("Transpose", "Identity"):
            weight = self._makers[weight].input[0]
        return weight.removesuffix(".weight") if weight in self._inputs else ""

    def _output(self, node: onnx.NodeProto, layer: str) -> tuple[Site | None, set[str]]:
        """Whose range a layer's output is rounded to, and the tensors that are in uint8 after it."""
        tensor, relu = node.output[0], False
        if node.op_type == "MatMul" and [reader.op_type for reader in self._readers[tensor]] == ["Add"]:
            tensor = self._readers[tensor][0].output[0]
        tensors = {tensor}
        # As long as only one node reads it, a Relu may still change what the layer has to give.
        while tensor not in self._outputs and len(self._readers[tensor]) == 1:
            (reader,) = self._readers[tensor]
            if reader.op_type not in (*_MOVING, "Relu"):
                break
            relu = relu or reader.op_type == "Relu"
            tensor = reader.output[0]
            tensors.add(tensor)
        site = RangeOf(layer, output=True)
        if relu:
            names = (self._layer(reader) for reader in self._readers[tensor] if reader.input[0] == tensor)
            after = next(filter(None, names), None)
            site = RangeOf(after) if after else RangeOf(layer, output=True, relu=True)
        in_float = self._follow(tensor, tensors)
        # A linear layer can give float without another rounding, a convolution cannot.
        return (None, set()) if in_float and node.op_type != _CONVOLUTION else (site, tensors)

    def _follow(self, tensor: str, tensors: set[str]) -> bool:
        """Add what is moved on from a tensor to the tensors in uint8; whether anything reads one of them in float."""
        in_float, pending = False, [tensor]
        while pending:
            tensor = pending.pop()
            in_float = in_float or tensor in self._outputs
            for reader in self._readers[tensor]:
                if reader.op_type in _MOVING:
                    tensors.add(reader.output[0])
                    pending.append(reader.output[0])
                elif self._layer(reader) not in self._quantized or reader.input[0] != tensor:
                    in_float = True
        return in_float

    def _bounds(self, tensor: str) -> tuple[float, float]:
        """Beyond which a tensor has no values, as far as the activation function that makes it tells."""
        node = self._makers.get(tensor)
        while node is not None and node.op_type in _MOVING:
            node = self._makers.get(node.input[0])
        if node is not None and node.op_type == "Elu":
            return -next((abs(value.f) for value in node.attribute if value.name == "alpha"), 1.0), math.inf
        return _BOUNDS.get(node.op_type if node is not None else "", (-math.inf, math.inf))

    def _scale_of_frames(self, node: onnx.NodeProto, scale: float) -> float | None:
        """What the integers of a uint8 input stand for after a node; None when it computes something else."""
        if node.op_type in (*_MOVING, "Cast"):
            return scale
        constant = self._scalars.get(node.input[1], 0.0) if node.op_type in ("Div", "Mul") else 0.0
        if constant <= 0.0:
            return None
        return scale / constant if node.op_type == "Div" else scale * constant


def _scalars(graph: onnx.GraphProto) -> Iterator[tuple[str, float]]:
    tensors = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant":
            tensors += [(node.output[0], value.t) for value in node.attribute if value.name == "value"]
    for name, tensor in tensors:
        array = numpy_helper.to_array(tensor)
        if array.size == 1 and array.dtype == np.float32:
            yield name, float(array.reshape(-1)[0])
