"""Complete ONNX models as other libraries export them, for the tests of `actorq quantize`."""

from pathlib import Path

import onnx
from onnx import numpy_helper

from actorq.domain.policy import PolicyGraph
from tests.quantizer_service.policy_graphs import random_parameters


def complete_model(source: PolicyGraph, seed: int = 0) -> onnx.ModelProto:
    """The graph with random weights inside."""
    model = onnx.ModelProto.FromString(source.model)
    parameters = random_parameters(source, seed)
    data = [value for value in model.graph.input if value.name not in parameters]
    model.graph.ClearField("input")
    model.graph.input.extend(data)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in parameters.items())
    return model


def written(path: Path, model: onnx.ModelProto) -> Path:
    """The model in a file."""
    path.write_bytes(model.SerializeToString())
    return path
