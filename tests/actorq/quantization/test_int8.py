import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from actorq.domain.policy import INT8_PER_CHANNEL, PolicyGraph
from actorq.quantization.graph import Graph
from actorq.quantization.schemes.base import Plan
from actorq.quantization.schemes.fp32 import FP32
from actorq.quantization.schemes.int8 import INT8, dynamic_grid
from tests.quantizer_service.policy_graphs import dueling, matmul_mlp, mlp, policy_graph
from tests.quantizer_service.policy_runs import (
    emission,
    emitted,
    float_layers,
    fp32_outputs,
    outputs_of,
    random_observations,
    random_parameters,
)


def emit(source: PolicyGraph, parameters: dict[str, NDArray[np.float32]]) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(emitted(Plan(Graph.parse(source), INT8), parameters))


def operators(source: PolicyGraph) -> list[str]:
    return [node.op_type for node in emit(source, random_parameters(source, 0)).graph.node]


def three_layers(middle: list[onnx.NodeProto], weight: list[int]) -> PolicyGraph:
    """first, `middle` from h to m with the parameters middle.weight and middle.bias, last."""
    nodes = [
        helper.make_node("MatMul", ["observation", "first.weight"], ["h"]),
        *middle,
        helper.make_node("MatMul", ["m", "last.weight"], ["q_values"]),
    ]
    shapes = {"first.weight": [5, 8], "middle.weight": weight, "middle.bias": [6], "last.weight": [6, 3]}
    return policy_graph(nodes, shapes, constants={"sizes": np.array([8, 6])})


def test_first_and_last_layers_stay_in_float() -> None:
    plan = Plan(Graph.parse(mlp(8, 8, 8)), INT8)

    assert float_layers(plan) == ("layers.0", "layers.3")
    assert operators(mlp(8, 8, 8)) == [
        *("Gemm", "Relu", "DynamicQuantizeMatMul", "Relu", "DynamicQuantizeMatMul", "Relu", "Gemm")
    ]


def test_both_heads_of_a_dueling_net_are_last() -> None:
    assert float_layers(Plan(Graph.parse(dueling()), INT8)) == ("torso.0", "value", "advantage")


def test_matmul_and_add_become_one_node() -> None:
    assert float_layers(Plan(Graph.parse(matmul_mlp()), INT8)) == ("a", "d")
    quantized = operators(matmul_mlp())
    assert quantized.count("DynamicQuantizeMatMul") == 2
    assert quantized.count("Add") == 1


@pytest.mark.parametrize("hidden", [(), (8,)])
def test_a_net_without_a_middle_layer_is_float_throughout(hidden: tuple[int, ...]) -> None:
    source = mlp(*hidden)
    parameters, observations = random_parameters(source, 1), random_observations()
    plan = Plan(Graph.parse(source), INT8)

    assert float_layers(plan) == tuple(f"layers.{i}" for i in range(len(hidden) + 1))
    fp32 = emitted(Plan(Graph.parse(source), FP32), parameters)
    assert np.array_equal(outputs_of(emitted(plan, parameters), observations), outputs_of(fp32, observations))


@pytest.mark.parametrize(
    ("middle", "weight"),
    [
        ([helper.make_node("Gemm", ["h", "middle.weight", "middle.bias"], ["m"])], [8, 6]),
        ([helper.make_node("Gemm", ["h", "middle.weight", "middle.bias"], ["m"], transB=1)], [6, 8]),
        ([helper.make_node("Gemm", ["h", "middle.weight"], ["m"], transB=1)], [6, 8]),
        (
            [
                helper.make_node("Identity", ["middle.weight"], ["same"]),
                helper.make_node("Transpose", ["same"], ["turned"]),
                helper.make_node("MatMul", ["h", "turned"], ["m"]),
            ],
            [6, 8],
        ),
    ],
)
def test_quantizes_a_gemm_with_and_without_a_transposed_weight(middle: list[onnx.NodeProto], weight: list[int]) -> None:
    source = three_layers(middle, weight)
    parameters, observations = random_parameters(source, 2), random_observations()
    graph = Graph.parse(source)
    plan = Plan(graph, INT8)
    expected = fp32_outputs(graph, parameters, observations)

    assert float_layers(plan) == ("first", "last")
    outputs = outputs_of(emitted(plan, parameters), observations)
    assert np.abs(outputs - expected).max() < 0.02 * np.ptp(expected)


