"""Signed and unsigned weights represent the same numbers. Conversion between them is lossless."""

from contextlib import suppress

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from actorq.arithmetic import PROBES
from actorq.domain.policy import SIGNED, UNSIGNED
from actorq.errors import InvalidInputError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options, scheme_named
from actorq.quantization.schemes.base import Plan
from actorq.weightencoding import weight_encoding_of, with_weight_encoding
from tests.quantizer_service.policy_graphs import GRAPHS
from tests.quantizer_service.policy_runs import all_outputs_of, emission, random_inputs, random_parameters

PRODUCTS = {"DynamicQuantizeMatMul", "QGemm", "QLinearConv"}
EVERY_GRAPH = pytest.mark.parametrize("name", GRAPHS)


def emitted(name: str, scheme: str) -> tuple[Graph, bytes]:
    source = GRAPHS[name]
    plan = Plan(Graph.parse(source), scheme_named(scheme), Options(ends=True))
    return plan.graph, emission(plan, random_parameters(source, 1)).model


@EVERY_GRAPH
@pytest.mark.parametrize("scheme", ["int8", "int8-static"])
def test_unsigned_weights_give_the_same_outputs_and_go_back_to_the_same_bytes(name: str, scheme: str) -> None:
    graph, signed = emitted(name, scheme)
    if not PRODUCTS & {node.op_type for node in onnx.load_from_string(signed).graph.node}:
        assert weight_encoding_of(signed) is None
        assert with_weight_encoding(signed, UNSIGNED) is signed
        return
    unsigned = with_weight_encoding(signed, UNSIGNED)

    assert (weight_encoding_of(signed), weight_encoding_of(unsigned)) == (SIGNED, UNSIGNED)
    assert with_weight_encoding(unsigned, SIGNED) == signed
    assert with_weight_encoding(unsigned, UNSIGNED) is unsigned
    inputs = random_inputs(graph, 8)
    for one, other in zip(all_outputs_of(signed, inputs), all_outputs_of(unsigned, inputs), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("scheme", ["fp32", "int8-weights", "int4"])
def test_other_schemes_have_no_encoding(scheme: str) -> None:
    _, model = emitted("mlp", scheme)
    assert weight_encoding_of(model) is None
    assert with_weight_encoding(model, UNSIGNED) is model


def test_each_weight_is_128_higher_and_its_zero_point_is_128() -> None:
    _, signed = emitted("mlp", "int8")
    parsed, changed = (onnx.load_from_string(each) for each in (signed, with_weight_encoding(signed, UNSIGNED)))
    before, after = (
        {each.name: numpy_helper.to_array(each) for each in of.graph.initializer} for of in (parsed, changed)
    )
    flipped = [name for name, array in before.items() if array.dtype == np.int8]
    assert flipped
    for name in flipped:
        assert after[name].dtype == np.uint8
        assert np.array_equal(after[name].astype(int), before[name].astype(int) + 128)
    (added,) = after.keys() - before.keys()
    assert np.array_equal(after[added], np.array(128, np.uint8))
    assert after[added].dtype == np.uint8


def test_weights_that_are_no_constants_of_one_type_have_no_other_encoding() -> None:
    node = helper.make_node("DynamicQuantizeMatMul", ["x", "w", "s", "", ""], ["y"], domain="com.microsoft")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    weights = helper.make_tensor_value_info("w", TensorProto.INT8, None)
    graph = helper.make_graph([node], "graph", [values[0], weights], values[1:])
    model = helper.make_model(graph).SerializeToString()
    assert weight_encoding_of(model) is None
    with pytest.raises(InvalidInputError, match=r"model.*int8.*constant"):
        with_weight_encoding(model, UNSIGNED)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_have_no_encoding(data: bytes) -> None:
    with suppress(InvalidInputError):
        assert with_weight_encoding(data, UNSIGNED) is data


@given(st.integers(0, 20_000), st.integers(0, 255))
def test_a_damaged_model_never_raises_another_error(place: int, value: int) -> None:
    model = bytearray((PROBES / "signed.onnx").read_bytes())
    model[place % len(model)] = value
    with suppress(InvalidInputError):
        with_weight_encoding(bytes(model), UNSIGNED)
