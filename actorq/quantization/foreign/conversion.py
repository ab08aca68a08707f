"""Converts models of old operator sets, and models that were exported for a batch of 1."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from actorq.errors import InvalidInputError
from actorq.quantization.layers import BATCH_FIRST_STATES, RECURRENT_OPERATORS
from actorq.quantization.nodes import STANDARD, attributes_of, reached
from actorq.text import reason_of

# The IR version of all features that a policy may have. ONNX Runtime refuses versions that are newer than itself.
_NEWEST_IR = 10


def convert_opset(model: onnx.ModelProto, oldest: int) -> onnx.ModelProto:
    """The model in an opset of at least `oldest`, and in an IR version that ONNX Runtime knows.

    Raises InvalidInputError when ONNX's converter cannot convert it.
    """
    versions = [entry.version for entry in model.opset_import if entry.domain in STANDARD]
    if len(versions) == 1 and 1 <= versions[0] < oldest:
        try:
            model = onnx.version_converter.convert_version(model, oldest)
        except Exception as error:  # The converter raises errors of several kinds.
            raise InvalidInputError(
                f"model: it cannot be converted from opset {versions[0]} to {oldest} ({reason_of(error)}); export the "
                "policy with opset_version=17"
            ) from None
    set_ir_version(model)
    return model


def set_ir_version(model: onnx.ModelProto) -> None:
    """Set the IR version to one that fits the opset and that ONNX Runtime knows, in place."""
    needed = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    model.ir_version = max(needed, min(model.ir_version, _NEWEST_IR))


def free_batch(graph: onnx.GraphProto, data: Sequence[onnx.ValueInfoProto]) -> None:
    """Free a batch of 1 that was exported without dynamic shapes, in place. A later run shows whether it is free.

    A Reshape to [1, ...] keeps the batch instead.

    data: the data inputs. Raises InvalidInputError for first dimensions that are no batch.
    """
    leading = {value.name: _sizes(value)[0] for value in data if value.type.tensor_type.shape.dim}
    if not leading or 0 in leading.values():
        return
    if set(leading.values()) != {1}:
        recurrent = any(node.op_type in RECURRENT_OPERATORS for node in graph.node)
        shapes = ", ".join(f"{value.name!r} {_sizes(value)}" for value in data)
        raise InvalidInputError(
            f"model: expected data inputs whose first dimension is the batch, got {shapes}; "
            + (BATCH_FIRST_STATES if recurrent else "export it with dynamic_shapes")
        )
    variable = reached(graph.node, leading)
    for value in (*data, *graph.output):
        if value.name in variable and value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
    # The shapes of intermediate values hold for one row.
    graph.ClearField("value_info")
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[0] in variable and node.input[1] in constants:
            if attributes_of(node).get("allowzero"):
                continue
            sizes = numpy_helper.to_array(constants[node.input[1]])
            if sizes.ndim == 1 and len(sizes) > 1 and sizes[0] == 1:
                free = np.concatenate(([0 if -1 in sizes else -1], sizes[1:])).astype(np.int64)
                name = f"sizes of {node.output[0]}"
                graph.initializer.append(numpy_helper.from_array(free, name))
                node.input[1] = name


def _sizes(value: onnx.ValueInfoProto) -> list[int]:
    """The sizes of a tensor, 0 for a free one."""
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]
