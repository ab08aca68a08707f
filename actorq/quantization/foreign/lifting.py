"""Converts complete ONNX models to the form that a learner publishes: data inputs, then every parameter by name."""

import math

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from actorq.errors import InvalidInputError
from actorq.quantization.foreign.constants import fold_weights
from actorq.quantization.foreign.conversion import free_batch
from actorq.quantization.nodes import constant_of, set_repeated

_OTHER_FLOATS = (TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_WITH_WEIGHTS = ("Gemm", "MatMul", "Conv", "ConvTranspose", "LayerNormalization", "BatchNormalization")
# The float constants of these operators are settings, not weights. The operators need them before they run.
_CONSTANT_ARGUMENTS = ("Resize", "Upsample", "Clip", "Pad", "Range", "ConstantOfShape")


def lift_parameters(model: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    """Turn every trainable float32 constant into a graph input, in place. Returns their values.

    Trainable constants are initializers and Constant nodes of the main graph with more than one element. Constants of
    one element count if layers or normalizations read them, such as the bias of a single output. A batch dimension of 1
    becomes dynamic. -inf in a constant, as in an attention mask, becomes the lowest float32. Raises
    """
    graph = model.graph
    _constants_to_initializers(graph)
    fold_weights(model)
    # Up to IR version 3, the inputs also list the initializers.
    initialized = {tensor.name for tensor in graph.initializer}
    data = [value for value in graph.input if value.name not in initialized]
    free_batch(model, data)
    fixed = {name for node in graph.node if node.op_type in _CONSTANT_ARGUMENTS for name in node.input[1:]}
    layers = {name for node in graph.node if node.op_type in _WITH_WEIGHTS for name in node.input[1:]}
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
    data += [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in parameters.items()]
    set_repeated(graph, "initializer", constants)
    set_repeated(graph, "input", data)
    return parameters


def _constants_to_initializers(graph: onnx.GraphProto) -> None:
    kept = []
    for node in graph.node:
        tensor = constant_of(node)
        if tensor is None:
            kept.append(node)
        else:
            graph.initializer.append(tensor)
            graph.initializer[-1].name = node.output[0]
    set_repeated(graph, "node", kept)


def _values(tensor: onnx.TensorProto) -> NDArray[np.float32]:
    try:
        values = np.ascontiguousarray(numpy_helper.to_array(tensor), np.float32)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(
            f"model: constant {tensor.name!r} is declared as float32{list(tensor.dims)}, but its bytes do not fit "
            f"({' '.join(str(error).split())[:100]}); is the file complete?"
        ) from None
    return np.where(np.isneginf(values), np.finfo(np.float32).min, values) if np.isneginf(values).any() else values
