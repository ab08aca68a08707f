"""Complete models become graphs whose weights are inputs."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from actorq.errors import InvalidInputError
from actorq.quantization.footprint import Footprint
from actorq.quantization.graph import Graph
from actorq.quantization.layers import RECURRENT
from actorq.quantization.nodes import set_repeated
from quantizer_service.emission.reference import Reference
from tests.quantizer_service.complete_models import complete_model
from tests.quantizer_service.policy_graphs import mlp, policy_graph, recurrent
from tests.quantizer_service.policy_runs import all_outputs_of, random_inputs, random_parameters


def with_reordered_gates(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its input weights computed from "rnn.weight" as by torch's exporter: slices joined in an order."""
    (weight,) = [tensor for tensor in model.graph.initializer if tensor.name == "w"]
    array = numpy_helper.to_array(weight)[0]
    size = len(array) // 3
    weight.CopyFrom(numpy_helper.from_array(np.concatenate((array[size : 2 * size], array[:size], array[2 * size :]))))
    weight.name = "rnn.weight"
    bounds = [numpy_helper.from_array(np.array([i * size]), f"bound {i}") for i in range(4)]
    model.graph.initializer.extend([*bounds, numpy_helper.from_array(np.array([0]), "axis")])
    gates = [
        helper.make_node("Slice", ["rnn.weight", f"bound {i}", f"bound {i + 1}", "axis"], [f"gate {i}"])
        for i in range(3)
    ]
    joined = helper.make_node("Concat", ["gate 1", "gate 0", "gate 2"], ["joined"], axis=0)
    nodes = [*gates, joined, helper.make_node("Unsqueeze", ["joined", "axis"], ["w"]), *model.graph.node]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    model.graph.ClearField("node")
    model.graph.node.extend(copies)
    return model


def test_recurrent_weights_whose_gates_the_exporter_reorders_are_parameters() -> None:
    plain = complete_model(recurrent("GRU"))
    reordered = with_reordered_gates(complete_model(recurrent("GRU")))

    graph, parameters = Graph.from_model(reordered.SerializeToString(), discrete_actions=True)

    assert [layer.name for layer in graph.layers if layer.kind == RECURRENT] == ["rnn", "r"]
    assert len(graph.model.graph.node) == len(plain.graph.node)
    np.testing.assert_array_equal(
        parameters["rnn.weight"], next(numpy_helper.to_array(t) for t in plain.graph.initializer if t.name == "w")
    )
    feeds = random_inputs(graph, 4)
    outputs = Reference(graph).run(parameters, feeds)
    expected = all_outputs_of(reordered.SerializeToString(), feeds)
    np.testing.assert_allclose(outputs["q_values"], expected[0], rtol=1e-6, atol=1e-6)


