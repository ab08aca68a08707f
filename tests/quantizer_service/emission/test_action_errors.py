"""The errors of actions that count, and their divisors."""

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

from actorq.domain.policy import FidelityReport
from actorq.errors import InvalidInputError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes.base import Plan
from actorq.quantization.schemes.fp32 import FP32
from quantizer_service.emission.action_errors import are_actions, legal_actions, observed_spans, value_loss
from quantizer_service.emission.fidelity import measure
from quantizer_service.emission.inference import checked_outputs
from quantizer_service.emission.reference import Reference
from tests.builders.graphs import resigned
from tests.quantizer_service.policy_graphs import mlp, policy_graph
from tests.quantizer_service.policy_runs import emission, random_observations, random_parameters

VALUES = mlp(16, 16)
ACTIONS = resigned(VALUES, discrete=False)
OBSERVATIONS = random_observations(64)
PARAMETERS = random_parameters(VALUES, 1)


def outputs() -> NDArray[np.float64]:
    """Outputs of the FP32 policy. Tests change them, and `report` uses them as outputs of the emitted policy."""
    return Reference(Graph.parse(VALUES)).run(PARAMETERS, OBSERVATIONS)["q_values"]


def report(expected: NDArray[np.float64], discrete: bool) -> FidelityReport:
    source = VALUES if discrete else ACTIONS
    made = emission(Plan(Graph.parse(source), FP32), PARAMETERS)
    return measure(made, {"q_values": expected}, OBSERVATIONS, source.signature)


def test_each_component_is_compared_with_its_own_range() -> None:
    emitted = outputs()
    expected = emitted + [400.0, 0.0, 0.1 * np.ptp(emitted[:, 2])]

    found = report(expected, discrete=False)

    ranges = np.ptp(expected, axis=0)
    assert found.relative_mean_error == pytest.approx((400.0 / ranges[0] + 0.1) / 3, rel=1e-4)
    assert found.relative_max_error == pytest.approx(400.0 / ranges[0], rel=1e-4)


def test_an_offset_of_one_component_does_not_hide_the_errors_of_others() -> None:
    def errors(offset: float) -> tuple[float, float]:
        expected = outputs() * [1.0, 1.3, 0.7] + [offset, 0.0, 0.0]
        spans, _ = observed_spans(expected, legal_actions(expected), discrete_actions=False)
        found = np.abs(expected - [offset, 0.0, 0.0] - outputs()) / spans
        return float(found.mean()), float(found.max())

    assert errors(400.0) == pytest.approx(errors(0.0))


def test_constant_components_are_left_out_of_the_mean_and_count_in_the_largest_error() -> None:
    moving = np.array([[0.0], [2.0]])
    expected = np.concatenate([moving, np.ones((2, 1)), 1 + 1e-6 * moving], axis=1)

    spans, counted = observed_spans(expected, np.ones((2, 3), np.bool_), discrete_actions=False)

    # A component that hardly moves is judged by a hundredth of the widest range.
    assert spans == pytest.approx([2.0, 0.02, 0.02])
    assert counted.tolist() == [True, False, True]


def test_values_of_actions_share_the_range_of_all_legal_values() -> None:
    expected = np.array([[0.0, 5.0, -1e8], [2.0, -1e8, 1.0]])

    spans, counted = observed_spans(expected, legal_actions(expected), discrete_actions=True)

    assert spans.tolist() == [5.0] * 3
    assert counted.all()


@pytest.mark.parametrize("mask", [-1e8, -1e9, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_masked_actions_are_left_out(mask: float, discrete: bool) -> None:
    expected = outputs() + 0.1
    favorite = np.bincount(expected.argmax(1)).argmax()
    expected[:32, favorite] = mask

    assert legal_actions(expected).tolist() == (expected > -1e6).tolist()
    found = report(expected, discrete)
    # The emitted policy has no mask here: that is no small error.
    assert found.max_error == pytest.approx(-mask if mask > -1e30 else np.inf, rel=1e-3)
    assert found.relative_max_error > 1e6
    if discrete:
        wrong = outputs().argmax(1) != expected.argmax(1)
        assert found.argmax_agreement == 1 - wrong.mean()
        assert found.value_loss is not None
        assert 0 < found.value_loss < 1


def test_only_legal_actions_are_judged_if_both_policies_have_the_mask() -> None:
    values, emitted = np.array([[1.0, 2.0, -1e8], [3.0, 1.0, 2.9]]), np.array([1, 2])
    legal = legal_actions(values)

    assert legal.tolist() == [[True, True, False], [True, True, True]]
    assert value_loss(values, legal, emitted) == pytest.approx(0.1 / 3)
    # A choice that is not allowed loses as much as the worst legal one.
    assert value_loss(values, legal, np.array([2, 0])) == pytest.approx(1 / 3)


def test_large_negative_values_are_not_masks_if_other_values_are_similar() -> None:
    for row in ([-2e7, -0.9e7, -1.1e7], [-3e7, -2e7, -5e9], [0.0, -9e6, -1.0]):
        assert legal_actions(np.array([row])).all()


def test_whole_numbers_are_the_actions_themselves() -> None:
    assert are_actions(np.array([[0.0, 1.0], [1.0, 1.0]]), discrete_actions=False)
    assert not are_actions(np.array([[0.0, 1.0], [1.0, 1.5]]), discrete_actions=True)
    # Constant outputs of several components are no choice, and the constant index of an action is one.
    assert not are_actions(np.zeros((2, 3)), discrete_actions=True)
    assert are_actions(np.zeros((2, 1)), discrete_actions=True)


@pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])
def test_rows_of_whole_numbers_agree_where_they_are_equal(discrete: bool) -> None:
    expected = np.round(outputs())
    assert np.ptp(expected) > 0

    assert report(expected, discrete).argmax_agreement == np.mean((outputs() == expected).all(1))
    assert report(expected, discrete).value_loss is None


def test_a_single_action_always_agrees() -> None:
    source = policy_graph([helper.make_node("MatMul", ["observation", "weight"], ["q_values"])], {"weight": [5, 1]})
    graph, parameters = Graph.parse(source), random_parameters(source, 1)
    expected = Reference(graph).run(parameters, OBSERVATIONS)["q_values"]

    made = emission(Plan(graph, FP32), {name: 1.1 * array for name, array in parameters.items()})
    found = measure(made, {"q_values": expected}, OBSERVATIONS, source.signature)

    assert found.max_error > 0
    assert (found.argmax_agreement, found.value_loss) == (1, 0)


def test_an_infinite_mask_counts_as_the_lowest_number() -> None:
    values = np.array([[1.0, -np.inf], [2.0, 3.0]], np.float32)

    found = checked_outputs({"values": values}, 2, "policy", masks=True)

    assert found["values"].tolist() == [[1.0, float(np.finfo(np.float32).min)], [2.0, 3.0]]
    with pytest.raises(InvalidInputError, match=r"-inf .*--discrete-actions"):
        checked_outputs({"values": values}, 2, "policy")
    for broken in ([[-np.inf, -np.inf], [2.0, 3.0]], [[1.0, np.inf], [2.0, 3.0]], [[np.nan, -np.inf], [2.0, 3.0]]):
        with pytest.raises(InvalidInputError, match="finite"):
            checked_outputs({"values": np.array(broken, np.float32)}, 2, "policy", masks=True)
