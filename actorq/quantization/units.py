"""Finds the removable units of a policy graph: units of linear layers whose readers are all linear layers.

Between a layer and its readers there may be elementwise operators, also in branches: Relu, Elu, x * sigmoid(x).
A unit is then one column of every tensor between them. Its removal affects only the readers of that column.
"""

from dataclasses import dataclass

import onnx
from onnx import helper

from actorq.quantization.graph import Graph
from actorq.quantization.layers import LINEAR, Layer
from actorq.quantization.nodes import STANDARD, readers_of, reads, scalars_of

# Operators that compute each element from the elements at the same position of their inputs.
_ELEMENTWISE = (
    *("Relu", "LeakyRelu", "ThresholdedRelu", "Elu", "Celu", "Selu", "Gelu", "Swish", "Mish", "HardSwish", "Softplus"),
    *("Tanh", "Sigmoid", "HardSigmoid", "Softsign", "Clip", "Erf", "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg"),
    *("Sign", "Sin", "Cos", "Atan", "Round", "Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Sum", "Identity"),
)
_MOVING = ("Transpose", "Identity")


@dataclass(frozen=True)
class UnitGroup:
    """The layer that computes units, the layers that read them, and the nodes between, in the order of the graph."""

    layer: Layer
    readers: tuple[Layer, ...]
    nodes: tuple[int, ...]


def find_units(graph: Graph) -> tuple[UnitGroup, ...]:
    """The groups of removable units, in the order of the graph. Layers without a group keep all their units."""
    return tuple(filter(None, map(_Reading(graph).group, graph.layers)))


class _Reading:
    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.model.graph.node
        self._outputs = {value.name for value in graph.model.graph.output}
        self._readers = readers_of(graph.model.graph)
        self._scalars = {name for name, value in scalars_of(graph.model.graph).items() if value.ndim <= 1}
        self._products = {layer.nodes[0]: layer for layer in graph.layers}

    def group(self, layer: Layer) -> UnitGroup | None:
        """The units of a layer; None if they cannot be removed."""
        if not self._is_alone(layer):
            return None
        tensors, between, readers = {layer.output}, [], []
        for index, node in enumerate(self._nodes):
            if tensors.isdisjoint(reads(node)):
                continue
            reader = self._products.get(index)
            if reader is not None and reader.input in tensors:
                if not self._is_alone(reader):
                    return None
                readers.append(reader)
            elif self._is_elementwise(node, tensors):
                tensors.add(node.output[0])
                between.append(index)
            else:
                return None
        return UnitGroup(layer, tuple(readers), tuple(between)) if readers and not tensors & self._outputs else None

    def _is_alone(self, layer: Layer) -> bool:
        """Whether a layer is a plain linear layer, and nothing else uses its parameters."""
        parameters = filter(None, (layer.weight, layer.bias))
        plain = layer.kind == LINEAR and not layer.obstacle
        return plain and all(self._leads_only_to(parameter, layer) for parameter in parameters)

    def _leads_only_to(self, name: str, layer: Layer) -> bool:
        """Whether only this layer reads a parameter, once, possibly transposed first."""
        while len(self._readers[name]) == 1 and name not in self._outputs:
            index = self._readers[name][0]
            if index in layer.nodes:
                return True
            if self._nodes[index].op_type not in _MOVING:
                return False
            name = self._nodes[index].output[0]
        return False

    def _is_elementwise(self, node: onnx.NodeProto, tensors: set[str]) -> bool:
        return (
            node.op_type in _ELEMENTWISE
            and node.domain in STANDARD
            and len(node.output) == 1
            and all(name in tensors or name in self._scalars for name in filter(None, node.input))
        )


def activation(graph: Graph, group: UnitGroup) -> onnx.ModelProto:
    """An ONNX model of the nodes between the units and their readers.

    Its input is the layer's output, float32[B, units]. Its outputs are the inputs of the readers, in their order.
    """
    nodes = [graph.model.graph.node[index] for index in group.nodes]
    wanted = {name for node in nodes for name in node.input}
    constants = [tensor for tensor in graph.model.graph.initializer if tensor.name in wanted]
    made = [node for node in graph.model.graph.node if node.op_type == "Constant" and node.output[0] in wanted]
    source = helper.make_tensor_value_info(group.layer.output, onnx.TensorProto.FLOAT, [None, None])
    outputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(reader.input for reader in group.readers)]
    # With no node between them, the output would be the input itself, which ONNX forbids.
    copies = []
    for value in outputs:
        if value.name == source.name:
            value.name = f"{source.name}:itself"
            copies.append(helper.make_node("Identity", [source.name], [value.name]))
    body = helper.make_graph([*made, *nodes, *copies], "activation", [source], outputs, constants)
    return helper.make_model(body, opset_imports=graph.model.opset_import, ir_version=graph.model.ir_version)
