"""int8 computes an LSTM with integers, and one step of a GRU."""

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from actorq.domain.policy import INT8_PER_CHANNEL, INT8_PER_TENSOR, SIGNED, UNSIGNED, PolicyGraph
from actorq.quantization.graph import Graph
from actorq.quantization.schemes.base import Emission, Options, Plan
from actorq.quantization.schemes.int8 import INT8
from actorq.quantization.standard_form import standard_form
from actorq.weightencoding import weight_encoding_of, with_weight_encoding
from tests.quantizer_service.policy_graphs import policy_graph, recurrent
from tests.quantizer_service.policy_runs import (
    all_outputs_of,
    emission,
    float_layers,
    random_inputs,
    random_parameters,
)


def both_directions(width: int = 16) -> PolicyGraph:
    """An LSTM in both directions over the steps of an observation float32[B, 5, 8]."""
    nodes = [
        helper.make_node("Transpose", ["observation"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["steps", "w", "r", "b"], ["", "h"], hidden_size=width, direction="bidirectional"),
        helper.make_node("Transpose", ["h"], ["rows"], perm=[1, 0, 2]),
        helper.make_node("Flatten", ["rows"], ["flat"]),
        helper.make_node("MatMul", ["flat", "head"], ["q_values"]),
    ]
    parameters = {"w": [2, 4 * width, 8], "r": [2, 4 * width, width], "b": [2, 8 * width], "head": [2 * width, 3]}
    return policy_graph(nodes, parameters, ("batch", 5, 8))


def in_int8(source: PolicyGraph, options: Options | None = None) -> tuple[Emission, dict[str, NDArray[np.float32]]]:
    parameters = random_parameters(source, 1)
    return emission(Plan(Graph.parse(source), INT8, options), parameters), parameters


def operators(model: bytes) -> set[str]:
    return {node.op_type for node in onnx.ModelProto.FromString(model).graph.node}


@pytest.mark.parametrize("source", [recurrent("LSTM"), both_directions()], ids=["state", "both directions"])
@pytest.mark.parametrize("per_tensor_error", [0.0, 1.0])
def test_both_weights_of_an_lstm_are_integers_also_as_first_layer(source: PolicyGraph, per_tensor_error: float) -> None:
    made, parameters = in_int8(source, Options(per_tensor_error=per_tensor_error))

    assert "DynamicQuantizeLSTM" in operators(made.model)
    forms = {layer.name: layer.weights for layer in made.layers}
    assert {forms["w"], forms["r"]} == {INT8_PER_TENSOR if per_tensor_error else INT8_PER_CHANNEL}
    feeds = random_inputs(Graph.parse(source), 6)
    expected = all_outputs_of(source.model, {**feeds, **parameters})
    # Exact on every processor.
    for found, fp32 in zip(all_outputs_of(with_weight_encoding(made.model, UNSIGNED), feeds), expected, strict=True):
        assert 0 < np.abs(found - fp32).max() < 0.05 * np.ptp(fp32)


def test_converts_the_weight_encoding_of_an_lstm_and_back() -> None:
    made, _ = in_int8(recurrent("LSTM"))

    unsigned = with_weight_encoding(made.model, UNSIGNED)

    assert (weight_encoding_of(made.model), weight_encoding_of(unsigned)) == (SIGNED, UNSIGNED)
    assert with_weight_encoding(unsigned, SIGNED) == made.model
    arrays = [
        {t.name: numpy_helper.to_array(t) for t in onnx.ModelProto.FromString(m).graph.initializer}
        for m in (made.model, unsigned)
    ]
    for name in ("w:int", "r:int", "w:zero_point", "r:zero_point"):
        np.testing.assert_array_equal(arrays[0][name].astype(int) + 128, arrays[1][name].astype(int))


@pytest.mark.parametrize("kept", ["w", "r"])
def test_where_one_weight_must_stay_in_float_both_do(kept: str) -> None:
    plan = Plan(Graph.parse(recurrent("LSTM")), INT8, Options(keep_float=frozenset({kept})))

    assert {"w", "r"} <= set(float_layers(plan))


def gru(width: int = 32, output: str = "h", bias: bool = True) -> PolicyGraph:
    """A GRU over one step, as torch exports it. output: whether the head reads the state or the sequence."""
    source = recurrent("GRU", width, linear_before_reset=1)
    model = onnx.ModelProto.FromString(source.model)
    (node,) = [node for node in model.graph.node if node.op_type == "GRU"]
    if bias:
        node.input[3] = "b"
        model.graph.input.append(helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [1, 6 * width]))
    if output == "sequence":
        node.output[0] = "sequence"
        (features,) = [node for node in model.graph.node if list(node.output) == ["features"]]
        features.input[:] = ["sequence", "both"]
        model.graph.initializer.append(numpy_helper.from_array(np.array([0, 1]), "both"))
    return PolicyGraph(model.SerializeToString(), source.signature)


