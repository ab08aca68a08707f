"""What every scheme has to do, run for each scheme and each shape of policy."""

import numpy as np
import onnx
import pytest
from policy_graphs import (
    ACTIONS,
    OBSERVATION_SIZE,
    dueling,
    emitted,
    fp32_outputs,
    matmul_mlp,
    mlp,
    outputs_of,
    random_observations,
    random_parameters,
)

from actorq.errors import InvalidInputError, NotFoundError
from actorq.policy import PolicyGraph
from quantizer_service.graph import Graph
from quantizer_service.plan import Plan
from quantizer_service.schemes import SCHEMES, scheme_named

# Largest |emitted - fp32| relative to the range of the FP32 outputs, for the graphs below.
RELATIVE_ERROR_BOUND = {"fp32": 1e-6, "int8": 0.03}
GRAPHS = {"mlp": mlp(32, 32, 32), "dueling": dueling(32), "matmul": matmul_mlp(32), "one layer": mlp()}


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=GRAPHS)
def source(request: pytest.FixtureRequest) -> PolicyGraph:
    return GRAPHS[request.param]


@pytest.fixture
def plan(scheme: str, source: PolicyGraph) -> Plan:
    return Plan(Graph.parse(source), scheme_named(scheme))


def test_every_scheme_has_an_error_bound() -> None:
    assert RELATIVE_ERROR_BOUND.keys() == SCHEMES.keys()


def test_an_emitted_model_is_valid_and_has_only_data_inputs(plan: Plan, source: PolicyGraph) -> None:
    model = onnx.ModelProto.FromString(emitted(plan, random_parameters(source, 1)))

    onnx.checker.check_model(model)
    assert [value.name for value in model.graph.input] == ["observation"]


def test_outputs_stay_close_to_fp32(plan: Plan, source: PolicyGraph) -> None:
    parameters, observations = random_parameters(source, 2), random_observations(256)
    expected = fp32_outputs(plan.graph, parameters, observations)

    outputs = outputs_of(emitted(plan, parameters), observations)

    assert outputs.shape == (256, ACTIONS)
    assert np.abs(outputs - expected).max() <= RELATIVE_ERROR_BOUND[plan.scheme] * np.ptp(expected)


def test_a_patched_plan_equals_one_from_scratch(plan: Plan, source: PolicyGraph) -> None:
    emitted(plan, random_parameters(source, 3), version=123456)
    parameters = random_parameters(source, 4)

    patched = emitted(plan, parameters, version=2)

    assert patched == emitted(Plan(Graph.parse(source), scheme_named(plan.scheme)), parameters, version=2)
    assert patched == emitted(plan, parameters, version=2)


def test_the_graph_that_was_published_is_left_alone(plan: Plan, source: PolicyGraph) -> None:
    emitted(plan, random_parameters(source, 5))

    assert plan.graph.model == onnx.ModelProto.FromString(source.model)


def test_the_metadata_names_run_version_and_scheme(plan: Plan, source: PolicyGraph) -> None:
    model = onnx.ModelProto.FromString(emitted(plan, random_parameters(source, 6), version=42))

    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert metadata == {"run_id": "run", "version": "42", "scheme": plan.scheme}


def test_a_layer_of_zeros_does_no_harm(plan: Plan, source: PolicyGraph) -> None:
    parameters = {name: np.zeros_like(array) for name, array in random_parameters(source, 7).items()}

    outputs = outputs_of(emitted(plan, parameters), random_observations())

    assert np.array_equal(outputs, np.zeros((32, ACTIONS), np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_by_name(plan: Plan, source: PolicyGraph, value: float) -> None:
    parameters = random_parameters(source, 8)
    name = next(reversed(parameters))
    parameters[name].flat[0] = value

    with pytest.raises(InvalidInputError, match=f"{name}.*finite.*1 NaN or infinite"):
        emitted(plan, parameters)


def test_tensors_that_do_not_fit_are_refused_by_name(plan: Plan, source: PolicyGraph) -> None:
    right = random_parameters(source, 9)
    name, array = next(iter(right.items()))
    for wrong, reason in (
        ({**right, name: array.astype(np.float64)}, f"{name}.*float32.*got float64"),
        ({**right, name: array[1:]}, rf"{name}.*expected float32\[{len(array)}.*got float32\[{len(array) - 1}"),
        ({key: value for key, value in right.items() if key != name}, rf"missing \['{name}'\]"),
        ({**right, "extra": array}, r"unexpected \['extra'\]"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            emitted(plan, wrong)


def test_a_plan_that_refused_still_emits(plan: Plan, source: PolicyGraph) -> None:
    parameters = random_parameters(source, 10)
    before = emitted(plan, parameters)
    with pytest.raises(InvalidInputError):
        emitted(plan, {}, version=2)

    assert emitted(plan, parameters) == before


def test_any_batch_size_runs(plan: Plan, source: PolicyGraph) -> None:
    model = emitted(plan, random_parameters(source, 11))

    for rows in (1, 7):
        observations = {"observation": np.ones((rows, OBSERVATION_SIZE), np.float32)}
        assert outputs_of(model, observations).shape == (rows, ACTIONS)


def test_an_unknown_scheme_is_refused_with_what_there_is() -> None:
    with pytest.raises(NotFoundError, match="expected one of fp32, int8, got 'int2'"):
        scheme_named("int2")
