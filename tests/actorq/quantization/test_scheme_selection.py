"""Which layers are found and quantized, and the reasons for the others."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper

from actorq.domain.policy import LayerReport, PolicyGraph
from actorq.quantization.calibration import Observed, Statistic
from actorq.quantization.graph import Graph
from actorq.quantization.layers import LINEAR, MAX_INPUTS, RECURRENT
from actorq.quantization.schemes import SCHEMES, Options, scheme_named
from actorq.quantization.schemes.base import Plan
from quantizer_service.emission.reference import Reference
from tests.builders.graphs import resigned
from tests.quantizer_service.policy_graphs import GRAPHS, OBSERVATION_SIZE, policy_graph
from tests.quantizer_service.policy_runs import (
    emission,
    emitted,
    outputs_of,
    random_inputs,
    random_parameters,
    reference_of,
)


def layers_of(source: PolicyGraph, scheme: str = "int8", **options: object) -> dict[str, LayerReport]:
    plan = Plan(Graph.parse(source), scheme_named(scheme), Options(**options))  # type: ignore[arg-type]
    return {layer.name: layer for layer in emission(plan, random_parameters(source, 0)).layers}


def around(*middle: onnx.NodeProto, shapes: dict[str, list[int]], image: bool = False) -> PolicyGraph:
    """A graph with a float input x, these nodes from x to y, and nodes that compute actions from y."""
    ends = [helper.make_node("Flatten", ["y"], ["flat"]), helper.make_node("Identity", ["flat"], ["q_values"])]
    observation: tuple[int | str, ...] = ("batch", 2, 6, 6) if image else ("batch", 6)
    nodes = [helper.make_node("Identity", ["observation"], ["x"]), *middle, *ends]
    return policy_graph(nodes, shapes, observation, constants={"six": np.array([6, 6])})


# A part of the reason, and the graph.
OBSTACLES = {
    "scaled Gemm": around(helper.make_node("Gemm", ["x", "w"], ["y"], alpha=0.5), shapes={"w": [6, 6]}),
    "rearranged": around(
        helper.make_node("Reshape", ["w", "six"], ["r"]),
        helper.make_node("MatMul", ["x", "r"], ["y"]),
        shapes={"w": [4, 9]},
    ),
    "from the left": around(
        helper.make_node("Transpose", ["x"], ["t"]),
        helper.make_node("MatMul", ["w", "t"], ["p"]),
        helper.make_node("Transpose", ["p"], ["y"]),
        shapes={"w": [3, 6]},
    ),
    "bias": around(helper.make_node("Gemm", ["x", "w", "b"], ["y"]), shapes={"w": [6, 6], "b": [1, 6]}),
    "3 dimensions": around(
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Transpose", ["p"], ["y"], perm=[1, 0, 2]),
        shapes={"w": [2, 6, 4]},
    ),
    "transposed convolution": around(
        helper.make_node("ConvTranspose", ["x", "w"], ["y"]), shapes={"w": [2, 3, 2, 2]}, image=True
    ),
    f" {MAX_INPUTS} inputs": around(
        helper.make_node("MatMul", ["x", "wide"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
        shapes={"wide": [6, MAX_INPUTS + 1], "w": [MAX_INPUTS + 1, 2]},
    ),
}


@pytest.mark.parametrize("fact", OBSTACLES)
@pytest.mark.parametrize("scheme", ["int8", "int8-static", "int4"])
def test_a_layer_that_cannot_be_quantized_stays_in_float_with_the_reason(scheme: str, fact: str) -> None:
    layer = layers_of(OBSTACLES[fact], scheme, ends=True)["w"]
    assert layer.weights == "float32"
    assert fact in layer.reason


@pytest.mark.parametrize("fact", OBSTACLES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_policy_with_a_layer_in_float_computes_what_fp32_computes(scheme: str, fact: str) -> None:
    source = OBSTACLES[fact]
    graph = Graph.parse(source)
    parameters, inputs = random_parameters(source, 1), random_inputs(graph)
    (expected,) = reference_of(graph).run(parameters, inputs).values()

    outputs = outputs_of(emitted(Plan(graph, scheme_named(scheme), Options(ends=True)), parameters, inputs), inputs)

    assert np.abs(outputs - expected).max() <= 0.03 * np.ptp(expected)


@pytest.mark.parametrize("fact", OBSTACLES)
def test_int8_weights_quantizes_layers_that_other_schemes_leave_in_float(fact: str) -> None:
    assert layers_of(OBSTACLES[fact], "int8-weights")["w"].weights == "int8 per channel"


def test_reports_an_unused_matrix_but_not_an_unused_row() -> None:
    source = around(
        helper.make_node("Add", ["x", "row"], ["a"]),
        helper.make_node("Cast", ["a"], ["index"], to=onnx.TensorProto.INT64),
        helper.make_node("Mul", ["index", "zero"], ["first"]),
        helper.make_node("Gather", ["table.weight", "first"], ["y"]),
        shapes={"row": [1, 6], "table.weight": [5, 4]},
    )
    model = onnx.ModelProto.FromString(source.model)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0), "zero"))
    source = PolicyGraph(model.SerializeToString(), source.signature)

    for scheme in SCHEMES:
        ((name, layer),) = layers_of(source, scheme).items()
        assert (name, layer.weights) == ("table", "float32")
        assert "no linear layer" in layer.reason


def test_finds_first_and_last_layers_from_the_whole_graph() -> None:
    ends = {layer.name: (layer.first, layer.last) for layer in Graph.parse(GRAPHS["two inputs"]).layers}

    assert ends == {
        "o": (True, False),
        "g": (True, False),
        "a": (False, False),
        "b": (False, False),
        "head": (False, True),
    }


def test_layers_come_in_the_order_of_the_graph() -> None:
    assert list(layers_of(GRAPHS["nature cnn"])) == ["conv1", "conv2", "conv3", "torso", "head"]


@pytest.mark.parametrize("name", ["mlp", "shared weights"])
def test_a_weight_is_quantized_for_all_of_its_uses_or_none(name: str) -> None:
    source = GRAPHS[name]
    nodes = onnx.ModelProto.FromString(
        emitted(Plan(Graph.parse(source), scheme_named("int8")), random_parameters(source, 1))
    ).graph.node

    uses = {"mlp": 2, "shared weights": 3}[name]
    assert sum(node.op_type == "DynamicQuantizeMatMul" for node in nodes) == uses


def test_a_weight_that_is_also_the_first_stays_in_float_everywhere() -> None:
    nodes = [
        helper.make_node("MatMul", ["observation", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("MatMul", ["b", "out"], ["q_values"]),
    ]

    layers = layers_of(policy_graph(nodes, {"w": [5, 5], "out": [5, 3]}))

    assert layers["w"].reason == "first layer"
    assert layers["out"].reason == "last layer"


def test_computes_a_range_despite_an_overflow() -> None:
    nodes = [
        helper.make_node("MatMul", ["observation", "in"], ["a"]),
        helper.make_node("Exp", ["a"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["b"]),
        helper.make_node("Tanh", ["b"], ["t"]),
        helper.make_node("MatMul", ["t", "out"], ["q_values"]),
    ]
    graph = Graph.parse(policy_graph(nodes, {"in": [5, 5], "w": [5, 5], "out": [5, 3]}))
    parameters = {name: np.ones(shape, np.float32) for name, shape in graph.parameters.items()}
    batch = {"observation": np.array([[0, 0, 0, 0, 1], [50, 50, 50, 50, 50]], np.float32)}

    wanted = {statistic: Observed("e", statistic) for statistic in (Statistic.RANGE, Statistic.MEAN, Statistic.MOMENTS)}
    _, found = Reference(graph).observe(parameters, batch, wanted.values())

    assert found[wanted[Statistic.RANGE]] == pytest.approx((np.e, np.e))
    # Values that are not finite count as 0.
    assert found[wanted[Statistic.MEAN]] == pytest.approx(np.full(5, np.e / 2))
    assert found[wanted[Statistic.MOMENTS]] == pytest.approx(np.full((5, 5), np.e**2 / 2))


def test_a_hidden_state_is_no_observation() -> None:
    ends = {layer.name: (layer.first, layer.last) for layer in Graph.parse(GRAPHS["cell"]).layers}
    assert ends == {"w": (True, False), "r": (False, False), "head": (False, True)}
    # Without the state among the outputs, the second data input is also an observation.
    source = GRAPHS["cell"]
    model = onnx.ModelProto.FromString(source.model)
    del model.graph.output[1]
    alone = Graph.parse(resigned(replace(source, model=model.SerializeToString())))
    assert {layer.name for layer in alone.layers if layer.first} == {"w", "r"}


def test_a_layer_behind_a_recurrent_one_is_not_the_first() -> None:
    layers = {layer.name: (layer.kind, layer.first, layer.last) for layer in Graph.parse(GRAPHS["lstm"]).layers}
    assert layers == {
        "in": (LINEAR, True, False),
        "w": (RECURRENT, False, False),
        "r": (RECURRENT, False, False),
        "head": (LINEAR, False, True),
    }


@pytest.mark.parametrize("directly", [False, True])
def test_a_layer_whose_units_are_averaged_is_no_last_layer(directly: bool) -> None:
    """Quantiles of values: by far the largest layer, whose errors the mean reduces."""
    nodes = [
        helper.make_node("MatMul", ["observation", "first"], ["h"]),
        helper.make_node("MatMul", ["h", "quantiles"], ["q"]),
        helper.make_node("Reshape", ["q", "shape"], ["by action"]),
        helper.make_node("ReduceMean", ["by action", "axis"], ["mean"], keepdims=0),
        helper.make_node("Add", ["mean", "mean"], ["q_values"]),
    ]
    if directly:
        nodes[-1].input[1] = "one"
        nodes.insert(-1, helper.make_node("Gather", ["by action", "index"], ["one"], axis=2))
    source = policy_graph(
        nodes,
        {"first": [OBSERVATION_SIZE, 16], "quantiles": [16, 3 * 32]},
        constants={"shape": np.array([0, 3, 32]), "axis": np.array([2]), "index": np.array(0)},
    )

    assert layers_of(source)["quantiles"].reason == ("last layer" if directly else "")
