"""The standard form computes what ONNX Runtime computes, by operators of the standard alone."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from actorq.domain.policy import WEIGHT_ENCODINGS
from actorq.errors import InvalidInputError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import SCHEMES, Options, scheme_named
from actorq.quantization.schemes.base import Plan
from actorq.quantization.standard_form import opset_of, standard_form
from actorq.weightencoding import with_weight_encoding
from tests.builders.processors import exact_here
from tests.quantizer_service.policy_graphs import GRAPHS, Tensors, mlp
from tests.quantizer_service.policy_runs import all_outputs_of, emitted, random_inputs, random_parameters

# Share of the largest output. ONNX Runtime's int4 product has 8-bit activations, and this form has float32 activations.
# The standard has no integer LSTM, so this form has float32 activations there, too.
TOLERANCE = {"int4": 0.02, "int8 lstm": 0.01}


def emitted_as(scheme: str, name: str = "mlp", ends: bool = True) -> tuple[bytes, Tensors]:
    """A policy, and observations for it."""
    graph = Graph.parse(GRAPHS[name])
    plan = Plan(graph, scheme_named(scheme), Options(ends=ends))
    return emitted(plan, random_parameters(GRAPHS[name], 1), random_inputs(graph, 256)), random_inputs(graph, 16, 5)


def plainly(model: bytes, feeds: Tensors) -> list[NDArray[np.float32]]:
    """Every output in ONNX Runtime without any fusion of nodes."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # More threads would only wait in a loop.
    options.intra_op_num_threads = 1
    outputs: list[NDArray[np.float32]] = ort.InferenceSession(model, options).run(None, feeds)
    return outputs


@pytest.mark.parametrize("ends", [False, True], ids=["ends in float", "ends quantized"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", GRAPHS)
def test_the_standard_form_computes_the_outputs_of_the_stored_policy(name: str, scheme: str, ends: bool) -> None:
    model, feeds = emitted_as(scheme, name, ends)
    stored, reference = all_outputs_of(model, feeds), ReferenceEvaluator(standard_form(model)).run(None, feeds)
    # ONNX Runtime computes products of the other encoding wrongly on some processors.
    standard = standard_form(exact_here(model))
    for output, expected, again in zip(reference, stored, plainly(standard, feeds), strict=True):
        largest = float(np.abs(expected).max())
        np.testing.assert_allclose(output, again, rtol=0, atol=2e-6 * largest)
        tolerance = TOLERANCE.get(f"{scheme} {name}", TOLERANCE.get(scheme, 2e-6))
        np.testing.assert_allclose(output, expected, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize("weight_encoding", WEIGHT_ENCODINGS)
@pytest.mark.parametrize("scheme", ["int8", "int8-static"])
@pytest.mark.parametrize("name", ["mlp", "nature cnn", "lstm"])
def test_both_encodings_of_weights_are_the_same_numbers(name: str, scheme: str, weight_encoding: str) -> None:
    model, feeds = emitted_as(scheme, name)
    other = standard_form(with_weight_encoding(model, weight_encoding))
    outputs = [ReferenceEvaluator(each).run(None, feeds) for each in (standard_form(model), other)]
    for expected, output in zip(*outputs, strict=True):
        np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_standard_form_has_standard_operators_and_the_same_names(scheme: str) -> None:
    model, _ = emitted_as(scheme)
    before, after = onnx.ModelProto.FromString(model), onnx.ModelProto.FromString(standard_form(model))
    assert {(entry.domain, entry.version) for entry in after.opset_import} == {("", 21 if scheme == "int4" else 20)}
    assert {node.domain for node in after.graph.node} == {""}
    for field in ("input", "output"):
        names = [[value.name for value in getattr(each.graph, field)] for each in (before, after)]
        assert names[0] == names[1]
        assert all(value.type.tensor_type.shape.dim[0].dim_param == "batch" for value in getattr(after.graph, field))
    assert after.metadata_props == before.metadata_props


@pytest.mark.parametrize(
    ("scheme", "operators"),
    [
        ("int8", {"DynamicQuantizeLinear", "MatMulInteger"}),
        ("int8-static", {"QuantizeLinear", "DequantizeLinear"}),
        ("int8-weights", {"DequantizeLinear"}),
        ("int4", {"DequantizeLinear"}),
    ],
)
def test_weights_stay_integers(scheme: str, operators: set[str]) -> None:
    model = onnx.ModelProto.FromString(standard_form(emitted_as(scheme)[0]))
    assert operators <= {node.op_type for node in model.graph.node}
    integers = TensorProto.INT4 if scheme == "int4" else TensorProto.INT8
    weights = {
        tuple(each.dims) for each in model.graph.initializer if each.data_type == integers and len(each.dims) == 2
    }
    floats = {tuple(each.dims) for each in model.graph.initializer if each.data_type == TensorProto.FLOAT}
    assert (32, 32) in weights
    assert (32, 32) not in floats


def test_another_opset_can_be_chosen() -> None:
    model, feeds = emitted_as("fp32")
    older = standard_form(model, 17)
    assert opset_of(older) == onnx.ModelProto.FromString(older).opset_import[0].version == 17
    np.testing.assert_allclose(plainly(older, feeds)[0], all_outputs_of(model, feeds)[0], rtol=0, atol=1e-6)


def test_a_refused_opset_is_answered_with_the_oldest_that_works() -> None:
    model, feeds = emitted_as("int8")
    with pytest.raises(InvalidInputError, match="choose one from 14 to ") as caught:
        standard_form(model, 5)
    assert "opset 5" in str(caught.value)
    assert plainly(standard_form(model, 14), feeds)
    with pytest.raises(InvalidInputError, match="opset 13"):
        standard_form(model, 13)


def test_an_opset_that_lacks_an_operator_is_refused() -> None:
    model, _ = emitted_as("int4")
    with pytest.raises(InvalidInputError, match="opset 17"):
        standard_form(model, 17)


def test_an_operator_of_another_domain_is_refused() -> None:
    source = Graph.parse(mlp(8)).model
    model = onnx.ModelProto()
    model.CopyFrom(source)
    model.graph.node.append(helper.make_node("FastGelu", ["relu_0"], ["more"], domain="com.microsoft"))
    with pytest.raises(InvalidInputError, match=r"FastGelu.*com\.microsoft"):
        standard_form(model.SerializeToString())
