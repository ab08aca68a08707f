"""Layers that are stored as int8 and computed in float."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from actorq.domain.policy import FLOAT32, INT8_PER_CHANNEL, INT8_PER_TENSOR, PolicyGraph
from actorq.quantization.emission.weights import quantize_int8
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options, scheme_named
from actorq.quantization.schemes.base import Plan
from tests.quantizer_service.policy_graphs import GRAPHS
from tests.quantizer_service.policy_runs import (
    emission,
    emitted,
    outputs_of,
    random_inputs,
    random_parameters,
    statistics_of,
)

SCHEMES = ("int8", "int8-static", "int4")


def _plan(source: PolicyGraph, scheme: str, **options: object) -> Plan:
    return Plan(Graph.parse(source), scheme_named(scheme), Options(**options))  # type: ignore[arg-type]


def _floats(model: bytes) -> set[str]:
    """The float32 matrices of a model."""
    tensors = onnx.load_from_string(model).graph.initializer
    return {
        each.name
        for each in tensors
        if each.data_type == onnx.TensorProto.FLOAT and sum(size > 1 for size in each.dims) > 1
    }


@pytest.mark.parametrize("per_tensor_error", [0.0, 1.0])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_stored_layer_computes_with_its_rounded_weights(name: str, scheme: str, per_tensor_error: float) -> None:
    source, parameters = GRAPHS[name], random_parameters(GRAPHS[name], 0)
    options = {"per_tensor_error": per_tensor_error, "compensate": False}
    plain = _plan(source, scheme, **options)
    in_float = {layer.name for layer in emission(plain, parameters).layers if layer.weights == FLOAT32}
    rounded = dict(parameters)
    for layer in reversed(plain.graph.layers):
        if layer.name in in_float:
            weight = quantize_int8(parameters[layer.weight].swapaxes(0, layer.channels), per_tensor_error)
            scale = weight.scale.reshape(-1, *[1] * (weight.values.ndim - 1))
            rounded[layer.weight] = (weight.values * scale).swapaxes(0, layer.channels)

    stored = emitted(_plan(source, scheme, int8_storage=True, **options), parameters)

    inputs = random_inputs(plain.graph, 64, 1)
    expected = plain.emit(rounded, statistics_of(plain, parameters), "run", 1).model
    assert np.allclose(outputs_of(stored, inputs), outputs_of(expected, inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_layers_that_the_gate_keeps_in_float_are_stored_as_float(scheme: str) -> None:
    source = GRAPHS["mlp"]
    parameters = random_parameters(source, 0)
    layers = [layer.name for layer in Graph.parse(source).layers]
    assert not _floats(emitted(_plan(source, scheme, int8_storage=True), parameters))
    kept = _plan(source, scheme, int8_storage=True, keep_float=frozenset(layers[:2]))
    assert len(_floats(emitted(kept, parameters))) == 2
    assert len(_floats(emitted(_plan(source, "fp32", int8_storage=True), parameters))) == len(layers)


@pytest.mark.parametrize(("int8_storage", "form"), [(False, INT8_PER_CHANNEL), (True, INT8_PER_TENSOR)])
def test_int8_weights_uses_one_scale_only_in_small_files(int8_storage: bool, form: str) -> None:
    source, inputs = GRAPHS["mlp"], random_inputs(Graph.parse(GRAPHS["mlp"]), 64, 1)
    parameters = random_parameters(source, 0)
    made = emission(_plan(source, "int8-weights", int8_storage=int8_storage, per_tensor_error=1.0), parameters)
    assert {layer.weights for layer in made.layers} == {form}
    floats = outputs_of(emitted(_plan(source, "fp32"), parameters), inputs)
    assert np.abs(outputs_of(made.model, inputs) - floats).max() < 0.05 * np.ptp(floats)


def test_the_stored_integers_are_one_byte_each() -> None:
    source = GRAPHS["mlp"]
    model = onnx.load_from_string(emitted(_plan(source, "int8", int8_storage=True), random_parameters(source, 0)))
    stored = [numpy_helper.to_array(each) for each in model.graph.initializer if each.name.endswith(":stored")]
    assert stored
    assert all(each.dtype == np.int8 for each in stored)
