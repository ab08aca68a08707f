"""A model with empty slots for its weights, filled anew for every version."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import helper

from quantizer_service.graph import Graph
from quantizer_service.layers import reads


class Skeleton:
    """A prepared model whose parameters became initializers; filling it only copies bytes.

    graph: gives the model; it is copied.
    nodes: the nodes of the emitted model, in topological order.
    tensors: dtype and shape of weights in another form than the graph's parameters.

    Parameters that `nodes` still read are slots too. It must not be used by several threads at once.
    """

    def __init__(
        self,
        graph: Graph,
        nodes: list[onnx.NodeProto],
        tensors: Mapping[str, tuple[DTypeLike, tuple[int, ...]]] | None = None,
    ) -> None:
        self._model = onnx.ModelProto()
        self._model.CopyFrom(graph.model)
        body = self._model.graph
        # Export leaves stack traces and shapes of intermediate values here: more bytes than a small policy's weights.
        for field in ("value_info", "node", "doc_string", "metadata_props", "quantization_annotation"):
            body.ClearField(field)
        for field in ("doc_string", "metadata_props"):
            self._model.ClearField(field)
        body.node.extend(nodes)
        inputs = [value for value in body.input if value.name in graph.inputs]
        body.ClearField("input")
        body.input.extend(inputs)
        for part in (*body.node, *body.input, *body.output, *body.initializer):
            part.ClearField("doc_string")
            part.ClearField("metadata_props")
        used = {name for node in body.node for name in reads(node)} | {value.name for value in body.output}
        slots: dict[str, tuple[DTypeLike, tuple[int, ...]]] = {
            name: (np.float32, shape) for name, shape in graph.parameters.items() if name in used
        }
        slots.update(tensors or {})
        self.parameters = tuple(name for name in graph.parameters if name in used)
        self._slots = {name: self._slot(name, dtype, shape) for name, (dtype, shape) in slots.items()}

    def require(self, domain: str, version: int) -> None:
        """Import an operator set, unless the model does so already."""
        if all(entry.domain != domain for entry in self._model.opset_import):
            self._model.opset_import.append(helper.make_opsetid(domain, version))

    def fill(self, values: Mapping[str, NDArray[Any]]) -> bytes:
        """The model with a value in every slot; values have the slots' dtypes and shapes."""
        for name, slot in self._slots.items():
            slot.raw_data = values[name].tobytes()
        return self._model.SerializeToString(deterministic=True)

    def _slot(self, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> onnx.TensorProto:
        slot = self._model.graph.initializer.add()
        slot.name = name
        slot.data_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        slot.dims.extend(shape)
        return slot
