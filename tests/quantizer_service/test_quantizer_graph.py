from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from policy_graphs import dueling, mlp, policy_graph, random_observations, random_parameters

from actorq.errors import InvalidInputError
from actorq.policy import PolicyGraph
from quantizer_service.graph import MAX_CONSTANT_BYTES, Graph


def changed(change: Callable[[onnx.ModelProto], object]) -> PolicyGraph:
    model = onnx.ModelProto.FromString(mlp(8).model)
    change(model)
    return PolicyGraph(model.SerializeToString(), ("observation",), True)


def weight_inside(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(MAX_CONSTANT_BYTES, np.float32), "inside"))


def external_constant(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer.add(name="secret", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def test_a_graph_tells_inputs_and_parameters_apart() -> None:
    graph = Graph.parse(mlp(8))

    assert list(graph.inputs) == ["observation"]
    assert graph.inputs["observation"].shape == (5,)
    assert graph.parameters["layers.0.weight"] == (8, 5)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (PolicyGraph(b"\xffnot a model", ("observation",), True), "do not parse"),
        (PolicyGraph(mlp(8).model, ("pixels",), True), "expected the data inputs"),
        (PolicyGraph(mlp(8).model, (), True), "expected the data inputs"),
        (changed(weight_inside), "'inside' has"),
        (changed(external_constant), "'secret' lies in another file"),
        (changed(lambda m: m.graph.node[0].input.__setitem__(0, "nowhere")), "nowhere"),
        (changed(lambda m: setattr(m.opset_import[0], "version", 9)), r"opset from 13 to \d+, got \[9\]"),
        (
            changed(lambda m: setattr(m.graph.input[1].type.tensor_type, "elem_type", TensorProto.DOUBLE)),
            "'layers.0.weight' must be float32 of a fixed shape, got element type DOUBLE",
        ),
        (policy_graph([helper.make_node("Relu", ["observation"], ["q_values"])], {}), "got none"),
        (
            policy_graph([helper.make_node("Add", ["observation", "b"], ["q_values"])], {"b": [5]}, (1, 5)),
            "first dimension, the batch, is free",
        ),
    ],
)
def test_a_wrong_graph_is_refused_with_the_reason(source: PolicyGraph, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        Graph.parse(source)


def test_a_constant_of_another_kind_than_a_weight_is_taken() -> None:
    assert "axis" not in Graph.parse(dueling()).parameters


@pytest.mark.parametrize(
    ("observations", "reason"),
    [
        ({}, r"missing \['observation'\]"),
        ({**random_observations(), "goal": np.zeros((32, 2), np.float32)}, r"unexpected \['goal'\]"),
        ({"observation": np.zeros((0, 5), np.float32)}, "at least 1"),
        ({"observation": np.float32(1)}, "at least 1"),
        ({"observation": np.zeros((4, 6), np.float32)}, r"float32\['B', 5\], got float32\[4, 6\]"),
        ({"observation": np.zeros((4, 5), np.float64)}, "got float64"),
        ({"observation": np.full((4, 5), np.nan, np.float32)}, "finite"),
    ],
)
def test_a_wrong_calibration_batch_is_refused(observations: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        Graph.parse(mlp(8)).check_calibration(observations)


def test_right_tensors_are_taken() -> None:
    graph = Graph.parse(mlp(8))

    graph.check_parameters(random_parameters(mlp(8), 0))
    graph.check_calibration(random_observations())
