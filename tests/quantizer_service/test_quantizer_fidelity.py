import numpy as np
import onnx
import pytest
from onnx import helper
from policy_graphs import mlp, outputs_of, policy_graph, random_observations, random_parameters

from actorq.errors import InvalidInputError
from actorq.policy import PolicyGraph
from quantizer_service.fidelity import Reference, measure
from quantizer_service.graph import Graph
from quantizer_service.plan import Plan
from quantizer_service.schemes.fp32 import Fp32
from quantizer_service.schemes.int8 import Int8

SOURCE = mlp(16, 16)
PARAMETERS = random_parameters(SOURCE, 1)
OBSERVATIONS = random_observations(64)


def test_errors_are_what_the_definition_says() -> None:
    graph = Graph.parse(SOURCE)
    expected = Reference(graph).run(PARAMETERS, OBSERVATIONS)
    plan = Plan(graph, Int8())
    model = plan.emit(PARAMETERS, "run", 1)

    report = measure(model, expected, OBSERVATIONS, discrete_actions=True, float_layers=plan.float_layers)

    outputs = outputs_of(model, OBSERVATIONS).astype(np.float64)
    assert report.observations == 64
    assert report.mean_error == pytest.approx(np.abs(outputs - expected).mean())
    assert report.max_error == pytest.approx(np.abs(outputs - expected).max())
    assert report.relative_mean_error == pytest.approx(report.mean_error / np.ptp(expected))
    assert report.relative_max_error == pytest.approx(report.max_error / np.ptp(expected))
    assert report.argmax_agreement == np.mean(outputs.argmax(1) == expected.argmax(1))
    assert report.float_layers == plan.float_layers


def test_disagreement_shows() -> None:
    graph = Graph.parse(SOURCE)
    expected = Reference(graph).run(PARAMETERS, OBSERVATIONS)
    model = Plan(graph, Fp32()).emit(PARAMETERS, "run", 1)

    report = measure(model, -expected, OBSERVATIONS, discrete_actions=True, float_layers=())

    assert report.argmax_agreement == 0
    assert report.max_error == pytest.approx(2 * np.abs(expected).max(), rel=1e-5)


def test_continuous_actions_have_no_agreement() -> None:
    graph = Graph.parse(SOURCE)
    expected = Reference(graph).run(PARAMETERS, OBSERVATIONS)

    report = measure(Plan(graph, Fp32()).emit(PARAMETERS, "run", 1), expected, OBSERVATIONS, False, ())

    assert report.argmax_agreement is None


def test_equal_outputs_have_no_range_to_divide_by() -> None:
    graph = Graph.parse(SOURCE)
    zeros = {name: np.zeros_like(array) for name, array in PARAMETERS.items()}
    expected = Reference(graph).run(zeros, OBSERVATIONS)

    report = measure(Plan(graph, Int8()).emit(zeros, "run", 1), expected, OBSERVATIONS, True, ())

    assert (report.relative_mean_error, report.relative_max_error, report.argmax_agreement) == (0, 0, 1)


def test_outputs_that_are_not_finite_are_refused() -> None:
    huge = {name: np.full_like(array, 1e30) for name, array in PARAMETERS.items()}

    with pytest.raises(InvalidInputError, match="FP32 policy: expected finite outputs"):
        Reference(Graph.parse(SOURCE)).run(huge, OBSERVATIONS)


def test_outputs_must_be_batch_first() -> None:
    nodes = [
        helper.make_node("MatMul", ["observation", "weight"], ["product"]),
        helper.make_node("Transpose", ["product"], ["q_values"]),
    ]
    source = policy_graph(nodes, {"weight": [5, 3]})

    with pytest.raises(InvalidInputError, match=r"a first output with 64 rows.*got shape \[3, 64\]"):
        Reference(Graph.parse(source)).run(random_parameters(source, 1), OBSERVATIONS)


def test_a_graph_that_cannot_run_is_refused() -> None:
    nodes = [helper.make_node("MatMul", ["observation", "weight"], ["q_values"])]
    source = policy_graph(nodes, {"weight": [4, 3]}, ("batch", "size"))

    with pytest.raises(InvalidInputError, match="FP32 policy: it does not run on the calibration batch"):
        Reference(Graph.parse(source)).run(random_parameters(source, 1), OBSERVATIONS)


def test_a_graph_that_does_not_load_is_refused() -> None:
    nodes = [helper.make_node("NoSuchOperator", ["observation", "weight"], ["q_values"], domain="com.example")]
    model = onnx.ModelProto.FromString(policy_graph(nodes, {"weight": [5, 3]}).model)
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    graph = Graph.parse(PolicyGraph(model.SerializeToString(), ("observation",), True))

    with pytest.raises(InvalidInputError, match=r"graph: ONNX Runtime .* cannot load it"):
        Reference(graph)
