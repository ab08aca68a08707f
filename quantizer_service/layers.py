"""Where the linear layers of a policy graph are, and which of them have another before or after them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx

from quantizer_service.graph import Graph

_LINEAR = ("Gemm", "MatMul", "Conv", "ConvTranspose")
# Operators through which a weight stays the same weight.
_REARRANGING = ("Transpose", "Identity", "Reshape", "Cast", "Squeeze", "Unsqueeze")
_STANDARD = ("", "ai.onnx")


@dataclass(frozen=True)
class LinearLayer:
    """y = x W + b, as one node (Gemm) or two (MatMul, Add), with W and b parameters of the graph.

    nodes: indices in the graph's nodes; the first computes the product.
    transposed: the weight is [N, K], as torch has it, instead of [K, N].
    first, last: no linear node lies between it and any input, or output.
    """

    nodes: tuple[int, ...]
    input: str
    output: str
    weight: str
    bias: str | None
    transposed: bool
    first: bool
    last: bool


def layer_name(weight: str) -> str:
    """The layer that a weight belongs to: its name without ".weight"."""
    return weight.removesuffix(".weight")


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Every tensor that a node reads, also from inside of its subgraphs."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for subgraph in (attribute.g, *attribute.graphs):
            for inner in subgraph.node:
                yield from reads(inner)
            yield from (value.name for value in subgraph.output)


def linear_layers(graph: Graph) -> list[LinearLayer]:
    """The linear layers whose weight and bias are parameters used as they are, in the graph's order.

    Others (scaled Gemm, convolutions, weights that are computed) count for what is first and last, but are not
    returned.
    """
    nodes = graph.model.graph.node
    linear = _linear_nodes(graph)
    after, before = _after(nodes, linear), _before(nodes, linear)
    uses = Counter(name for node in nodes for name in reads(node))
    uses.update(value.name for value in graph.model.graph.output)
    layers = []
    for index in sorted(linear):
        node = nodes[index]
        parts = _gemm(graph, node) if node.op_type == "Gemm" else _matmul(graph, index, uses)
        if parts is not None:
            members, weight, bias, transposed = parts
            layers.append(
                LinearLayer(
                    nodes=(index, *members),
                    input=node.input[0],
                    output=nodes[members[-1] if members else index].output[0],
                    weight=weight,
                    bias=bias,
                    transposed=transposed,
                    first=not any(name in after for name in reads(node)),
                    last=not any(name in before for name in node.output),
                )
            )
    return layers


_Parts = tuple[tuple[int, ...], str, str | None, bool]


def _linear_nodes(graph: Graph) -> set[int]:
    weights = {name for name, shape in graph.parameters.items() if len(shape) > 1}
    found = set()
    for index, node in enumerate(graph.model.graph.node):
        if node.domain not in _STANDARD:
            continue
        if node.op_type in _REARRANGING and node.input[0] in weights:
            weights.update(node.output)
        if node.op_type in _LINEAR and any(name in weights for name in node.input[:2]):
            found.add(index)
    return found


def _after(nodes: Sequence[onnx.NodeProto], linear: set[int]) -> set[str]:
    names: set[str] = set()
    for index, node in enumerate(nodes):
        if index in linear or any(name in names for name in reads(node)):
            names.update(node.output)
    return names


def _before(nodes: Sequence[onnx.NodeProto], linear: set[int]) -> set[str]:
    names: set[str] = set()
    for index in reversed(range(len(nodes))):
        if index in linear or any(name in names for name in nodes[index].output):
            names.update(reads(nodes[index]))
    return names


def _gemm(graph: Graph, node: onnx.NodeProto) -> _Parts | None:
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    plain = (attributes.get("alpha", 1.0), attributes.get("beta", 1.0), attributes.get("transA", 0)) == (1.0, 1.0, 0)
    weight, bias = node.input[1], node.input[2] if len(node.input) > 2 else ""
    transposed = bool(attributes.get("transB", 0))
    if not plain or weight not in graph.parameters:
        return None
    units = graph.parameters[weight][0 if transposed else 1]
    if bias and graph.parameters.get(bias) != (units,):
        return None
    return (), weight, bias or None, transposed


def _matmul(graph: Graph, index: int, uses: "Counter[str]") -> _Parts | None:
    nodes = graph.model.graph.node
    node = nodes[index]
    weight = node.input[1]
    if node.op_type != "MatMul" or len(graph.parameters.get(weight, ())) != 2:
        return None
    units = graph.parameters[weight][1]
    product = node.output[0]
    for position, other in enumerate(nodes):
        if other.op_type == "Add" and other.domain in _STANDARD and product in other.input and uses[product] == 1:
            bias = next(name for name in other.input if name != product)
            if graph.parameters.get(bias) == (units,):
                return (position,), weight, bias, False
    return (), weight, None, False
