import numpy as np
import onnx
import pytest
from onnx import helper

from actorq.domain.policy import FidelityReport, PolicyGraph
from actorq.domain.signature import signature_of
from actorq.errors import InvalidInputError
from actorq.quantization.calibration import Observed, Statistic
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Scheme
from actorq.quantization.schemes.base import Plan
from actorq.quantization.schemes.fp32 import FP32
from actorq.quantization.schemes.int8 import INT8
from quantizer_service.emission.divergence import divergence
from quantizer_service.emission.fidelity import measure, unfit
from quantizer_service.emission.reference import MAX_WEIGHT_ROWS, MIN_ROWS, Outputs, Reference, measured_batch
from tests.builders.graphs import resigned
from tests.quantizer_service.complete_models import chosen_actions, complete_model
from tests.quantizer_service.policy_graphs import GRAPHS, Tensors, mlp, policy_graph, residual
from tests.quantizer_service.policy_runs import (
    all_outputs_of,
    emission,
    emitted,
    float_layers,
    fp32_outputs,
    outputs_of,
    random_inputs,
    random_observations,
    random_parameters,
)

SOURCE = mlp(16, 16)
PARAMETERS = random_parameters(SOURCE, 1)
OBSERVATIONS = random_observations(64)


def report_on(
    source: PolicyGraph, scheme: Scheme, parameters: Tensors, expected: Outputs | None = None
) -> FidelityReport:
    graph = Graph.parse(source)
    plan = Plan(graph, scheme)
    made = emission(plan, parameters)
    return measure(made, expected or Reference(graph).run(parameters, OBSERVATIONS), OBSERVATIONS, source.signature)


def test_errors_follow_their_definition() -> None:
    graph = Graph.parse(SOURCE)
    expected = fp32_outputs(graph, PARAMETERS, OBSERVATIONS)
    plan = Plan(graph, INT8)

    report = report_on(SOURCE, INT8, PARAMETERS)

    outputs = outputs_of(emitted(plan, PARAMETERS), OBSERVATIONS).astype(np.float64)
    assert report.observations == 64
    assert report.mean_error == pytest.approx(np.abs(outputs - expected).mean())
    assert report.max_error == pytest.approx(np.abs(outputs - expected).max())
    assert report.relative_mean_error == pytest.approx(report.mean_error / np.ptp(expected))
    assert report.relative_max_error == pytest.approx(report.max_error / np.ptp(expected))
    assert report.argmax_agreement == np.mean(outputs.argmax(1) == expected.argmax(1))
    assert report.float_layers == float_layers(plan)
    (output,) = report.outputs
    assert output.name == "q_values"
    assert output.mean_errors == pytest.approx(np.abs(outputs - expected).mean(axis=0))
    assert output.max_errors == pytest.approx(np.abs(outputs - expected).max(axis=0))


@pytest.mark.parametrize("name", ["categorical", "gaussian"])
def test_a_policy_with_a_distribution_is_measured_by_its_divergence_in_each_row(name: str) -> None:
    source = GRAPHS[name]
    graph, parameters = Graph.parse(source), random_parameters(source, 1)
    expected = Reference(graph).run(parameters, OBSERVATIONS)
    made = emission(Plan(graph, INT8), parameters)

    report = measure(made, expected, OBSERVATIONS, source.signature)

    outputs = (output.astype(np.float64) for output in all_outputs_of(made.model, OBSERVATIONS))
    rows = divergence(expected, dict(zip(expected, outputs, strict=True)), source.signature)
    assert rows is not None
    assert rows.shape == (64,)
    assert report.mean_kl == pytest.approx(rows.mean())
    assert report.max_kl == pytest.approx(rows.max())
    assert 0 < rows.mean() < rows.max() < 0.01


def test_a_policy_without_a_distribution_has_no_divergence() -> None:
    report = report_on(SOURCE, INT8, PARAMETERS)

    assert (report.mean_kl, report.max_kl) == (None, None)


def test_a_disagreement_lowers_the_agreement() -> None:
    expected = Reference(Graph.parse(SOURCE)).run(PARAMETERS, OBSERVATIONS)["q_values"]

    report = report_on(SOURCE, FP32, PARAMETERS, {"q_values": -expected})

    assert report.argmax_agreement == 0
    assert report.value_loss == 1
    assert report.max_error == pytest.approx(2 * np.abs(expected).max(), rel=1e-5)


