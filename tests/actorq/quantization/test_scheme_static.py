"""int8-static: which tensors are uint8, where they begin and end, and what is exact."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from actorq.domain.policy import PolicyGraph
from actorq.quantization.calibration import Observed, Range, Statistic
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options, scheme_named
from actorq.quantization.schemes.base import Plan
from actorq.quantization.schemes.int8_static import activation_scale
from tests.quantizer_service.policy_graphs import GRAPHS, Tensors, policy_graph
from tests.quantizer_service.policy_runs import (
    emission,
    emitted,
    float_layers,
    outputs_of,
    random_inputs,
    random_parameters,
    reference_of,
    statistics_of,
)


def static(source: PolicyGraph, **options: object) -> Plan:
    return Plan(Graph.parse(source), scheme_named("int8-static"), Options(**options))  # type: ignore[arg-type]


def operators(plan: Plan) -> list[str]:
    model = emitted(plan, random_parameters(plan.graph.source, 0))
    return [node.op_type for node in onnx.ModelProto.FromString(model).graph.node]


def ranges_of(plan: Plan) -> list[str]:
    return [name for name, statistic in plan.observed if statistic is Statistic.RANGE]


def constants(model: bytes) -> Tensors:
    body = onnx.ModelProto.FromString(model).graph
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in body.initializer}


def test_between_quantized_layers_all_is_uint8_and_relu_is_gone() -> None:
    plan = static(GRAPHS["mlp"])

    assert operators(plan) == ["Gemm", "Relu", "QuantizeLinear", "QGemm", "QGemm", "Relu", "Gemm"]
    # The range of a hidden layer is the range after its Relu.
    assert ranges_of(plan) == ["relu_0", "relu_1"]


def test_uses_uint8_frames_unchanged() -> None:
    plan = static(GRAPHS["nature cnn"])

    assert operators(plan) == ["QLinearConv", "QLinearConv", "QLinearConv", "Flatten", "QGemm", "Relu", "Gemm"]
    assert float_layers(plan) == ("head",)
    held = constants(emitted(plan, random_parameters(GRAPHS["nature cnn"], 1)))
    assert held["r0:scale"] == np.float32(1 / 255)
    assert held["r0:zero_point"] == 0


@pytest.mark.parametrize(
    ("scaling", "constant", "scale"),
    [("Div", 255.0, 1 / 255), ("Mul", 0.5, 0.5), ("Div", -1.0, None), ("Mul", 0.0, None), ("Sub", 1.0, None)],
)
def test_only_a_positive_factor_keeps_frames_exact(scaling: str, constant: float, scale: float | None) -> None:
    nodes = [
        helper.make_node("Transpose", ["observation"], ["channels_first"], perm=[0, 3, 1, 2]),
        helper.make_node("Cast", ["channels_first"], ["float"], to=TensorProto.FLOAT),
        helper.make_node(scaling, ["float", "constant"], ["x"]),
        helper.make_node("Conv", ["x", "c.weight"], ["c"]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Gemm", ["f", "head.weight"], ["q_values"], transB=1),
    ]
    shapes = {"c.weight": [4, 3, 3, 3], "head.weight": [3, 4 * 6 * 6]}
    source = policy_graph(
        nodes, shapes, ("batch", 8, 8, 3), pixels=True, constants={"constant": np.array(constant, np.float32)}
    )
    plan = static(source)

    if scale is None:
        assert float_layers(plan) == ("c", "head")
        return
    assert operators(plan) == ["Transpose", "QLinearConv", "Flatten", "DequantizeLinear", "Gemm"]
    assert constants(emitted(plan, random_parameters(source, 1)))["x:scale"] == np.float32(scale)
    parameters, inputs = random_parameters(source, 2), random_inputs(plan.graph)
    (expected,) = reference_of(plan.graph).run(parameters, inputs).values()
    assert np.abs(outputs_of(emitted(plan, parameters, inputs), inputs) - expected).max() < 0.02 * np.ptp(expected)


def test_keeps_a_float_copy_of_frames_for_other_readers() -> None:
    nodes = [
        helper.make_node("Cast", ["observation"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Gemm", ["x", "a.weight"], ["a"], transB=1),
        helper.make_node("Concat", ["a", "x"], ["joined"], axis=1),
        helper.make_node("Gemm", ["joined", "b.weight"], ["q_values"], transB=1),
    ]
    source = policy_graph(nodes, {"a.weight": [6, 4], "b.weight": [3, 10]}, ("batch", 4), pixels=True)
    plan = static(source)

    assert operators(plan) == ["Cast", "QGemm", "Concat", "Gemm"]
    parameters, inputs = random_parameters(source, 1), random_inputs(plan.graph)
    (expected,) = reference_of(plan.graph).run(parameters, inputs).values()
    assert np.abs(outputs_of(emitted(plan, parameters, inputs), inputs) - expected).max() < 0.01 * np.ptp(expected)


def test_a_layer_whose_output_is_also_an_output_of_the_policy_is_read_in_float() -> None:
    # "br" is an output and also the input of the next layer.
    assert operators(static(GRAPHS["two outputs"])) == [
        *("Gemm", "Relu", "QuantizeLinear", "QGemm", "Relu", "QuantizeLinear", "QGemm", "Relu", "Gemm", "Gemm")
    ]


def test_a_convolution_whose_output_is_read_in_float_is_converted() -> None:
    plan = static(GRAPHS["pooled"], keep_float=frozenset({"c"}))

    assert operators(plan) == [
        *("Conv", "Relu", "MaxPool", "QuantizeLinear", "QLinearConv", "MaxPool", "Reshape", "DequantizeLinear"),
        *("Gemm", "Gemm"),
    ]


def test_values_stay_uint8_on_all_paths_between_quantized_layers() -> None:
    nodes = [
        helper.make_node("Conv", ["observation", "a.weight", "a.bias"], ["a"]),
        helper.make_node("Relu", ["a"], ["x"]),
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "b.weight"], ["b"], transB=1),
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["g"]),
        helper.make_node("Gemm", ["g", "c.weight"], ["c"], transB=1),
        helper.make_node("Add", ["b", "c"], ["q_values"]),
    ]
    parameters = {"a.weight": [8, 2, 3, 3], "a.bias": [8], "b.weight": [3, 8 * 16], "c.weight": [3, 8 * 4]}
    source = policy_graph(nodes, parameters, ("batch", 2, 6, 6))
    plan = static(source, ends=True)

    assert operators(plan) == [
        "QuantizeLinear",
        "QLinearConv",
        "Flatten",
        "QGemm",
        "MaxPool",
        "Flatten",
        "QGemm",
        "Add",
    ]
    arrays, inputs = random_parameters(source, 1), random_inputs(plan.graph, 64)
    (expected,) = reference_of(plan.graph).run(arrays, inputs).values()
    assert np.abs(outputs_of(emitted(plan, arrays, inputs), inputs) - expected).max() < 0.03 * np.ptp(expected)


@pytest.mark.parametrize(
    "attributes",
    [
        {"value_float": 255.0},
        {"value": numpy_helper.from_array(np.array([255], np.float32))},
        {"value_floats": [255.0]},
    ],
    ids=str,
)
def test_frames_may_be_divided_by_a_constant_node(attributes: dict[str, Any]) -> None:
    nodes = [
        helper.make_node("Constant", [], ["white"], **attributes),
        helper.make_node("Cast", ["observation"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["float", "white"], ["x"]),
        helper.make_node("Gemm", ["x", "head.weight"], ["q_values"], transB=1),
    ]
    source = policy_graph(nodes, {"head.weight": [3, 4]}, ("batch", 4), pixels=True)

    model = emitted(static(source, ends=True), random_parameters(source, 1))

    assert constants(model)["x:scale"] == np.float32(1 / 255)


def test_a_layer_on_more_than_two_dimensions_stays_in_float_with_the_reason() -> None:
    plan = static(GRAPHS["sequence"], ends=True)

    reasons = [layer.reason for layer in emission(plan, random_parameters(GRAPHS["sequence"], 0)).layers]
    assert ["3 dimensions" in reason for reason in reasons] == [True, True, False]
    assert reasons[-1] == ""


def scale_and_zero_point(seen: Range, bounds: Range = (-np.inf, np.inf)) -> tuple[float, int]:
    scale, zero_point = activation_scale(seen, bounds)
    return round(float(scale), 8), int(zero_point)


def test_ranges_hold_zero_and_have_a_margin() -> None:
    for seen, zero_point in (((0.0, 1.7), 0), ((1.0, 1.7), 0), ((-1.7, -1.0), 255), ((-0.34, 1.36), 51)):
        assert scale_and_zero_point(seen) == (0.01, zero_point)


def test_a_range_has_no_margin_beyond_the_bounds_of_the_activation() -> None:
    assert scale_and_zero_point((-0.2, 0.9), (-1.0, 1.0)) == (round(1.3 / 255, 8), 59)
    assert scale_and_zero_point((-0.9, 0.2), (-1.0, 1.0)) == (round(1.3 / 255, 8), 196)


@pytest.mark.parametrize("seen", [(0.0, 0.0), (0.0, 1e-44), (-1e-42, 0.0)])
def test_an_empty_range_has_a_scale(seen: Range) -> None:
    assert scale_and_zero_point(seen) == (1, 0)


def test_a_very_large_range_has_a_scale() -> None:
    scale, zero_point = activation_scale((-1e38, 3e38))

    assert np.isfinite(scale)
    assert zero_point == 64


def test_the_operator_before_a_layer_bounds_its_range() -> None:
    source = GRAPHS["d4pg"]
    plan = static(source)
    parameters = random_parameters(source, 0)
    seen = {Observed(name, Statistic.RANGE): np.array([-0.99, 5.0]) for name in ("h0", "h1")}

    held = constants(plan.emit(parameters, {**statistics_of(plan, parameters), **seen}, "run", 1).model)

    assert ranges_of(plan) == ["h0", "h1"]
    assert held["h0:scale"] == np.float32((1.0 + 1.0) / 255)
    assert held["h1:scale"] == np.float32((1.0 + 7.5) / 255)


def test_values_beyond_the_calibrated_range_are_clipped_not_wrapped() -> None:
    source = GRAPHS["mlp"]
    plan = static(source, ends=True)
    parameters = random_parameters(source, 3)
    model = emitted(plan, parameters)
    small, huge = random_inputs(plan.graph, 8, 4), random_inputs(plan.graph, 8, 4)
    huge["observation"] = np.where(small["observation"] > 0, 1e6, -1e6).astype(np.float32)
    held = constants(model)
    scale, zero_point = held["observation:scale"], np.float32(held["observation:zero_point"])
    edge = np.where(small["observation"] > 0, (255 - zero_point) * scale, -zero_point * scale).astype(np.float32)

    assert np.array_equal(outputs_of(model, huge), outputs_of(model, {"observation": edge}))


def test_a_bias_far_larger_than_its_weights_is_kept() -> None:
    source = GRAPHS["mlp"]
    parameters = random_parameters(source, 5)
    parameters["layers.1.weight"] *= np.float32(1e-12)
    parameters["layers.1.bias"] = np.linspace(-5, 5, 32).astype(np.float32)
    plan = static(source)
    inputs = random_inputs(plan.graph)
    (expected,) = reference_of(plan.graph).run(parameters, inputs).values()

    assert np.abs(outputs_of(emitted(plan, parameters), inputs) - expected).max() < 0.01 * np.abs(expected).max()
