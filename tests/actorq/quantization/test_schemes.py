"""Requirements for every scheme, tested with each shape of policy."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from actorq.domain.policy import FLOAT32, INT4_PER_BLOCK, INT8_PER_CHANNEL, INT8_PER_TENSOR, PolicyGraph
from actorq.domain.signature import METADATA, Signature
from actorq.errors import InvalidInputError, NotFoundError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import SCHEMES, Options, scheme_named
from actorq.quantization.schemes.base import Plan
from quantizer_service.emission.inference import open_session
from tests.quantizer_service.policy_graphs import GRAPHS
from tests.quantizer_service.policy_runs import (
    all_outputs_of,
    emission,
    emitted,
    fp32_outputs,
    outputs_of,
    random_inputs,
    random_parameters,
    reference_of,
)

# Largest |emitted - fp32| relative to the range of the FP32 outputs, for the graphs of policy_graphs with random
# weights and observations outside the calibration batch. Each bound is about 1.5 times the worst measured error.
RELATIVE_ERROR_BOUND = {"fp32": 1e-5, "int8-weights": 0.025, "int8": 0.04, "int8-static": 0.06, "int4": 0.25}
FORMS = {
    "fp32": {FLOAT32},
    "int8-weights": {FLOAT32, INT8_PER_CHANNEL},
    "int8": {FLOAT32, INT8_PER_CHANNEL, INT8_PER_TENSOR},
    "int8-static": {FLOAT32, INT8_PER_CHANNEL, INT8_PER_TENSOR},
    "int4": {FLOAT32, INT4_PER_BLOCK},
}


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=GRAPHS)
def source(request: pytest.FixtureRequest) -> PolicyGraph:
    return GRAPHS[request.param]


@pytest.fixture(params=[True, False], ids=["compensated", "to nearest"])
def compensate(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def plan(scheme: str, source: PolicyGraph) -> Plan:
    return Plan(Graph.parse(source), scheme_named(scheme))


@pytest.fixture
def rounding_plan(scheme: str, source: PolicyGraph, compensate: bool) -> Plan:
    """Options for tests that depend on the rounding of weights."""
    return Plan(Graph.parse(source), scheme_named(scheme), Options(compensate=compensate))


def test_every_scheme_has_an_error_bound_and_forms() -> None:
    assert RELATIVE_ERROR_BOUND.keys() == FORMS.keys() == SCHEMES.keys()


def test_an_emitted_model_is_valid_and_has_only_data_inputs(plan: Plan, source: PolicyGraph) -> None:
    model = onnx.ModelProto.FromString(emitted(plan, random_parameters(source, 1)))

    onnx.checker.check_model(model)
    assert tuple(value.name for value in model.graph.input) == tuple(port.name for port in source.signature.inputs)
    before = onnx.ModelProto.FromString(source.model)
    assert list(model.graph.output) == list(before.graph.output)


@pytest.mark.parametrize("ends", [False, True])
def test_outputs_stay_close_to_fp32(scheme: str, source: PolicyGraph, ends: bool, compensate: bool) -> None:
    graph = Graph.parse(source)
    plan = Plan(graph, scheme_named(scheme), Options(ends=ends, compensate=compensate))
    parameters, inputs = random_parameters(source, 2), random_inputs(graph, 256, seed=1)
    expected = reference_of(graph).run(parameters, inputs).values()
    model = emitted(plan, parameters)

    # Also in sessions without any session options.
    for folded in (True, False):
        for got, wanted in zip(all_outputs_of(model, inputs, folded), expected, strict=True):
            assert np.abs(got.reshape(wanted.shape) - wanted).max() <= RELATIVE_ERROR_BOUND[scheme] * np.ptp(wanted)


def test_int8_weights_computes_in_float_only_with_the_option_of_sessions() -> None:
    source = GRAPHS["matmul"]
    graph, parameters = Graph.parse(source), random_parameters(source, 1)
    inputs = random_inputs(graph)
    model = emitted(Plan(graph, scheme_named("int8-weights"), Options(compensate=False)), parameters)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load_from_string(model).graph.initializer}
    weights = {name for name in parameters if f"{name}:int8" in stored}
    restored = {name: stored[f"{name}:int8"] * stored[f"{name}:scale"] for name in weights}
    expected = fp32_outputs(graph, parameters | restored, inputs)

    folded, default = (np.abs(all_outputs_of(model, inputs, option)[0] - expected).max() for option in (True, False))

    assert folded < 1e-6 * np.ptp(expected)
    # ONNX Runtime fuses MatMul and DequantizeLinear, and rounds activations.
    assert default > 1e-3 * np.ptp(expected)


def test_a_patched_plan_equals_one_from_scratch(rounding_plan: Plan, source: PolicyGraph) -> None:
    emitted(rounding_plan, random_parameters(source, 3), version=123456)
    parameters = random_parameters(source, 4)

    patched = emitted(rounding_plan, parameters, version=2)

    fresh = Plan(Graph.parse(source), scheme_named(rounding_plan.scheme), rounding_plan.options)
    assert patched == emitted(fresh, parameters, version=2)
    assert patched == emitted(rounding_plan, parameters, version=2)


def test_the_graph_that_was_published_is_left_alone(plan: Plan, source: PolicyGraph) -> None:
    emitted(plan, random_parameters(source, 5))

    assert plan.graph.model == onnx.ModelProto.FromString(source.model)


def test_the_metadata_names_run_version_scheme_and_signature(plan: Plan, source: PolicyGraph) -> None:
    model = onnx.ModelProto.FromString(emitted(plan, random_parameters(source, 6), version=42))

    metadata = {entry.key: entry.value for entry in model.metadata_props}
    signature = metadata.pop(METADATA)
    assert metadata == {"run_id": "run", "version": "42", "scheme": plan.scheme}
    assert Signature.from_text(signature) == source.signature


def test_every_layer_is_reported_once_with_its_form_or_the_reason(plan: Plan, source: PolicyGraph) -> None:
    parameters = random_parameters(source, 7)
    layers = emission(plan, parameters).layers

    matrices = [name.removesuffix(".weight") for name, array in parameters.items() if array.ndim > 1]
    assert sorted(layer.name for layer in layers) == sorted(matrices)
    for layer in layers:
        assert layer.weights in FORMS[plan.scheme]
        assert layer.in_float == bool(layer.reason)


def test_a_layer_that_is_reported_as_quantized_has_no_float_weight(plan: Plan, source: PolicyGraph) -> None:
    parameters = random_parameters(source, 8)
    made = emission(plan, parameters)

    floats = {
        tensor.name
        for tensor in onnx.ModelProto.FromString(made.model).graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
    }
    for layer in made.layers:
        weight = next(name for name in parameters if name.removesuffix(".weight") == layer.name)
        assert layer.in_float == (weight in floats)


def test_layers_that_must_stay_in_float_do(scheme: str, source: PolicyGraph) -> None:
    graph = Graph.parse(source)
    parameters = random_parameters(source, 9)
    free = Plan(graph, scheme_named(scheme), Options(ends=True))
    quantized = [layer.name for layer in emission(free, parameters).layers if not layer.in_float]
    for kept in quantized:
        plan = Plan(graph, scheme_named(scheme), Options(ends=True, keep_float=frozenset({kept})))

        made = emission(plan, parameters)

        gated = [layer.name for layer in made.layers if layer.reason == "fidelity gate"]
        # One operator contains both matrices of an LSTM.
        assert gated in ([kept], ["w", "r"])
        assert kept in gated
        assert sum(not layer.in_float for layer in made.layers) == len(quantized) - len(gated)
        open_session(made.model, "emitted policy")


def test_with_all_layers_in_float_a_scheme_computes_what_fp32_computes(scheme: str, source: PolicyGraph) -> None:
    graph = Graph.parse(source)
    parameters, inputs = random_parameters(source, 10), random_inputs(graph)
    names = frozenset(name.removesuffix(".weight") for name, array in parameters.items() if array.ndim > 1)

    plan = Plan(graph, scheme_named(scheme), Options(ends=True, keep_float=names))

    assert plan.observed == ()
    fp32 = Plan(graph, scheme_named("fp32"))
    assert np.array_equal(outputs_of(emitted(plan, parameters), inputs), outputs_of(emitted(fp32, parameters), inputs))


def test_keeping_a_layer_that_is_not_there_is_refused(source: PolicyGraph) -> None:
    with pytest.raises(InvalidInputError, match=r"keep_float.*\['nowhere'\]"):
        Plan(Graph.parse(source), scheme_named("int8"), Options(keep_float=frozenset({"nowhere"})))


def test_emits_a_policy_with_zero_weights(rounding_plan: Plan, source: PolicyGraph) -> None:
    parameters = {name: np.zeros_like(array) for name, array in random_parameters(source, 11).items()}

    outputs = outputs_of(emitted(rounding_plan, parameters), random_inputs(rounding_plan.graph))

    assert not outputs.any()


@pytest.mark.parametrize("factor", [1e-30, 1e-6, 1e3])
def test_weights_of_any_magnitude_keep_their_precision(scheme: str, factor: float, compensate: bool) -> None:
    source = GRAPHS["mlp"]
    graph = Graph.parse(source)
    plan = Plan(graph, scheme_named(scheme), Options(ends=True, compensate=compensate))
    parameters, inputs = random_parameters(source, 12), random_inputs(graph, 64)
    # Biases keep their magnitude. With tiny weights, they dominate the policy.
    parameters = {name: array * np.float32(factor if array.ndim > 1 else 1) for name, array in parameters.items()}
    (expected,) = reference_of(graph).run(parameters, inputs).values()

    outputs = outputs_of(emitted(plan, parameters, inputs), inputs)

    span = max(np.ptp(expected), np.abs(expected).max())
    assert np.abs(outputs - expected).max() <= RELATIVE_ERROR_BOUND[scheme] * span


def test_one_huge_weight_does_not_overflow(rounding_plan: Plan, source: PolicyGraph) -> None:
    parameters = random_parameters(source, 13)
    for array in parameters.values():
        array.flat[0] = 1e6

    (outputs, *_) = all_outputs_of(emitted(rounding_plan, parameters), random_inputs(rounding_plan.graph))

    assert np.isfinite(outputs).all()


def test_a_value_that_is_not_finite_is_refused_by_name(plan: Plan, source: PolicyGraph) -> None:
    parameters = random_parameters(source, 14)
    name = next(reversed(parameters))
    for value in (np.nan, np.inf, -np.inf):
        parameters[name].flat[0] = value

        with pytest.raises(InvalidInputError, match=f"{name}.*finite.* 1 NaN"):
            plan.emit(parameters, {}, "run", 1)


def test_refuses_tensors_with_wrong_shapes_by_name(plan: Plan, source: PolicyGraph) -> None:
    right = random_parameters(source, 15)
    name, array = next(iter(right.items()))
    for wrong, reason in (
        ({**right, name: array.astype(np.float64)}, f"{name}.*float32.*float64"),
        ({**right, name: array[1:]}, rf"{name}.*float32\[{len(array)}.*float32\[{len(array) - 1}"),
        ({key: value for key, value in right.items() if key != name}, rf"missing \['{name}'\]"),
        ({**right, "extra": array}, r"unexpected \['extra'\]"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            plan.emit(wrong, {}, "run", 1)


def test_a_plan_works_after_a_refused_version(plan: Plan, source: PolicyGraph) -> None:
    parameters = random_parameters(source, 16)
    before = emitted(plan, parameters)
    with pytest.raises(InvalidInputError):
        plan.emit({}, {}, "run", 2)

    assert emitted(plan, parameters) == before


def test_any_batch_size_runs(plan: Plan, source: PolicyGraph) -> None:
    model = emitted(plan, random_parameters(source, 17))

    for rows in (1, 2, 7, 64):
        assert all(len(output) == rows for output in all_outputs_of(model, random_inputs(plan.graph, rows)))


def test_an_unknown_scheme_is_refused_with_the_names_of_all_schemes() -> None:
    with pytest.raises(NotFoundError, match=r"fp32, int8-weights, int8, int8-static, int4.*'int2'"):
        scheme_named("int2")
