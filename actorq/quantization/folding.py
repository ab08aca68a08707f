"""Infers shapes in graphs that compute shapes, by evaluating everything that depends on constants and known sizes.

ONNX's inference has a similar step (data_prop). That step creates a shape of 2^30 sizes if ConstantOfShape requests it.
ONNX's step also lacks Where and Equal, which exporters use to expand a tensor to the batch. This module computes at
most `_MOST` numbers of each tensor.
"""

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import reduce
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, shape_inference

from actorq.quantization.nodes import STANDARD, attributes_of, constant_of, set_repeated

Array = NDArray[Any]

# Shapes have few numbers. A tensor with more is not a shape.
_MOST = 64
# Each round except the last computes at least one more tensor.
_ROUNDS = 17


# Operators that lack shape inference in some opsets. Their output has the shape of their input.
_SAME_SHAPE = ("GroupNormalization", "MeanVarianceNormalization")


def inferable(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy for shape inference, in which Identity replaces operators without one."""
    copy = deepcopy(model)
    for node in copy.graph.node:
        if node.op_type in _SAME_SHAPE and node.domain in STANDARD and node.input:
            node.op_type = "Identity"
            node.ClearField("attribute")
            del node.input[1:]
    return copy


def inferred_shapes(model: onnx.ModelProto, data_prop: bool = False) -> dict[str, Any]:
    """The dimensions of each tensor with a known rank, by ONNX's inference; empty for contradictory shapes."""
    try:
        body = shape_inference.infer_shapes(inferable(model), data_prop=data_prop).graph
    except shape_inference.InferenceError:
        return {}
    values = {value.name: value.type.tensor_type for value in (*body.input, *body.value_info, *body.output)}
    return {name: tensor.shape.dim for name, tensor in values.items() if tensor.HasField("shape")}


def fold_shapes(model: onnx.ModelProto) -> tuple[onnx.GraphProto, dict[str, tuple[int, ...]]]:
    """The graph with all inferable shapes, and the shapes by tensor. Raises InferenceError for contradictory shapes."""
    for _ in range(_ROUNDS):
        model = shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        shapes = _shapes(model.graph)
        if all(name in shapes for node in model.graph.node for name in node.output if name):
            break
        values = _values(model.graph, shapes)
        if not values:
            break
        _replace(model.graph, values)
    return model.graph, shapes


def known_shape(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    """The sizes of a tensor; None if one of them is unknown."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return tuple(dim.dim_value for dim in tensor.shape.dim)


def _shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    values = (*graph.input, *graph.value_info, *graph.output)
    found = {value.name: shape for value in values if (shape := known_shape(value)) is not None}
    return found | {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


def _values(graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The outputs of nodes that depend only on constants and known shapes."""
    small = (tensor for tensor in graph.initializer if math.prod(tensor.dims) <= _MOST)
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in small}
    computed: dict[str, Array] = {}
    for node in graph.node:
        if len(node.output) != 1:
            continue
        value = _value(node, known, shapes)
        if value is not None and value.size <= _MOST:
            known[node.output[0]] = computed[node.output[0]] = value
    return computed


def _value(node: onnx.NodeProto, known: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> Array | None:
    attributes, constant = attributes_of(node), constant_of(node)
    if node.op_type == "Shape" and node.input[0] in shapes:
        shape = np.array(shapes[node.input[0]], np.int64)
        return shape[attributes.get("start", 0) : attributes.get("end")]
    if node.op_type == "Size" and node.input[0] in shapes:
        return np.array(np.prod(shapes[node.input[0]], dtype=np.int64))
    if constant is None and (node.op_type not in _FUNCTIONS or not all(name in known for name in node.input if name)):
        return None
    try:
        if constant is not None:
            return numpy_helper.to_array(constant) if math.prod(constant.dims) <= _MOST else None
        with np.errstate(all="ignore"):
            value = _FUNCTIONS[node.op_type]([known.get(name) for name in node.input], attributes)
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError, MemoryError):
        # ONNX Runtime will report the error in the node.
        return None
    return None if value is None else np.asarray(value)


def _replace(graph: onnx.GraphProto, values: Mapping[str, Array]) -> None:
    """Replace the nodes that compute these values with constants."""
    kept = [node for node in graph.node if len(node.output) != 1 or node.output[0] not in values]
    tensors = {name: numpy_helper.from_array(array) for name, array in values.items()}
    constants = (helper.make_node("Constant", [], [name], value=tensor) for name, tensor in tensors.items())
    set_repeated(graph, "node", (*constants, *kept))


def _constant_of_shape(inputs: list[Any], attributes: dict[str, Any]) -> Array | None:
    shape = tuple(int(size) for size in inputs[0])
    if math.prod(shape) > _MOST:
        return None
    value = numpy_helper.to_array(attributes["value"]) if "value" in attributes else np.zeros(1, np.float32)
    return np.full(shape, value.reshape(-1)[0])


def _range(inputs: list[Any], attributes: dict[str, Any]) -> Array | None:
    # Differences of NumPy's integers may overflow.
    start, limit, delta = (array.item() for array in inputs)
    if (limit - start) / delta > _MOST:
        return None
    return np.arange(start, limit, delta).astype(inputs[0].dtype)


def _slice(inputs: list[Any], attributes: dict[str, Any]) -> Array:
    data, starts, ends = inputs[:3]
    axes = inputs[3] if len(inputs) > 3 and inputs[3] is not None else np.arange(len(starts))
    steps = inputs[4] if len(inputs) > 4 else np.ones_like(starts)
    cut: list[slice] = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # With a negative step, a start before the first element counts as the first element.
        cut[int(axis)] = slice(max(int(start), -data.shape[axis]), int(end), int(step))
    return np.asarray(data[tuple(cut)])


def _reshape(inputs: list[Any], attributes: dict[str, Any]) -> Array:
    data, sizes = inputs
    copied = not attributes.get("allowzero")
    # 0 copies the size of the input in this dimension.
    return np.reshape(data, [data.shape[i] if copied and size == 0 else int(size) for i, size in enumerate(sizes)])


def _axes(inputs: list[Any], attributes: dict[str, Any]) -> Any:
    axes = inputs[1] if len(inputs) > 1 and inputs[1] is not None else attributes.get("axes")
    return None if axes is None else tuple(map(int, axes))


def _divided(inputs: list[Array], attributes: dict[str, Any]) -> Array | None:
    a, b = inputs
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    if not b.all():
        return None
    # Rounded toward zero, as in C. A float cannot represent every int64.
    quotient = a // b
    return np.asarray(quotient + ((quotient < 0) & (quotient * b != a)).astype(a.dtype))


def _cast(inputs: list[Array], attributes: dict[str, Any]) -> Array | None:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(attributes["to"]))
    return inputs[0].astype(dtype) if dtype.kind in "biuf" else None


