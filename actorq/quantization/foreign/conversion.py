"""Converts models with old operator sets, and models that were exported for a batch of 1."""

from collections.abc import Container, Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from actorq.errors import InvalidInputError
from actorq.quantization.folding import inferred_shapes
from actorq.quantization.layers import BATCH_FIRST_STATES, RECURRENT_OPERATORS
from actorq.quantization.nodes import STANDARD, attributes_of, reached

# The IR version with all features that a policy may use. ONNX Runtime refuses versions newer than it knows.
_NEWEST_IR = 10
# Number of positions to try for the batch among a Reshape's sizes of 1.
_PLACES = 2


def convert_opset(model: onnx.ModelProto, oldest: int) -> onnx.ModelProto:
    """The model in an opset of at least `oldest`. Raises InvalidInputError when ONNX's converter cannot convert it."""
    versions = [entry.version for entry in model.opset_import if entry.domain in STANDARD]
    if len(versions) == 1 and 1 <= versions[0] < oldest:
        try:
            model = onnx.version_converter.convert_version(model, oldest)
        except Exception:  # The converter raises errors of several kinds, with texts for its developers.
            raise InvalidInputError(
                f"model: onnx cannot convert it from opset {versions[0]} to {oldest}; export the policy with "
                "opset_version=17"
            ) from None
    set_ir_version(model)
    return model


def set_ir_version(model: onnx.ModelProto) -> None:
    """Set an IR version that fits the opset and that ONNX Runtime supports, in place."""
    needed = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    model.ir_version = max(needed, min(model.ir_version, _NEWEST_IR))


def free_batch(model: onnx.ModelProto, data: Sequence[onnx.ValueInfoProto]) -> None:
    """Make the batch dynamic in a model that was exported for a batch of 1, in place. A later run checks the result.

    A Reshape to [1, ...] is changed to keep the batch. Raises InvalidInputError if first dimensions are not a batch.
    """
    graph = model.graph
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
    # The stored shapes of intermediate values are for one row.
    graph.ClearField("value_info")
    reshapes = _reshapes_of_one_row(graph, variable)
    if reshapes:
        candidates = [_with_sizes(model, reshapes, place) for place in range(_PLACES)]
        best = next((each for each in candidates if _is_batch_first(each, leading, variable)), candidates[0])
        graph.CopyFrom(best.graph)


def _reshapes_of_one_row(graph: onnx.GraphProto, variable: set[str]) -> dict[str, NDArray[np.int64]]:
    """The constant sizes [1, ...] of each Reshape of a variable tensor, by its output."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[0] in variable and node.input[1] in constants:
            sizes = numpy_helper.to_array(constants[node.input[1]])
            if sizes.ndim == 1 and len(sizes) > 1 and sizes[0] == 1 and not attributes_of(node).get("allowzero"):
                found[node.output[0]] = sizes
    return found


def _with_sizes(model: onnx.ModelProto, reshapes: Mapping[str, NDArray[np.int64]], place: int) -> onnx.ModelProto:
    """A copy in which these Reshapes keep the batch.

    place: the position of the batch among the sizes of 1. An ensemble has two such sizes: [1, batch, actions].
    """
    copy = deepcopy(model)
    for node in copy.graph.node:
        if node.op_type == "Reshape" and node.output[0] in reshapes:
            sizes = reshapes[node.output[0]].copy()
            ones = np.flatnonzero(sizes == 1)
            # 0 copies the size of the input in this dimension.
            sizes[ones[min(place, len(ones) - 1)]] = 0 if -1 in sizes else -1
            node.input[1] = f"sizes of {node.output[0]}"
            copy.graph.initializer.append(numpy_helper.from_array(sizes, node.input[1]))
    return copy


def _is_batch_first(model: onnx.ModelProto, data: Container[str], variable: set[str]) -> bool:
    """Whether all variable outputs have two rows when the data inputs have two."""
    copy = deepcopy(model)
    for value in copy.graph.input:
        if value.name in data:
            value.type.tensor_type.shape.dim[0].dim_value = 2
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    shapes = inferred_shapes(copy, data_prop=True)
    sizes = [shapes.get(value.name, ()) for value in copy.graph.output if value.name in variable]
    return all(len(each) > 0 and each[0].dim_value == 2 for each in sizes)


def _sizes(value: onnx.ValueInfoProto) -> list[int]:
    """The sizes of a tensor, 0 for a dynamic one."""
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]