def test_a_loss_of_value_depends_on_the_cost_of_other_actions_not_on_their_number() -> None:
    outputs = Reference(Graph.parse(SOURCE)).run(PARAMETERS, OBSERVATIONS)["q_values"]
    rows, best, worst = np.arange(64), outputs.argmax(1), outputs.argmin(1)
    values = np.zeros_like(outputs)
    values[rows, best], values[rows, worst] = 1.0, -1.0
    # In half of the rows another action is better: by next to nothing, and once by much.
    values[rows[:32], worst[:32]] = 1.001
    values[0, worst[0]] = 11.0

    report = report_on(SOURCE, FP32, PARAMETERS, {"q_values": values})

    of_the_worst = 11.0 + 31 * 1.001 + 32 * 2.0
    assert report.argmax_agreement == 0.5
    assert report.value_loss == pytest.approx((10.0 + 31 * 0.001) / of_the_worst)


def agreement_of(graph: Graph, parameters: Tensors, changed: Tensors) -> float | None:
    """The agreement of a policy whose weights have become `changed`."""
    made = emission(Plan(graph, FP32), changed)
    return measure(made, Reference(graph).run(parameters, OBSERVATIONS), OBSERVATIONS, graph.signature).argmax_agreement


def test_indices_of_actions_agree_where_they_are_equal() -> None:
    graph, parameters = Graph.from_model(chosen_actions(mlp(16, 16)).SerializeToString())
    values, _ = Graph.from_model(complete_model(mlp(16, 16)).SerializeToString(), discrete_actions=True)
    changed = {name: array + 0.1 * random_parameters(SOURCE, 2)[name] for name, array in parameters.items()}

    assert graph.signature.is_discrete
    agreement = agreement_of(graph, parameters, changed)

    assert agreement is not None
    assert 0 < agreement < 1
    assert agreement == agreement_of(values, parameters, changed)


def test_a_single_component_agrees_where_it_is_equal() -> None:
    nodes = [
        helper.make_node("MatMul", ["observation", "weight"], ["product"]),
        helper.make_node("Relu", ["product"], ["positive"]),
        helper.make_node("Sign", ["positive"], ["action"]),
    ]
    graph = Graph.parse(policy_graph(nodes, {"weight": [5, 1]}, output="action"))
    parameters = random_parameters(graph.source, 1)

    assert agreement_of(graph, parameters, parameters) == 1
    assert agreement_of(graph, parameters, {"weight": -parameters["weight"]}) == 0


def test_each_hidden_tensor_of_residual_convolutions_can_be_observed() -> None:
    source = residual()
    graph = Graph.parse(source)
    parameters, feeds = random_parameters(source, 1), random_inputs(Graph.parse(source), 4)
    reference = Reference(graph)
    for name in (name for node in graph.model.graph.node for name in node.output):
        wanted = Observed(name, Statistic.RANGE)
        assert np.isfinite(reference.observe(parameters, feeds, [wanted])[1][wanted]).all()


def test_errors_of_continuous_actions_are_relative_to_each_range_and_have_no_agreement() -> None:
    spans = (0.5, 2.0, 4.0)

    report = report_on(resigned(SOURCE, discrete=False, spans=spans), INT8, PARAMETERS)

    (output,) = report.outputs
    assert report.argmax_agreement is report.value_loss is None
    assert report.relative_mean_error == pytest.approx(np.mean(np.array(output.mean_errors) / spans))
    assert report.relative_max_error == pytest.approx(np.max(np.array(output.max_errors) / spans))


def test_equal_outputs_have_no_range_to_divide_by() -> None:
    zeros = {name: np.zeros_like(array) for name, array in PARAMETERS.items()}

    report = report_on(SOURCE, INT8, zeros)

    assert (report.relative_mean_error, report.relative_max_error, report.argmax_agreement) == (0, 0, 1)
    assert report.value_loss == 0


def test_outputs_that_are_not_finite_are_refused() -> None:
    huge = {name: np.full_like(array, 1e30) for name, array in PARAMETERS.items()}

    with pytest.raises(InvalidInputError, match=r"FP32 policy: .*finite"):
        fp32_outputs(Graph.parse(SOURCE), huge, OBSERVATIONS)


def test_outputs_must_be_batch_first() -> None:
    nodes = [
        helper.make_node("MatMul", ["observation", "weight"], ["product"]),
        helper.make_node("Transpose", ["product"], ["q_values"]),
    ]
    source = policy_graph(nodes, {"weight": [5, 3]})

    with pytest.raises(InvalidInputError, match=r"q_values.* 2 rows.*\[3, 2\]"):
        fp32_outputs(Graph.parse(source), random_parameters(source, 1), OBSERVATIONS)