@pytest.mark.parametrize("output", ["h", "sequence"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("per_tensor_error", [0.0, 1.0])
def test_quantizes_a_gru_of_one_step(output: str, bias: bool, per_tensor_error: float) -> None:
    source = gru(output=output, bias=bias)

    made, parameters = in_int8(source, Options(per_tensor_error=per_tensor_error))

    assert "GRU" not in operators(made.model)
    forms = {layer.name: layer.weights for layer in made.layers}
    assert {forms["w"], forms["r"]} == {INT8_PER_TENSOR if per_tensor_error else INT8_PER_CHANNEL}
    feeds = random_inputs(Graph.parse(source), 6)
    expected = all_outputs_of(source.model, {**feeds, **parameters})
    exact = with_weight_encoding(made.model, UNSIGNED)
    outputs = (all_outputs_of(model, feeds) for model in (exact, standard_form(exact)))
    for found, same, fp32 in zip(*outputs, expected, strict=True):
        assert 0 < np.abs(found - fp32).max() < 0.05 * np.ptp(fp32)
        np.testing.assert_allclose(same, found, atol=1e-5)


ONE_STEP = "GRU of one step"


def changed(**attributes: Any) -> PolicyGraph:
    return recurrent("GRU", **{"linear_before_reset": 1, **attributes})


def without_state() -> PolicyGraph:
    """A GRU that starts with a new state at each step."""
    model = onnx.ModelProto.FromString(changed().model)
    (node,) = [node for node in model.graph.node if node.op_type == "GRU"]
    del node.input[5:]
    return PolicyGraph(model.SerializeToString(), changed().signature)


def over_steps() -> PolicyGraph:
    """A GRU over the five steps of an observation."""
    nodes = [
        helper.make_node("Transpose", ["observation"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("Transpose", ["state"], ["turned"], perm=[1, 0, 2]),
        helper.make_node("GRU", ["steps", "w", "r", "", "", "turned"], ["", "h"], hidden_size=8, linear_before_reset=1),
        helper.make_node("Squeeze", ["h", "first"], ["rows"]),
        helper.make_node("MatMul", ["rows", "head"], ["q_values"]),
    ]
    parameters = {"w": [1, 24, 8], "r": [1, 24, 8], "head": [8, 3]}
    return policy_graph(
        nodes, parameters, ("batch", 5, 8), more_inputs={"state": ["batch", 1, 8]}, constants={"first": np.array([0])}
    )


@pytest.mark.parametrize(
    ("source", "fact"),
    [
        (recurrent("RNN"), "int8-weights"),
        (changed(linear_before_reset=0), ONE_STEP),
        (over_steps(), ONE_STEP),
        (without_state(), ONE_STEP),
        (changed(clip=5.0), ONE_STEP),
        (changed(activations=["Sigmoid", "Relu"]), ONE_STEP),
        (recurrent("LSTM", layout=1), "layout=1"),
    ],
    ids=["RNN", "another form", "five steps", "no state", "clipped", "other activations", "batch first"],
)
def test_other_recurrent_layers_stay_in_float(source: PolicyGraph, fact: str) -> None:
    made, _ = in_int8(source, Options(compensate=False))

    reasons = {layer.name: layer.reason for layer in made.layers}
    assert reasons["w"] == reasons["r"]
    assert fact in reasons["w"]


def test_an_lstm_with_a_shared_weight_stays_in_float() -> None:
    source = recurrent("LSTM")
    model = onnx.ModelProto.FromString(source.model)
    (lstm,) = [node for node in model.graph.node if node.op_type == "LSTM"]
    lstm.input[2] = "w"
    graph = Graph.parse(PolicyGraph(model.SerializeToString(), source.signature))

    reasons = {
        layer.name: layer.reason for layer in emission(Plan(graph, INT8), random_parameters(graph.source, 1)).layers
    }

    assert "shared" in reasons["w"]


@pytest.mark.parametrize("per_tensor_error", [0.0, 1.0])
@pytest.mark.parametrize("encoding", [SIGNED, UNSIGNED])
def test_the_standard_form_of_an_lstm_computes_in_float_with_the_same_weights(
    encoding: str, per_tensor_error: float
) -> None:
    source = both_directions()
    made, parameters = in_int8(source, Options(per_tensor_error=per_tensor_error))

    form = standard_form(with_weight_encoding(made.model, encoding))

    assert "LSTM" in operators(form)
    feeds = random_inputs(Graph.parse(source), 6)
    (expected,), (found,) = all_outputs_of(source.model, {**feeds, **parameters}), all_outputs_of(form, feeds)
    assert 0 < np.abs(found - expected).max() < 0.05 * np.ptp(expected)
