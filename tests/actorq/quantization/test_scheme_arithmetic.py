"""ONNX Runtime's results match the formulas in the schemes' docstrings, bit for bit.

The learner's fake quantization is written from these formulas.
"""

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from actorq.domain.policy import INT8_PER_CHANNEL, INT8_PER_TENSOR, PolicyGraph
from actorq.quantization.emission.weights import quantize_int8
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options, scheme_named
from actorq.quantization.schemes.base import Plan
from actorq.quantization.schemes.int8_static import MARGIN
from tests.quantizer_service.policy_graphs import Tensors, policy_graph
from tests.quantizer_service.policy_runs import emitted, outputs_of, random_parameters

INPUTS, UNITS, ROWS = 300, 70, 33
FORMS = {INT8_PER_TENSOR: 1.0, INT8_PER_CHANNEL: 0.0}


def bare_layer() -> PolicyGraph:
    nodes = [helper.make_node("Gemm", ["observation", "l.weight", "l.bias"], ["q_values"], transB=1)]
    return policy_graph(nodes, {"l.weight": [UNITS, INPUTS], "l.bias": [UNITS]}, ("batch", INPUTS))


def two_layers() -> PolicyGraph:
    nodes = [
        helper.make_node("Gemm", ["observation", "l.weight", "l.bias"], ["z"], transB=1),
        helper.make_node("Relu", ["z"], ["h"]),
        helper.make_node("Gemm", ["h", "m.weight", "m.bias"], ["q_values"], transB=1),
    ]
    shapes = {"l.weight": [UNITS, INPUTS], "l.bias": [UNITS], "m.weight": [5, UNITS], "m.bias": [5]}
    return policy_graph(nodes, shapes, ("batch", INPUTS))


def batch(seed: int = 0) -> Tensors:
    rng = np.random.default_rng(seed)
    return {"observation": (3 * rng.standard_normal((ROWS, INPUTS)) + 0.5).astype(np.float32)}


def constants(model: bytes) -> Tensors:
    return {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.ModelProto.FromString(model).graph.initializer
    }


@pytest.mark.parametrize(("form", "error"), FORMS.items())
@pytest.mark.parametrize("shift", [0.0, 100.0, -100.0])
def test_int8_computes_its_documented_formulas(form: str, error: float, shift: float) -> None:
    source = bare_layer()
    parameters = random_parameters(source, 0)
    x = batch()["observation"] + np.float32(shift)
    plan = Plan(Graph.parse(source), scheme_named("int8"), Options(ends=True, per_tensor_error=error, compensate=False))

    weight = quantize_int8(parameters["l.weight"], error)
    low, high = min(np.float32(0), x.min()), max(np.float32(0), x.max())
    scale = (high - low) / np.float32(255)
    zero_point = np.rint(np.clip(np.float32(0) - low / scale, 0, 255))
    quantized = np.clip(np.rint(x / scale) + zero_point, 0, 255)
    sums = (quantized - zero_point).astype(np.int64) @ weight.values.T.astype(np.int64)
    expected = sums.astype(np.float32) * (scale * weight.scale) + parameters["l.bias"]

    assert weight.form == form
    assert np.array_equal(outputs_of(emitted(plan, parameters), {"observation": x}), expected)


def activation(low: float, high: float) -> tuple[np.float32, np.float32]:
    low, high = MARGIN * min(0.0, low), MARGIN * max(0.0, high)
    scale = np.float32((high - low) / 255)
    return scale, np.float32(np.rint(-low / float(scale)))


def int8_sums(
    quantized: NDArray[np.float32],
    zero_point: np.float32,
    scale: np.float32 | NDArray[np.float32],
    parameters: Tensors,
    layer: str,
    error: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """float32(acc), and s_x * s_W."""
    weight = quantize_int8(parameters[f"{layer}.weight"], error)
    product = scale * weight.scale
    bias = np.rint(parameters[f"{layer}.bias"] / product).astype(np.int64)
    sums = (quantized - zero_point).astype(np.int64) @ weight.values.T.astype(np.int64) + bias
    return sums.astype(np.float32), product


@pytest.mark.parametrize("error", FORMS.values(), ids=FORMS)
def test_int8_static_computes_its_documented_formulas(error: float) -> None:
    source = two_layers()
    parameters = random_parameters(source, 1)
    # Beyond the range of the calibration batch, so that values are clipped.
    calibration, x = batch(11), batch(12)["observation"] * np.float32(3)
    plan = Plan(
        Graph.parse(source), scheme_named("int8-static"), Options(ends=True, per_tensor_error=error, compensate=False)
    )
    model = emitted(plan, parameters, calibration)
    seen = calibration["observation"]
    hidden = np.maximum(seen @ parameters["l.weight"].T + parameters["l.bias"], 0)

    scale, zero_point = activation(seen.min(), seen.max())
    quantized = np.clip(np.rint(x / scale) + zero_point, 0, 255)
    sums, product = int8_sums(quantized, zero_point, scale, parameters, "l", error)
    # The range of a hidden layer is only as exact as the float arithmetic that computed it.
    held = constants(model)
    hidden_scale, hidden_zero_point = held["z:scale"], held["z:zero_point"]
    assert hidden_scale == pytest.approx(activation(0, hidden.max())[0], rel=1e-5)
    assert hidden_zero_point == 0
    quantized = np.clip(np.rint(sums * (product / hidden_scale)), 0, 255)
    sums, product = int8_sums(quantized, np.float32(0), hidden_scale, parameters, "m", error)

    assert quantized.max() == 255
    assert np.array_equal(outputs_of(model, {"observation": x}), sums * product)


@pytest.mark.parametrize("ends", [False, True])
def test_int8_weights_computes_with_exactly_the_dequantized_weights(ends: bool) -> None:
    source = bare_layer()
    parameters = random_parameters(source, 2)
    weight = quantize_int8(parameters["l.weight"])
    restored = {**parameters, "l.weight": weight.values * weight.scale[:, None]}
    plan = Plan(Graph.parse(source), scheme_named("int8-weights"), Options(ends=ends, compensate=False))
    fp32 = Plan(Graph.parse(source), scheme_named("fp32"))

    outputs = outputs_of(emitted(plan, parameters), batch())

    assert np.array_equal(outputs, outputs_of(emitted(fp32, restored), batch()))
