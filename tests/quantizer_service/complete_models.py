"""Complete ONNX models as other libraries export them, for the tests of `actorq quantize`."""

from pathlib import Path

import onnx
from onnx import helper, numpy_helper

from actorq.domain.policy import PolicyGraph
from tests.quantizer_service.policy_runs import random_parameters


def complete_model(source: PolicyGraph, seed: int = 0) -> onnx.ModelProto:
    """The graph with random weights inside."""
    model = onnx.ModelProto.FromString(source.model)
    parameters = random_parameters(source, seed)
    data = [value for value in model.graph.input if value.name not in parameters]
    model.graph.ClearField("input")
    model.graph.input.extend(data)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in parameters.items())
    return model


def chosen_actions(source: PolicyGraph, seed: int = 0) -> onnx.ModelProto:
    """The complete model whose only output is the index of the best action, int64[batch]."""
    model = complete_model(source, seed)
    (values,) = model.graph.output
    model.graph.node.append(helper.make_node("ArgMax", [values.name], ["action"], axis=1, keepdims=0))
    model.graph.ClearField("output")
    model.graph.output.append(helper.make_tensor_value_info("action", onnx.TensorProto.INT64, ["batch"]))
    return model


def written(path: Path, model: onnx.ModelProto) -> Path:
    """The model in a file."""
    path.write_bytes(model.SerializeToString())
    return path
