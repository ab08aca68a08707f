"""Complete models with old opsets, with a batch of 1, or with unlucky names are converted."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from actorq.domain.policy import PolicyGraph
from actorq.errors import InvalidInputError
from actorq.quantization.footprint import Footprint
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import SCHEMES
from actorq.quantization.schemes.base import Plan
from quantizer_service.emission.reference import Reference
from tests.quantizer_service.complete_models import complete_model
from tests.quantizer_service.policy_graphs import mlp, policy_graph, recurrent
from tests.quantizer_service.policy_runs import all_outputs_of, emission, outputs_of, random_inputs


def for_one_row(nodes: list[onnx.NodeProto], opset: int = 17) -> onnx.ModelProto:
    """A complete model from observation[1, 5] to q_values[1, 3]; "product" is its last layer's output."""
    product = helper.make_node("MatMul", ["observation", "weight"], ["q_values"])
    constants = {"sizes": np.array([1, 3]), "any": np.array([1, -1])}
    model = complete_model(policy_graph([product], {"weight": [5, 3]}, constants=constants))
    model.graph.node[0].output[0] = "product"
    model.graph.node.extend(nodes)
    for value in (*model.graph.input, *model.graph.output):
        shape = [1, *(dim.dim_value or 3 for dim in value.type.tensor_type.shape.dim[1:])]
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape))
    model.opset_import[0].version = opset
    return model


def rows_of(model: onnx.ModelProto, observations: np.ndarray) -> np.ndarray:
    """The outputs of a model for one row, row by row."""
    rows = [outputs_of(model.SerializeToString(), {"observation": row[None]}) for row in observations]
    return np.concatenate(rows)


@pytest.mark.parametrize("sizes", ["sizes", "any"])
def test_a_reshape_for_one_row_keeps_the_batch(sizes: str) -> None:
    model = for_one_row([helper.make_node("Reshape", ["product", sizes], ["q_values"])])

    graph, parameters = Graph.from_model(model.SerializeToString())

    feeds = random_inputs(graph, 7)
    expected = rows_of(model, feeds["observation"])
    np.testing.assert_allclose(Reference(graph).run(parameters, feeds)["q_values"], expected, rtol=1e-5, atol=1e-6)


def test_a_reshape_for_one_row_of_one_network_of_an_ensemble_keeps_the_batch() -> None:
    nodes = [
        helper.make_node("Reshape", ["product", "one of one"], ["member"]),
        helper.make_node("Concat", ["member"], ["ensemble"], axis=0),
        helper.make_node("ReduceMean", ["ensemble"], ["q_values"], axes=[0], keepdims=0),
    ]
    model = for_one_row(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 3]), "one of one"))

    graph, parameters = Graph.from_model(model.SerializeToString())

    feeds = random_inputs(graph, 7)
    expected = rows_of(model, feeds["observation"])
    np.testing.assert_allclose(Reference(graph).run(parameters, feeds)["q_values"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_an_old_opset_is_converted(opset: int) -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["product"], ["deep"], axes=[2]),
        helper.make_node("Squeeze", ["deep"], ["flat"], axes=[2]),
        helper.make_node("Softmax", ["flat"], ["q_values"], axis=1),
    ]
    model = for_one_row(nodes, opset)
    model.ir_version = 4

    graph, parameters = Graph.from_model(model.SerializeToString())

    assert graph.model.opset_import[0].version == 13
    feeds = random_inputs(graph, 7)
    expected = rows_of(model, feeds["observation"])
    np.testing.assert_allclose(Reference(graph).run(parameters, feeds)["q_values"], expected, rtol=1e-5, atol=1e-6)


def test_an_opset_that_the_converter_cannot_convert_is_refused() -> None:
    model = complete_model(mlp(8))
    # Its Gemm needs a constant batch size.
    model.opset_import[0].version, model.ir_version = 6, 4

    with pytest.raises(InvalidInputError, match=r"from opset 6 to 13; .*opset_version=17"):
        Graph.from_model(model.SerializeToString())


def test_an_opset_that_the_converter_does_not_know_is_refused() -> None:
    model = complete_model(mlp(8))
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1

    with pytest.raises(InvalidInputError, match=f"opset.*{model.opset_import[0].version}"):
        Graph.from_model(model.SerializeToString())


def test_a_newer_ir_version_is_lowered_to_a_known_one() -> None:
    model = complete_model(mlp(8))
    model.ir_version = onnx.IR_VERSION

    graph, _ = Graph.from_model(model.SerializeToString())

    assert graph.model.ir_version == 10
    Reference(graph)


def test_reports_states_that_are_not_batch_first() -> None:
    model = complete_model(recurrent())
    for value in model.graph.input:
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        shape = [1, *sizes[1:]] if value.name == "observation" else [2, *sizes[1:]]
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape))

    with pytest.raises(InvalidInputError, match=r"'observation' \[1, .*\[2, .*transpose"):
        Graph.from_model(model.SerializeToString())


