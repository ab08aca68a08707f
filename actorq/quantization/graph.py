"""Validates a learner's policy graph and the checkpoints for it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from actorq.domain.limits import MAX_BLOB_BYTES
from actorq.domain.policy import PolicyGraph
from actorq.domain.signature import Role, Signature, signature_of
from actorq.errors import InvalidInputError
from actorq.quantization.calibration import Batch
from actorq.quantization.folding import known_shape
from actorq.quantization.foreign.conversion import convert_opset
from actorq.quantization.foreign.lifting import lift_parameters
from actorq.quantization.foreign.names import make_names_unique
from actorq.quantization.layers import BATCH_FIRST_STATES, Layer, find_layers
from actorq.quantization.nodes import STANDARD, reached
from actorq.quantization.operators import check_operators
from actorq.quantization.signatures import parsed_model, signed_graph
from actorq.text import reason_of

# Below opset 13, quantized operators have other forms of weights. No code here depends on higher versions.
OLDEST_OPSET = 13
# A larger constant counts as a weight that was not exported as a parameter. Observation statistics are far smaller.
MAX_CONSTANT_BYTES = 64 * 1024
# Bound on one row of all data inputs: 16 frames of 1024 x 1024 bytes. A trial run allocates this much.
MAX_ROW_BYTES = 16 * 1024**2
_INTEGER_TYPES = frozenset(
    helper.np_dtype_to_tensor_dtype(np.dtype(f"{sign}int{bits}")) for sign in ("", "u") for bits in (8, 16, 32, 64)
)
# Quantized weights have 8 bits.
_TABLE_TYPES = (onnx.TensorProto.INT16, onnx.TensorProto.INT32, onnx.TensorProto.INT64)
_ELEMENT_TYPES = _INTEGER_TYPES | {
    helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in ("bool", "float16", "float32", "float64")
}
# Arrays by the names of a graph's parameters.
Parameters = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class InputSpec:
    """A data input: element type and shape without the batch dimension."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """A validated policy graph with only allowed operators. Footprint checks its cost, Reference its inner shapes.

    model: callers must not change it. parameters: the shapes of the float32 parameters.
    """

    source: PolicyGraph
    model: onnx.ModelProto
    inputs: dict[str, InputSpec]
    parameters: dict[str, tuple[int, ...]]

    @classmethod
    def parse(cls, source: PolicyGraph) -> "Graph":
        """Parse and validate. Raises InvalidInputError with the fault and how to export the graph correctly."""
        model = _parsed(source.model)
        check_operators(model)
        _check_constants(model)
        _check_valid(model)
        _check_opset(model)
        values = {value.name: value for value in model.graph.input}
        named, given = ([port.name for port in ports] for ports in (source.signature.inputs, source.signature.outputs))
        if list(values)[: len(named)] != named:
            raise InvalidInputError(
                f"graph: expected the data inputs {named} first among its inputs, got "
                f"{list(values)[: len(named) + 1]}; name every data input, in the graph's order"
            )
        if missing := set(given) - {value.name for value in model.graph.output}:
            raise InvalidInputError(f"graph: expected the outputs {given} of its signature, without {sorted(missing)}")
        inputs = {name: _input_spec(values[name]) for name in named}
        for group in source.signature.groups:
            if group.component >= (size := math.prod(inputs[group.input].shape)):
                raise InvalidInputError(
                    f"graph: the bit of group {group.name!r} must be one of the {size} components of the input "
                    f"{group.input!r}, got {group.component}"
                )
        parameters = {name: _parameter_shape(value) for name, value in values.items() if name not in inputs}
        _check_sizes(model, inputs, parameters)
        if not parameters:
            raise InvalidInputError(
                "graph: expected the parameters as graph inputs after the data inputs, got none; turn the exported "
                "initializers into inputs"
            )
        return cls(source, model, inputs, parameters)

    @classmethod
    def from_model(
        cls, model: bytes, discrete_actions: bool = False, action_spans: tuple[float, ...] = ()
    ) -> "tuple[Graph, dict[str, NDArray[np.float32]]]":
        """Convert a complete model of any library. Returns its graph and its parameters.

        model: ONNX with float32 weights as initializers or Constant nodes. A batch that was exported as 1 becomes
            dynamic. An old opset is converted.
        discrete_actions: whether the first output has a value for each action. A model reveals this only if the first
            output is an integer (the action's index) or is called "logits".
        action_spans: highest minus lowest action of each component of the first output; empty if unknown.

        Raises InvalidInputError with the fault and the way to export the model correctly.
        """
        parsed = _parsed(model)
        check_operators(parsed)
        _check_external(parsed)
        _check_valid(parsed)
        parsed = convert_opset(parsed, OLDEST_OPSET)
        _check_opset(parsed)
        make_names_unique(parsed.graph)
        parameters = lift_parameters(parsed)
        if not parameters:
            raise InvalidInputError("model: it has no float32 weights, so there is nothing to quantize")
        inputs = tuple(value.name for value in parsed.graph.input if value.name not in parameters)
        acting = _acting_outputs(parsed, inputs)
        if not acting:
            raise InvalidInputError(f"model: no output depends on its data inputs {list(inputs)}; is it a policy?")
        types = {value.name: value.type.tensor_type.elem_type for value in parsed.graph.output}
        discrete = discrete_actions or types[acting[0]] in _INTEGER_TYPES
        graph = cls.parse(signed_graph(parsed, signature_of(inputs, acting, discrete, action_spans)))
        graph.check_parameters(parameters)
        return graph, parameters

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that depend on data inputs, each batch first. Other outputs are constants, such as a version."""
        ports = self.signature.outputs
        reached = _acting_outputs(self.model, self.inputs)
        return tuple(port.name for port in ports if port is ports[0] or port.name in reached)

    @property
    def signature(self) -> Signature:
        """The roles of inputs and outputs."""
        return self.source.signature

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in the order of the graph."""
        return find_layers(self.model, self.parameters)

    def check_parameters(self, parameters: Parameters) -> None:
        """Raise InvalidInputError unless exactly all parameters are given, as finite float32 of the right shapes."""
        _check_names("parameters", self.parameters, parameters)
        for name, shape in self.parameters.items():
            array = parameters[name]
            if array.dtype != np.float32 or array.shape != shape:
                raise InvalidInputError(
                    f"parameter {name!r}: expected float32{list(shape)}, got {array.dtype}{list(array.shape)}"
                )
            if not np.isfinite(array).all():
                raise InvalidInputError(
                    f"parameter {name!r}: expected finite values, got "
                    f"{int(array.size - np.isfinite(array).sum())} NaN or infinite of {array.size}; has training "
                    "diverged?"
                )

    def check_calibration(self, calibration: Batch) -> None:
        """Raise InvalidInputError unless each data input has a batch of its dtype and shape, with equal rows."""
        _check_names("calibration", self.inputs, calibration)
        rows = {len(array) if array.ndim else 0 for array in calibration.values()}
        if len(rows) != 1 or not min(rows):
            raise InvalidInputError(f"calibration: expected the same number of rows, at least 1, got {sorted(rows)}")
        for name, spec in self.inputs.items():
            array = calibration[name]
            if array.dtype != spec.dtype or array.shape[1:] != spec.shape:
                raise InvalidInputError(
                    f"calibration {name!r}: expected {spec.dtype}{['B', *spec.shape]}, got "
                    f"{array.dtype}{list(array.shape)}"
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise InvalidInputError(f"calibration {name!r}: expected finite values, got NaN or infinity")


def _acting_outputs(model: onnx.ModelProto, inputs: Iterable[str]) -> tuple[str, ...]:
    # A distribution must have a value for each row, even where it is constant.
    acting = reached(model.graph.node, inputs) | {Role.LOGITS, Role.MEAN, Role.LOG_STD}
    return tuple(value.name for value in model.graph.output if value.name in acting)


def tensors_of(graph: onnx.GraphProto) -> Iterable[onnx.TensorProto]:
    """All constants of a graph: initializers and attributes of nodes, including those in subgraphs."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for subgraph in (attribute.g, *attribute.graphs):
                yield from tensors_of(subgraph)


def _parsed(model: bytes) -> onnx.ModelProto:
    parsed = parsed_model(model)
    # Protobuf returns malformed text as bytes.
    if odd := [name for name in _names(parsed.graph) if not isinstance(name, str)]:
        raise InvalidInputError(f"graph: expected an ONNX model whose names are UTF-8, got {odd[0]!r}")
    if parsed.functions:
        # This module does not search the bodies of local functions. Exporters inline them anyway.
        raise InvalidInputError(
            f"graph: it has local functions ({parsed.functions[0].name!r} is one); inline them with "
            "onnx.inliner.inline_local_functions"
        )
    return parsed


def _check_valid(model: onnx.ModelProto) -> None:
    graph = model.graph
    if not graph.output:
        raise InvalidInputError("graph: expected an output with the actions, got no outputs")
    given = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    # torch's exporter gives a parameter and an output the same name if the module does.
    if twice := [name for node in graph.node for name in node.output if name in given]:
        raise InvalidInputError(
            f"graph: {twice[0]!r} is the name of a parameter or input, and of a node's output; rename the parameter of "
            "the module, or choose another of output_names"
        )
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # A damaged model raises more than ValidationError.
        raise InvalidInputError(f"graph: expected a valid ONNX model, but {reason_of(error)}") from None


def _names(graph: onnx.GraphProto) -> Iterable[object]:
    """Every name that this package reads later. Subgraphs are not allowed, so their names are missing."""
    yield from (value.name for value in (*graph.input, *graph.output))
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from (*node.input, *node.output, node.op_type, node.domain, node.name)
        for attribute in node.attribute:
            yield attribute.name


def _check_external(model: onnx.ModelProto) -> None:
    for tensor in tensors_of(model.graph):
        # External data would be read from this machine's files, which the sender could choose.
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise InvalidInputError(
                f"graph: constant {tensor.name!r} lies in another file; export the model without external data"
            )


def _check_constants(model: onnx.ModelProto) -> None:
    _check_external(model)
    inputs = {value.name for value in model.graph.input}
    for tensor in tensors_of(model.graph):
        if tensor.name in inputs:
            raise InvalidInputError(
                f"graph: {tensor.name!r} is both an input and an initializer; parameters must be inputs only"
            )
        if (size := tensor.ByteSize()) > MAX_CONSTANT_BYTES:
            advice = "weights must be graph inputs after the data inputs"
            if tensor.data_type in _TABLE_TYPES:
                advice = "a larger table of integers must be float32, with a Cast where it is read"
            elif tensor.data_type != onnx.TensorProto.FLOAT:
                advice = "only float32 weights may be larger: export the policy in float32, before any quantization"
            raise InvalidInputError(
                f"graph: constants must have at most {MAX_CONSTANT_BYTES} bytes, {tensor.name!r} of "
                f"{_type_name(tensor.data_type)} has {size}; {advice}"
            )


def _check_opset(model: onnx.ModelProto) -> None:
    versions = [entry.version for entry in model.opset_import if entry.domain in STANDARD]
    newest = onnx.defs.onnx_opset_version()
    if len(versions) != 1 or not OLDEST_OPSET <= versions[0] <= newest:
        raise InvalidInputError(
            f"graph: expected one ONNX opset from {OLDEST_OPSET} to {newest}, got {versions}; export the policy with "
            "opset_version=17, or convert the model with onnx.version_converter.convert_version(model, 17)"
        )


def _check_sizes(
    model: onnx.ModelProto, inputs: Mapping[str, InputSpec], parameters: Mapping[str, tuple[int, ...]]
) -> None:
    row = sum(spec.dtype.itemsize * math.prod(spec.shape) for spec in inputs.values())
    if row > MAX_ROW_BYTES:
        raise InvalidInputError(f"graph: observations must have at most {MAX_ROW_BYTES} bytes, got {row}")
    # The size of its FP32 policy.
    size = model.ByteSize() + 4 * sum(math.prod(shape) for shape in parameters.values())
    if size > MAX_BLOB_BYTES:
        raise InvalidInputError(f"graph: it must have at most {MAX_BLOB_BYTES} bytes with its parameters, got {size}")


def _input_spec(value: onnx.ValueInfoProto) -> InputSpec:
    tensor = value.type.tensor_type
    free = [not dim.HasField("dim_value") for dim in tensor.shape.dim]
    if free[:2] == [False, True]:
        raise InvalidInputError(
            f"graph: data input {value.name!r} must have the batch as its first dimension, got it as the second; "
            f"{BATCH_FIRST_STATES}"
        )
    if not free or not free[0]:
        raise InvalidInputError(
            f"graph: data input {value.name!r} must have a shape whose first dimension, the batch, is free; export it "
            "with dynamic_shapes"
        )
    if not all(dim.dim_value > 0 for dim in tensor.shape.dim[1:]):
        sizes = [dim.dim_value or dim.dim_param or "?" for dim in tensor.shape.dim[1:]]
        raise InvalidInputError(
            f"graph: data input {value.name!r} must have fixed sizes after its batch dimension, got {sizes}; export it "
            "with the batch as its only dynamic dimension"
        )
    if tensor.elem_type not in _ELEMENT_TYPES:
        raise InvalidInputError(
            f"graph: data input {value.name!r} must be of booleans, integers, or floats of 16, 32 or 64 bits, got "
            f"element type {_type_name(tensor.elem_type)}"
        )
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return InputSpec(dtype, tuple(dim.dim_value for dim in tensor.shape.dim[1:]))


def _parameter_shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    tensor = value.type.tensor_type
    shape = known_shape(value)
    if tensor.elem_type != onnx.TensorProto.FLOAT or shape is None:
        raise InvalidInputError(
            f"graph: parameter {value.name!r} must be float32 of a fixed shape, got element type "
            f"{_type_name(tensor.elem_type)}{' without a fixed shape' if shape is None else ''}; is it a "
            "data input that was not named?"
        )
    if min(shape, default=1) < 1:
        raise InvalidInputError(f"graph: parameter {value.name!r} must have at least one value, got {list(shape)}")
    return shape


def _type_name(element_type: int) -> str:
    known = element_type in onnx.TensorProto.DataType.values()
    return onnx.TensorProto.DataType.Name(element_type) if known else str(element_type)


def _check_names(what: str, expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    missing, extra = sorted(expected.keys() - got.keys()), sorted(got.keys() - expected.keys())
    if missing or extra:
        raise InvalidInputError(
            f"{what}: expected one tensor for each of {len(expected)} names, missing {missing}, unexpected {extra}"
        )