def _reduced(function: Callable[..., Any]) -> Callable[[list[Any], dict[str, Any]], Any]:
    def reduce(inputs: list[Any], attributes: dict[str, Any]) -> Any:
        axes = _axes(inputs, attributes) or None
        if axes is None and attributes.get("noop_with_empty_axes"):
            return inputs[0]
        return function(inputs[0], axis=axes, keepdims=bool(attributes.get("keepdims", 1))).astype(inputs[0].dtype)

    return reduce


def _elementwise(function: Callable[..., Any], pairwise: bool = False) -> Callable[[list[Any], dict[str, Any]], Any]:
    """A function of broadcast tensors. pairwise: of any number of tensors, combined in pairs."""

    def apply(inputs: list[Any], attributes: dict[str, Any]) -> Any:
        # Small inputs may give a large result.
        if math.prod(np.broadcast_shapes(*map(np.shape, inputs))) > _MOST:
            return None
        return reduce(function, inputs) if pairwise else function(*inputs)

    return apply


_FUNCTIONS: Mapping[str, Callable[[list[Any], dict[str, Any]], Any]] = {
    "Abs": _elementwise(np.abs),
    "Add": _elementwise(np.add),
    "And": _elementwise(np.logical_and),
    "Cast": _cast,
    "Ceil": _elementwise(np.ceil),
    "Concat": lambda inputs, attributes: np.concatenate(inputs, axis=attributes["axis"]),
    "ConstantOfShape": _constant_of_shape,
    "Div": _divided,
    "Equal": _elementwise(np.equal),
    "Floor": _elementwise(np.floor),
    "Gather": lambda inputs, attributes: np.take(inputs[0], inputs[1].astype(np.int64), axis=attributes.get("axis", 0)),
    "Greater": _elementwise(np.greater),
    "GreaterOrEqual": _elementwise(np.greater_equal),
    "Identity": lambda inputs, attributes: inputs[0],
    "Less": _elementwise(np.less),
    "LessOrEqual": _elementwise(np.less_equal),
    "Max": _elementwise(np.maximum, pairwise=True),
    "Min": _elementwise(np.minimum, pairwise=True),
    "Mod": lambda inputs, attributes: (np.fmod if attributes.get("fmod") else np.mod)(*inputs),
    "Mul": _elementwise(np.multiply),
    "Neg": _elementwise(np.negative),
    "Not": _elementwise(np.logical_not),
    "Or": _elementwise(np.logical_or),
    "Range": _range,
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
    "ReduceProd": _reduced(np.prod),
    "ReduceSum": _reduced(np.sum),
    "Reshape": _reshape,
    "Slice": _slice,
    "Sub": _elementwise(np.subtract),
    "Squeeze": lambda inputs, attributes: np.squeeze(inputs[0], _axes(inputs, attributes)),
    "Unsqueeze": lambda inputs, attributes: np.expand_dims(inputs[0], _axes(inputs, attributes)),
    "Where": _elementwise(np.where),
}
