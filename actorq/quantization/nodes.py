"""Queries and changes nodes of a policy graph."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from numpy.typing import NDArray
from onnx import helper, numpy_helper

# Domain names of ONNX's own operators.
STANDARD = ("", "ai.onnx")
# Domain of ONNX Runtime's own operators.
MICROSOFT = "com.microsoft"
# Attributes of Constant besides tensors and text.
_NUMBERS = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Every tensor that a node of a graph without subgraphs reads."""
    return filter(None, node.input)


def readers_of(graph: onnx.GraphProto) -> Mapping[str, list[int]]:
    """The indices of each tensor's readers, one per read; empty for a tensor without readers."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(graph.node):
        for name in reads(node):
            found[name].append(index)
    return found


def live_nodes(nodes: Iterable[onnx.NodeProto], outputs: Iterable[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes on which these outputs depend, in order, and the names of the outputs and of all tensors read."""
    kept, wanted = [], set(outputs)
    for node in reversed(list(nodes)):
        if not wanted.isdisjoint(node.output):
            wanted.update(reads(node))
            kept.append(node)
    return kept[::-1], wanted


def reached(nodes: Iterable[onnx.NodeProto], names: Iterable[str]) -> set[str]:
    """These tensors, and all tensors that depend on them."""
    found = set(names)
    for node in nodes:
        if not found.isdisjoint(reads(node)):
            found.update(node.output)
    return found


def set_repeated(message: Message, field: str, values: Iterable[Message]) -> None:
    """Replace the messages of a repeated field. `values` may be among them."""
    kept = list(values)
    message.ClearField(field)
    getattr(message, field).extend(kept)


def rename_tensors(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Give tensors of the graph's nodes and initializers new names, in place."""
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        for field in (node.input, node.output):
            for index, name in enumerate(field):
                field[index] = names.get(name, name)


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node by name."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def constant_of(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The tensor of a Constant node; None for other nodes, and for text."""
    for each in node.attribute if node.op_type == "Constant" else ():
        if each.name == "value":
            return each.t
        if each.name in _NUMBERS:
            return numpy_helper.from_array(np.array(helper.get_attribute_value(each), _NUMBERS[each.name]))
    return None


def scalars_of(graph: onnx.GraphProto) -> dict[str, NDArray[Any]]:
    """The constants of one element, by name."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {node.output[0]: tensor for node in graph.node if (tensor := constant_of(node)) is not None}
    return {name: numpy_helper.to_array(each) for name, each in constants.items() if math.prod(each.dims) == 1}