def with_a_packed_kernel(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the two weights of its recurrent layer cut from one constant."""
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    kernel = numpy_helper.from_array(np.concatenate((weights["w"], weights["r"])), "kernel")
    others = [tensor for tensor in model.graph.initializer if tensor.name not in ("w", "r")]
    bounds = [numpy_helper.from_array(np.array([i]), f"bound {i}") for i in range(3)]
    slices = [
        helper.make_node("Slice", ["kernel", f"bound {i}", f"bound {i + 1}", "bound 0"], [name])
        for i, name in enumerate("wr")
    ]
    set_repeated(model.graph, "initializer", [*others, kernel, *bounds])
    set_repeated(model.graph, "node", [*slices, *model.graph.node])
    return model


def test_recurrent_weights_cut_from_one_constant_stay_two_parameters() -> None:
    plain = complete_model(recurrent("LSTM"))
    packed = with_a_packed_kernel(complete_model(recurrent("LSTM")))

    graph, parameters = Graph.from_model(packed.SerializeToString(), discrete_actions=True)

    for name in "wr":
        np.testing.assert_array_equal(
            parameters[name], next(numpy_helper.to_array(t) for t in plain.graph.initializer if t.name == name)
        )
    feeds = random_inputs(graph, 4)
    expected = all_outputs_of(packed.SerializeToString(), feeds)
    np.testing.assert_allclose(Reference(graph).run(parameters, feeds)["q_values"], expected[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("damaged", ["axis", "kernel"])
def test_a_recurrent_weight_that_cannot_be_computed_is_refused(damaged: str) -> None:
    model = with_a_packed_kernel(complete_model(recurrent("LSTM")))
    if damaged == "axis":
        model.graph.node[0].input[3] = "bound 2"
        model.graph.initializer[-1].CopyFrom(numpy_helper.from_array(np.array([7]), "bound 2"))
    else:
        (kernel,) = (tensor for tensor in model.graph.initializer if tensor.name == "kernel")
        kernel.dims[0] = 1

    with pytest.raises(InvalidInputError, match=r"weight 'w'.*constants"):
        Graph.from_model(model.SerializeToString())


@pytest.mark.parametrize("doubled", [False, True])
def test_a_recurrent_weight_behind_a_long_chain_of_nodes_is_computed_at_once(doubled: bool) -> None:
    model = with_a_packed_kernel(complete_model(recurrent("LSTM")))
    rows = len(next(numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name == "kernel"))
    assert rows == 2
    chain, tensor = [], "kernel"
    for step in range(40 if doubled else 1500):
        # Each doubled tensor is cut to its first half again, so that the weight stays small.
        last, tensor = tensor, f"step {step}"
        nodes = [
            helper.make_node("Concat", [last, last], [f"{tensor} doubled"], axis=0),
            helper.make_node("Slice", [f"{tensor} doubled", "bound 0", "bound 2", "bound 0"], [tensor]),
        ]
        chain += nodes if doubled else [helper.make_node("Identity", [last], [tensor])]
    for node in list(model.graph.node)[:2]:
        node.input[0] = tensor
    set_repeated(model.graph, "node", [*chain, *model.graph.node])

    graph, parameters = Graph.from_model(model.SerializeToString(), discrete_actions=True)

    assert {"w", "r"} <= parameters.keys()
    assert len(graph.model.graph.node) == len(complete_model(recurrent("LSTM")).graph.node)


def with_computed_weight(form: str) -> onnx.ModelProto:
    """A policy whose second weight is computed from constants by nodes."""
    model = complete_model(mlp(32, 32))
    rng = np.random.default_rng(5)

    def constant(name: str, array: np.ndarray) -> None:
        model.graph.initializer.append(numpy_helper.from_array(array, name))

    weight, computed = "layers.1.weight", "computed"
    if form == "weight norm":
        made = [
            helper.make_node("ReduceL2", [weight], ["norm"], axes=[1], keepdims=1),
            helper.make_node("Div", [weight, "norm"], [computed]),
        ]
        model.opset_import[0].version = 17
    elif form == "pruning":
        constant("mask", rng.random((32, 32)) < 0.5)
        constant("zero", np.zeros(1, np.float32))
        made = [helper.make_node("Where", ["mask", weight, "zero"], [computed])]
    elif form == "low rank":
        constant("up", rng.standard_normal((32, 2)).astype(np.float32))
        constant("down", rng.standard_normal((2, 32)).astype(np.float32))
        made = [
            helper.make_node("MatMul", ["up", "down"], ["update"]),
            helper.make_node("Add", [weight, "update"], [computed]),
        ]
    else:
        constant("flat shape", np.array([32, 32]))
        made = [helper.make_node("Reshape", [weight, "flat shape"], [computed])]
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = computed if name == weight else name
    set_repeated(model.graph, "node", [*made, *model.graph.node])
    return model


@pytest.mark.parametrize("form", ["weight norm", "pruning", "low rank", "reshaped"])
def test_a_weight_computed_from_constants_becomes_a_parameter(form: str) -> None:
    model = with_computed_weight(form)

    graph, parameters = Graph.from_model(model.SerializeToString(), discrete_actions=True)

    assert parameters.keys() == random_parameters(mlp(32, 32), 0).keys()
    assert [layer.obstacle for layer in graph.layers] == ["", "", ""]
    feeds = random_inputs(graph, 4)
    expected = all_outputs_of(model.SerializeToString(), feeds)
    np.testing.assert_allclose(Reference(graph).run(parameters, feeds)["q_values"], expected[0], rtol=1e-5, atol=1e-5)


def test_a_constant_that_grows_far_beyond_its_sources_stays_computed() -> None:
    nodes = [
        helper.make_node("Expand", ["row", "sizes"], ["weight"]),
        helper.make_node("MatMul", ["observation", "weight"], ["q_values"]),
    ]
    model = complete_model(policy_graph(nodes, {"row": [1, 3]}, constants={"sizes": np.array([5, 3])}))

    graph, parameters = Graph.from_model(model.SerializeToString())

    assert parameters.keys() == {"row"}
    assert len(graph.model.graph.node) == 2


def test_constants_that_would_fill_the_memory_are_refused() -> None:
    nodes = [
        helper.make_node("Expand", ["row", "sizes"], ["rows"]),
        helper.make_node("ReduceMax", ["rows", "axis"], ["weight"], keepdims=0),
        helper.make_node("Add", ["observation", "weight"], ["q_values"]),
    ]
    constants = {"sizes": np.array([2**24, 5]), "axis": np.array([0])}
    model = complete_model(policy_graph(nodes, {"row": [1, 5]}, constants=constants))

    with pytest.raises(InvalidInputError, match=r"weight.*constants.*bytes"):
        Graph.from_model(model.SerializeToString())


def test_infinity_in_a_mask_becomes_the_lowest_number() -> None:
    model = complete_model(mlp(16))
    mask = np.array([0.0, -np.inf, 0.0], np.float32)
    model.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    model.graph.node[-1].output[0] = "values"
    model.graph.node.append(helper.make_node("Add", ["values", "mask"], ["q_values"]))

    _, parameters = Graph.from_model(model.SerializeToString(), discrete_actions=True)

    assert parameters["mask"].tolist() == [0.0, float(np.finfo(np.float32).min), 0.0]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value_floats": [1.0, 2.0, 4.0]}, {"constant": [1.0, 2.0, 4.0]}),
        ({"value": numpy_helper.from_array(np.array([1, 2, 4], np.float32))}, {"constant": [1.0, 2.0, 4.0]}),
        # A single number is not a weight.
        ({"value_float": 2.0}, {}),
    ],
    ids=lambda value: next(iter(value), ""),
)
def test_numbers_of_constant_nodes_are_parameters(attributes: dict[str, Any], expected: dict[str, list[float]]) -> None:
    model = complete_model(mlp(16))
    model.graph.node[-1].output[0] = "values"
    nodes = [helper.make_node("Constant", [], ["constant"], **attributes), *model.graph.node]
    set_repeated(model.graph, "node", [*nodes, helper.make_node("Mul", ["values", "constant"], ["q_values"])])

    graph, parameters = Graph.from_model(model.SerializeToString(), discrete_actions=True)

    assert {name: parameters[name].tolist() for name in parameters if not name.startswith("layers")} == expected
    feeds = random_inputs(graph, 4)
    (wanted,) = all_outputs_of(model.SerializeToString(), feeds)
    np.testing.assert_allclose(Reference(graph).run(parameters, feeds)["q_values"], wanted, rtol=1e-6)


@pytest.mark.parametrize("operator", ["GroupNormalization", "MeanVarianceNormalization"])
def test_accepts_normalizations_without_shape_inference(operator: str) -> None:
    grouped = operator == "GroupNormalization"
    inputs = ["image", *(["scale", "bias"] if grouped else [])]
    nodes = [
        helper.make_node("Reshape", ["observation", "sizes"], ["image"]),
        helper.make_node(operator, inputs, ["normal"]),
        helper.make_node("Flatten", ["normal"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["q_values"]),
    ]
    if grouped:
        nodes[1].attribute.append(helper.make_attribute("num_groups", 2))
    parameters = {"weight": [64, 3], **({"scale": [4], "bias": [4]} if grouped else {})}
    source = policy_graph(nodes, parameters, ("batch", 64), constants={"sizes": np.array([-1, 4, 4, 4])}, opset=21)
    graph = Graph.parse(source)

    Footprint(graph.model, tuple(graph.inputs))
    assert Reference(graph).run(random_parameters(source, 1), random_inputs(graph, 4))["q_values"].shape == (4, 3)
    (layer,) = graph.layers
    assert layer.input_rank == 2