def renamed(model: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for value in (*model.graph.input, *model.graph.output):
        value.name = names.get(value.name, value.name)
    for node in model.graph.node:
        for field in (node.input, node.output):
            for index, name in enumerate(field):
                field[index] = names.get(name, name)
    return model


UNLUCKY = (
    {"layers.1.weight": "w", "layers.1.bias": "w:2:bias"},
    {"layers.1.weight": "w.weight", "layers.1.bias": "w:folded"},
    {"relu_1": "h", "linear_1": "h:uint8"},
    {"relu_1": "relu_0:zero_point"},
    {"q_values": "relu_1:uint8"},
    {"relu_1": "observation:scale"},
)


@pytest.mark.parametrize("names", UNLUCKY, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_handles_tensor_names_that_schemes_use(names: dict[str, str], scheme: str) -> None:
    model = renamed(complete_model(mlp(32, 32)), names)
    # A node may also have the name of a weight.
    model.graph.node[2].name = next(tensor.name for tensor in model.graph.initializer if len(tensor.dims) > 1)

    graph, parameters = Graph.from_model(model.SerializeToString(), discrete_actions=True)

    feeds = random_inputs(graph, 8)
    made = emission(Plan(graph, SCHEMES[scheme]), parameters).model
    (expected,), (found,) = all_outputs_of(model.SerializeToString(), feeds), all_outputs_of(made, feeds)
    assert np.abs(found - expected).max() < 0.1 * np.ptp(expected)


def with_more_outputs(which: str) -> onnx.ModelProto:
    """A policy whose first output does not depend on the observations."""
    model = complete_model(mlp(16, 16))
    actions = model.graph.output[0]
    if which == "version":
        model.graph.initializer.append(numpy_helper.from_array(np.array([3.0], np.float32), "number"))
        model.graph.node.append(helper.make_node("Identity", ["number"], ["version"]))
        value = helper.make_tensor_value_info("version", TensorProto.FLOAT, [1])
    elif which == "weight":
        value = helper.make_tensor_value_info("layers.1.weight", TensorProto.FLOAT, [16, 16])
    else:
        value = helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["batch", 5])
    values = [actions, value] if which == "observation" else [value, actions]
    model.graph.ClearField("output")
    model.graph.output.extend(onnx.ValueInfoProto.FromString(each.SerializeToString()) for each in values)
    return model


@pytest.mark.parametrize("which", ["version", "weight", "observation"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_outputs_that_are_constants_or_inputs_are_kept_and_not_compared(which: str, scheme: str) -> None:
    model = with_more_outputs(which)
    if scheme == "fp32":
        for value in (*model.graph.input, model.graph.output[-1 if which != "observation" else 0]):
            value.type.tensor_type.shape.dim[0].dim_value = 1

    graph, parameters = Graph.from_model(model.SerializeToString(), discrete_actions=True)

    assert graph.outputs == ("q_values", "observation")[: 2 if which == "observation" else 1]
    Footprint(graph.model, tuple(graph.inputs))
    feeds = random_inputs(graph, 6)
    assert Reference(graph).run(parameters, feeds).keys() == set(graph.outputs)
    made = onnx.ModelProto.FromString(emission(Plan(graph, SCHEMES[scheme]), parameters).model)
    assert [value.name for value in made.graph.output] == [value.name for value in model.graph.output]
    if which == "version":
        assert all_outputs_of(made.SerializeToString(), feeds)[0] == [3.0]


def test_a_policy_whose_outputs_are_all_constant_is_refused() -> None:
    model = with_more_outputs("version")
    del model.graph.output[1]

    with pytest.raises(InvalidInputError, match=r"no output.*\['observation'\]"):
        Graph.from_model(model.SerializeToString())


def test_a_model_without_weights_is_refused() -> None:
    source: PolicyGraph = policy_graph([helper.make_node("Tanh", ["observation"], ["q_values"])], {})

    with pytest.raises(InvalidInputError, match="no float32 weights"):
        Graph.from_model(source.model)


def test_refuses_a_large_table_of_integers_with_a_remedy() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "row"], ["found"]),
        helper.make_node("Cast", ["found"], ["values"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["observation", "weight"], ["product"]),
        helper.make_node("Add", ["product", "values"], ["q_values"]),
    ]
    constants = {"table": np.ones((20_000, 3), np.int64), "row": np.array([0])}

    with pytest.raises(InvalidInputError, match=r"'table' of INT64.*float32"):
        complete_model(policy_graph(nodes, {"weight": [5, 3]}, constants=constants))


def test_an_integer_input_may_be_a_divisor() -> None:
    nodes = [
        helper.make_node("Cast", ["observation"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Mod", ["whole", "whole"], ["rest"]),
        helper.make_node("Cast", ["rest"], ["values"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["values", "weight"], ["q_values"]),
    ]
    source = policy_graph(nodes, {"weight": [5, 3]})

    Reference(Graph.parse(source))
