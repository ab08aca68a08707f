"""Linear layers as single nodes with weights in another form."""

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from numpy.typing import NDArray

from actorq.quantization.graph import Graph
from actorq.quantization.layers import Layer


def replaced(graph: Graph, nodes: Mapping[Layer, onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The graph's nodes with each of these layers as one node that reads its input and writes its output."""
    replacement = {layer.nodes[0]: node for layer, node in nodes.items()}
    absorbed = {index for layer in nodes for index in layer.nodes[1:]}
    return [replacement.get(index, node) for index, node in enumerate(graph.model.graph.node) if index not in absorbed]


def held_name(layer: Layer) -> str:
    """What the tensors are called that hold the weight of a layer, the way round in which it uses it."""
    return f"{layer.weight}:{layer.channels}"


def forms_of(layers: Iterable[Layer]) -> dict[str, tuple[Layer, ...]]:
    """The layers by `held_name`: a weight that several use is there once for each way round."""
    found: dict[str, tuple[Layer, ...]] = {}
    for layer in layers:
        found[held_name(layer)] = (*found.get(held_name(layer), ()), layer)
    return found


def units_first(layer: Layer, parameters: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The weight of a layer as [N, K] or [N, C, h, w], whichever way round the graph has it."""
    return parameters[layer.weight].swapaxes(0, layer.channels)
