"""Turns complete ONNX models into graphs with weights as inputs. The models may come from any library.

The result has the form of a learner's publication: data inputs first, then every parameter by name.
"""

import math
from collections import Counter

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from actorq.errors import InvalidInputError
from actorq.quantization.layers import RECURRENT_OPERATORS
from actorq.quantization.nodes import live_nodes, set_repeated
from actorq.text import reason_of

_OTHER_FLOATS = (TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Operators through which the exporter of torch leads the weights of recurrent layers.
_REARRANGING = ("Slice", "Concat", "Unsqueeze", "Squeeze", "Transpose", "Reshape", "Identity", "Cast")
_WITH_WEIGHTS = ("Gemm", "MatMul", "Conv", "ConvTranspose", "LayerNormalization", "BatchNormalization")
# Their float constants are settings, not weights. Operators need them before they run.
_CONSTANT_ARGUMENTS = ("Resize", "Upsample", "Clip", "Pad", "Range", "ConstantOfShape")


def lift_parameters(model: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    """Turn every trainable float32 constant into a graph input, in place, and return their values.

    These are initializers and Constant nodes of the main graph with more than one element. Constants of one element
    count if layers or normalizations read them, such as the bias of a single output. A batch dimension that was
    exported as 1 becomes free. Raises InvalidInputError for weights of another precision and for damaged constants.
    """
    graph = model.graph
    _constants_to_initializers(graph)
    _fold_recurrent_weights(model)
    fixed = {
        name for node in graph.node if node.op_type in _CONSTANT_ARGUMENTS for name in list(node.input)[1:] if name
    }
    layers = {name for node in graph.node if node.op_type in _WITH_WEIGHTS for name in list(node.input)[1:] if name}
    parameters, constants = {}, []
    for tensor in graph.initializer:
        several = math.prod(tensor.dims) > 1 or (tensor.name in layers and len(tensor.dims) > 0)
        if several and tensor.data_type in _OTHER_FLOATS:
            raise InvalidInputError(
                f"model: constant {tensor.name!r} is {TensorProto.DataType.Name(tensor.data_type)}; schemes start "
                "from float32: call policy.float() before torch.onnx.export, or convert the model to float32"
            )
        if several and tensor.data_type == TensorProto.FLOAT and tensor.name not in fixed:
            parameters[tensor.name] = _values(tensor)
        else:
            constants.append(tensor)
    # Up to IR version 3, initializers are also listed as inputs.
    initialized = {tensor.name for tensor in graph.initializer}
    data = [value for value in graph.input if value.name not in initialized]
    _free_batch(graph, data)
    data += [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in parameters.items()]
    set_repeated(graph, "initializer", constants)
    set_repeated(graph, "input", data)
    return parameters


def _constants_to_initializers(graph: onnx.GraphProto) -> None:
    kept = []
    for node in graph.node:
        values = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        if node.op_type == "Constant" and values:
            graph.initializer.add().CopyFrom(values[0])
            graph.initializer[-1].name = node.output[0]
        else:
            kept.append(node)
    set_repeated(graph, "node", kept)


def _fold_recurrent_weights(model: onnx.ModelProto) -> None:
    """Compute weights of LSTM, GRU and RNN that nodes make of constants, and take these nodes out.

    torch's exporter reorders the gates of these weights so. A computed weight takes the name of its parameter, unless
    several computed weights are parts of that parameter.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    rearranging: list[onnx.NodeProto] = []
    made: set[str] = set()
    for node in graph.node:
        if node.op_type in _REARRANGING and all(not name or name in constants or name in made for name in node.input):
            rearranging.append(node)
            made.update(node.output)
    weights = [name for node in graph.node if node.op_type in RECURRENT_OPERATORS for name in node.input[1:3]]
    names: dict[str, str] = {}
    for weight in dict.fromkeys(name for name in weights if name in made):
        nodes, read = live_nodes(rearranging, [weight])
        read &= constants.keys()
        floats = [name for name in read if constants[name].data_type == TensorProto.FLOAT]
        names[weight] = floats[0] if len(floats) == 1 else weight
        value = _computed(model, nodes, weight, [constants[name] for name in read])
        graph.initializer.append(numpy_helper.from_array(value, weight))
    if names:
        # The nodes that make these weights, and all nodes and constants that nothing else reads, are taken out.
        others = [node for node in graph.node if names.keys().isdisjoint(node.output)]
        kept, live = live_nodes(others, [value.name for value in graph.output])
        set_repeated(graph, "node", kept)
        set_repeated(graph, "initializer", [tensor for tensor in graph.initializer if tensor.name in live])
        remaining = {tensor.name for tensor in graph.initializer}
        claims = Counter(names.values())
        renamed = {weight: name for weight, name in names.items() if name not in remaining and claims[name] == 1}
        for tensor in graph.initializer:
            tensor.name = renamed.get(tensor.name, tensor.name)
        for node in graph.node:
            for index, name in enumerate(node.input):
                node.input[index] = renamed.get(name, name)


def _computed(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], output: str, constants: list[onnx.TensorProto]
) -> NDArray[np.float32]:
    # Few policies need it, and its import takes 20 ms.
    from onnx.reference import ReferenceEvaluator

    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "weight", [], [result], constants)
    part = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        (value,) = ReferenceEvaluator(part).run(None, {})
        return np.asarray(value, np.float32)
    except Exception as error:  # Operators of damaged models raise numpy's errors, KeyError and others.
        raise InvalidInputError(
            f"model: the weight {output!r} cannot be computed from its constants ({reason_of(error)}); is the file "
            "whole?"
        ) from None


def _values(tensor: onnx.TensorProto) -> NDArray[np.float32]:
    try:
        return np.ascontiguousarray(numpy_helper.to_array(tensor), np.float32)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(
            f"model: constant {tensor.name!r} is declared as float32{list(tensor.dims)}, but its bytes do not fit "
            f"({' '.join(str(error).split())[:100]}); is the file whole?"
        ) from None


def _free_batch(graph: onnx.GraphProto, data: list[onnx.ValueInfoProto]) -> None:
    """Free a batch of 1 that was exported without dynamic shapes. A later run shows whether the graph allows it."""
    leading = [value.type.tensor_type.shape.dim[0] for value in data if value.type.tensor_type.shape.dim]
    if not leading or any(dim.dim_value != 1 for dim in leading):
        return
    for value in (*data, *graph.output):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
    # The shapes of intermediate values hold for one row.
    graph.ClearField("value_info")
