"""A prepared model with empty slots for its weights. Every version fills the slots anew."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from actorq.quantization.graph import Graph
from actorq.quantization.nodes import MICROSOFT, live_nodes, set_repeated
from actorq.weightencoding import varint

# Tags of length-delimited fields in onnx.proto.
_GRAPH = 7 << 3 | 2
_INITIALIZER = 5 << 3 | 2
_RAW_DATA = 9 << 3 | 2


class Skeleton:
    """A prepared model. Filling it only copies bytes.

    graph: the source graph; it is copied.
    nodes: the nodes of the emitted model in topological order. Unused nodes are dropped.

    The slots are the tensors that nodes read and that no node or input produces. Thread-safe.
    """

    def __init__(self, graph: Graph, nodes: Iterable[onnx.NodeProto]) -> None:
        model = deepcopy(graph.model)
        body = model.graph
        # Exporters leave stack traces and shapes of intermediate values. They exceed the weights of a small policy.
        for field in ("value_info", "doc_string", "metadata_props", "quantization_annotation"):
            body.ClearField(field)
        for field in ("doc_string", "metadata_props"):
            model.ClearField(field)
        kept, used = live_nodes(nodes, [value.name for value in body.output])
        used -= {name for node in kept for name in node.output}
        set_repeated(body, "node", kept)
        _drop_repeated_names(body)
        set_repeated(body, "input", [value for value in body.input if value.name in graph.inputs])
        set_repeated(body, "initializer", [tensor for tensor in body.initializer if tensor.name in used])
        for part in (*body.node, *body.input, *body.output, *body.initializer):
            part.ClearField("doc_string")
            part.ClearField("metadata_props")
        domains = {node.domain for node in kept} - {entry.domain for entry in model.opset_import}
        if MICROSOFT in domains:
            model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
        parameters = [name for name in graph.parameters if name in used]
        stored = {tensor.name for tensor in body.initializer}
        self._slots = [*parameters, *sorted(used - graph.inputs.keys() - graph.parameters.keys() - stored)]
        self._graph = body.SerializeToString(deterministic=True)
        model.ClearField("graph")
        self._frame = model.SerializeToString(deterministic=True)

    def fill(self, values: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
        """The model with this metadata and a value for every slot, of any dtype and shape that its nodes accept."""
        # Encoded by hand: setting and serializing messages would copy each weight twice more.
        parts: list[bytes | memoryview] = []
        size = len(self._graph)
        for name in self._slots:
            head, data = _initializer(name, values[name])
            parts += (head, data)
            size += len(head) + data.nbytes
        entries = [onnx.StringStringEntryProto(key=key, value=value) for key, value in metadata.items()]
        properties = onnx.ModelProto(metadata_props=entries).SerializeToString()
        return b"".join((self._frame, properties, bytes([_GRAPH]), varint(size), self._graph, *parts))


def _drop_repeated_names(graph: onnx.GraphProto) -> None:
    # ONNX Runtime refuses models with two nodes of one name. A policy's node may have a weight's name.
    named: set[str] = set()
    for node in graph.node:
        if node.name in named:
            node.ClearField("name")
        named.add(node.name)


def _initializer(name: str, value: NDArray[Any]) -> tuple[bytes, memoryview]:
    """A tensor as a graph's initializer: the bytes before the values, and the values."""
    array = value if value.flags.c_contiguous else np.ascontiguousarray(value)
    data = array.reshape(-1).view(np.uint8).data
    tensor = onnx.TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    head = tensor.SerializeToString(deterministic=True) + bytes([_RAW_DATA]) + varint(data.nbytes)
    return bytes([_INITIALIZER]) + varint(len(head) + data.nbytes) + head, data