def test_a_policy_that_does_not_run_on_these_observations_is_refused() -> None:
    nodes = [
        helper.make_node("Cast", ["observation"], ["row"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["weight", "row"], ["q_values"]),
    ]
    source = policy_graph(nodes, {"weight": [4, 3]})
    reference = Reference(Graph.parse(source))

    with pytest.raises(InvalidInputError, match=r"FP32 policy: .*calibration"):
        reference.run(random_parameters(source, 1), {"observation": np.full((2, 5), 9, np.float32)})


def test_a_graph_that_does_not_load_is_refused() -> None:
    # Its ellipsis stands for nothing that the inputs have.
    nodes = [helper.make_node("Einsum", ["observation", "weight"], ["q_values"], equation="bi,io,x->bo")]
    graph = Graph.parse(policy_graph(nodes, {"weight": [5, 3]}))

    with pytest.raises(InvalidInputError, match="graph: ONNX Runtime"):
        Reference(graph)


@pytest.mark.parametrize(
    ("rows", "weights", "taken"),
    [
        (256, 24 * 2048 + 2 * 2048**2 + 6 * 2048, 256),
        (10_000, 64**2, 10_000),
        (1_000, MAX_WEIGHT_ROWS // 500, 500),
        (256, MAX_WEIGHT_ROWS, MIN_ROWS),
        (20, MAX_WEIGHT_ROWS, 20),
        (1, 0, 1),
    ],
)
def test_large_policies_are_measured_on_fewer_rows_but_never_on_too_few(rows: int, weights: int, taken: int) -> None:
    numbers = np.arange(rows)
    batch = measured_batch({"observation": numbers[:, None], "other": -numbers[:, None]}, weights, SOURCE.signature)

    chosen = batch["observation"][:, 0]
    assert len(chosen) == taken
    assert np.array_equal(batch["other"][:, 0], -chosen)
    assert (chosen[0], chosen[-1]) == (0, rows - 1)
    assert len(set(np.diff(chosen))) <= 2
    assert (np.diff(chosen) > 0).all()


def test_an_error_above_the_limit_of_messages_counts_as_infinite() -> None:
    expected = Reference(Graph.parse(SOURCE)).run(PARAMETERS, OBSERVATIONS)["q_values"]

    report = report_on(SOURCE, FP32, PARAMETERS, {"q_values": expected + [1e31, 0.0, 0.0]})

    (output,) = report.outputs
    assert (report.mean_error, report.max_error) == (np.inf, np.inf)
    assert (output.mean_errors[0], output.max_errors[0]) == (np.inf, np.inf)
    assert max(output.max_errors[1:]) < 1
    assert report.relative_max_error == pytest.approx(1)


def test_a_policy_that_does_not_run_has_errors_beyond_any_threshold() -> None:
    for source, agreement in ((SOURCE, 0.0), (resigned(SOURCE, discrete=False), None)):
        report = unfit((), {"q_values": np.zeros((64, 3))}, OBSERVATIONS, source.signature)
        assert (report.relative_mean_error, report.relative_max_error) == (np.inf, np.inf)
        assert (report.argmax_agreement, report.passed, report.observations) == (agreement, False, 64)
        assert (report.mean_kl, report.max_kl) == (None, None)
    signature = signature_of(["observation"], ["logits"])
    report = unfit((), {"logits": np.zeros((64, 3))}, OBSERVATIONS, signature)
    assert (report.mean_kl, report.max_kl) == (np.inf, np.inf)


def test_the_part_of_an_action_that_agrees_least_decides() -> None:
    source = resigned(SOURCE, discrete=True)
    graph = Graph.parse(source)
    expected = Reference(graph).run(PARAMETERS, OBSERVATIONS)
    (name, values), *_ = expected.items()
    count = values.shape[1]
    made = emission(Plan(graph, FP32), PARAMETERS)
    # The last part has another best choice in a quarter of the rows.
    changed = values.copy()
    rows = slice(0, len(values) // 4)
    changed[rows, -2:] = np.where(values[rows, -2:].argmax(1)[:, None] == [0, 1], -1e3, 1e3)
    report = measure(made, {name: changed}, OBSERVATIONS, resigned(source, sizes=(count - 2, 2)).signature)
    assert report.argmax_agreement == 0.75
    assert report.value_loss is not None
    assert report.value_loss > 0
    with pytest.raises(InvalidInputError, match=f"{count + 1} components"):
        measure(made, expected, OBSERVATIONS, resigned(source, sizes=(count - 1, 2)).signature)