@pytest.mark.parametrize(
    ("middle", "weight"),
    [
        ([helper.make_node("Gemm", ["h", "middle.weight", "middle.bias"], ["m"], alpha=0.5)], [8, 6]),
        ([helper.make_node("Gemm", ["h", "middle.weight", "middle.bias"], ["m"], beta=0.5)], [8, 6]),
        (
            [
                helper.make_node("Reshape", ["middle.weight", "sizes"], ["reshaped"]),
                helper.make_node("MatMul", ["h", "reshaped"], ["m"]),
            ],
            [6, 8],
        ),
    ],
)
def test_a_layer_that_cannot_be_quantized_stays_in_float_and_is_named(
    middle: list[onnx.NodeProto], weight: list[int]
) -> None:
    source = three_layers(middle, weight)

    assert float_layers(Plan(Graph.parse(source), INT8)) == ("first", "middle", "last")
    assert "DynamicQuantizeMatMul" not in operators(source)


def test_a_convolution_stays_in_float_and_counts_as_the_first_layer() -> None:
    nodes = [
        helper.make_node("Conv", ["observation", "conv.weight"], ["c"]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Gemm", ["f", "torso.weight"], ["t"], transB=1),
        helper.make_node("Gemm", ["t", "head.weight"], ["q_values"], transB=1),
    ]
    parameters = {"conv.weight": [2, 1, 3, 3], "torso.weight": [8, 32], "head.weight": [3, 8]}
    source = policy_graph(nodes, parameters, ("batch", 1, 6, 6))

    plan = Plan(Graph.parse(source), INT8)
    assert float_layers(plan) == ("conv", "head")
    observations = {"observation": np.ones((4, 1, 6, 6), np.float32)}
    first, middle, last = emission(plan, random_parameters(source, 0), observations).layers
    assert "int8-static" in first.reason
    assert (middle.reason, last.reason) == ("", "last layer")
    assert operators(source) == ["Conv", "Flatten", "DynamicQuantizeMatMul", "Gemm"]


def test_a_product_that_is_read_twice_keeps_its_add() -> None:
    middle = [
        helper.make_node("MatMul", ["h", "middle.weight"], ["product"]),
        helper.make_node("Add", ["product", "middle.bias"], ["sum"]),
        helper.make_node("Mul", ["sum", "product"], ["m"]),
    ]
    source = three_layers(middle, [8, 6])
    parameters, observations = random_parameters(source, 3), random_observations()
    graph = Graph.parse(source)

    assert operators(source) == ["MatMul", "DynamicQuantizeMatMul", "Add", "Mul", "MatMul"]
    expected = fp32_outputs(graph, parameters, observations)
    outputs = outputs_of(emitted(Plan(graph, INT8), parameters), observations)
    assert np.abs(outputs - expected).max() < 0.05 * np.ptp(expected)


def test_channels_have_scales_of_their_own_at_run_time() -> None:
    source = mlp(16, 16)
    parameters, observations = random_parameters(source, 4), random_observations(128)
    # Rows whose magnitudes differ by a million. One common scale would lose the small rows.
    parameters["layers.1.weight"][:8] *= 1e-3
    parameters["layers.1.bias"][:8] *= 1e-3
    parameters["layers.1.weight"][3] = 0
    parameters["layers.2.weight"][:, :8] *= 1e3
    graph = Graph.parse(source)

    plan = Plan(graph, INT8)
    outputs = outputs_of(emitted(plan, parameters), observations)

    assert emission(plan, parameters).layers[1].weights == INT8_PER_CHANNEL
    expected = fp32_outputs(graph, parameters, observations)
    assert np.abs(outputs - expected).max() < 0.03 * np.ptp(expected)


def test_a_bigger_net_has_a_quarter_of_the_bytes() -> None:
    source = mlp(256, 256, 256)
    parameters = random_parameters(source, 5)
    graph = Graph.parse(source)

    int8, fp32 = (emitted(Plan(graph, scheme), parameters) for scheme in (INT8, FP32))

    assert len(int8) < 0.3 * len(fp32)


@pytest.mark.parametrize(
    ("low", "high", "scale", "zero_point"),
    [
        (0.0, 255.0, 1.0, 0),
        (-255.0, -10.0, 1.0, 255),
        (3.0, 255.0, 1.0, 0),
        (-100.5, 154.5, 1.0, 100),
        (-101.5, 153.5, 1.0, 102),
        (0.0, 0.0, 1.0, 0),
        (-1e-45, 1e-45, 1.0, 0),
        (-1.0, 3.0, np.float32(4) / np.float32(255), 64),
    ],
)
def test_the_grid_that_learners_train_with_covers_the_range_and_zero(
    low: float, high: float, scale: float, zero_point: int
) -> None:
    assert dynamic_grid(low, high) == (float(scale), zero_point)
