"""Policies of several groups: each group is calibrated and judged on its own rows, and can be exported alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper

from actorq.config.sections import GateConfig
from actorq.domain.policy import Checkpoint, FidelityReport, GroupError, LayerReport
from actorq.domain.signature import RowGroup
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.errors import InvalidInputError
from actorq.quantization.calibration import Observed, Statistic
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Emission
from actorq.quantization.signatures import parsed_model, signed_graph
from learner_service.networks import DiagonalGaussianPolicy, GaussianPolicy, QNetwork, SoftmaxPolicy
from learner_service.networks.normalizer import Normalizer
from learner_service.policy.policy_graph import calibration_batch, export_policy_graph, snapshot_parameters
from quantizer_service.emission.emitter import quantize_and_check
from quantizer_service.emission.fidelity import measure
from quantizer_service.emission.gate import judge, severity
from quantizer_service.emission.ladder import Attempt, Ladder
from quantizer_service.emission.one_group import alone
from quantizer_service.emission.prepared_graph import PreparedGraph
from quantizer_service.emission.reference import Reference, measured_batch
from quantizer_service.emission.row_groups import chosen_rows, owners_of, rows_by_group
from tests.builders.grouped import FIRST_BIT, GROUPS, grouped, random_rows

pytestmark = pytest.mark.usefixtures("operators_parsed_once")

DISCRETE = EnvironmentSpec("Team-v0", ArraySpec((3,), "float32"), ArraySpec((), "int64"), (4,))
CONTINUOUS = replace(DISCRETE, actions=ArraySpec((2,), "float32", (-1.0,), (1.0,)), sizes=())
KINDS: dict[str, Any] = {
    "dqn": (QNetwork, DISCRETE, {"dueling": True}),
    "ppo": (SoftmaxPolicy, DISCRETE, {}),
    "gaussian": (DiagonalGaussianPolicy, CONTINUOUS, {}),
    "sac": (GaussianPolicy, CONTINUOUS, {}),
}
THRESHOLDS = GateConfig()
SCHEMES = ("int8-weights", "int8", "int8-static", "int4")
# One row in fifty is of the first group.
RARE = np.where(np.arange(200) % 50 == 7, 0, 1)


def made(
    kind: str, first_bit: int = FIRST_BIT, rows: NDArray[np.float32] | None = None
) -> tuple[EnvironmentSpec, Graph, Checkpoint]:
    """A graph and a checkpoint of random networks of 64 units."""
    network, single, options = KINDS[kind]
    spec = grouped(single, first_bit)
    torch.manual_seed(3)
    normalizer = Normalizer(spec)
    normalizer.set(np.arange(5.0), np.arange(1.0, 6.0))
    policy = network(spec, (64, 64), normalizer=normalizer, **options)
    noise = kind == "sac"
    graph = export_policy_graph(policy, spec, noise)
    if rows is None:
        rows = _at(random_rows(200, RARE), first_bit)
    batch = calibration_batch(rows, spec, noise, seed=1)
    return spec, Graph.parse(graph), Checkpoint(1, 1, graph.digest, snapshot_parameters(policy), batch, 0.0)


def _at(rows: NDArray[np.float32], first_bit: int) -> NDArray[np.float32]:
    """The rows with their bits at other components."""
    bits = [FIRST_BIT, FIRST_BIT + 1]
    found: NDArray[np.float32] = np.insert(np.delete(rows, bits, 1), [first_bit], rows[:, bits], 1)
    return found


def emit(graph: Graph, checkpoint: Checkpoint, scheme: str, thresholds: GateConfig = THRESHOLDS) -> Attempt:
    prepared = PreparedGraph(graph)
    version = prepared.without_dead_units(prepared.validated(checkpoint))
    (passed,) = quantize_and_check("run", version, [Ladder(scheme)], thresholds)
    return passed


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_scheme_quantizes_the_hidden_layers_of_each_group(kind: str, scheme: str) -> None:
    _, graph, checkpoint = made(kind)
    attempt = emit(graph, checkpoint, scheme)
    assert attempt.verdict.passed
    hidden = {f"torso.group_{group.name}.2" for group in GROUPS}
    ends = {layer.name for layer in attempt.report.layers} - hidden
    assert {*attempt.quantized} == (hidden | ends if scheme == "int8-weights" else hidden)
    assert [(each.name, each.observations) for each in attempt.report.groups] == [("pair", 4), ("solo", 196)]


def ruined(checkpoint: Checkpoint, group: str) -> Checkpoint:
    """The checkpoint with a hidden layer of a group whose weights int8 rounds to zeros, except for two huge ones.

    Both read nearly constant units, and cancel. Larger weights of the heads make the errors of actions large.
    """
    parameters = {name: array.copy() for name, array in checkpoint.parameters.items()}
    torso = f"torso.group_{group}"
    parameters[f"{torso}.2.weight"][:, :2] = 3e4, -3e4
    parameters[f"{torso}.0.weight"][:2] = 1e-6
    parameters[f"{torso}.0.bias"][:2] = 1.0
    for name, array in parameters.items():
        if name in (f"advantage.group_{group}.weight", f"head.group_{group}.weight"):
            array *= 30.0
    return replace(checkpoint, parameters=parameters)


@pytest.mark.parametrize("group", ["pair", "solo"])
@pytest.mark.parametrize("kind", ["dqn", "ppo"])
def test_a_bad_group_is_refused_however_rare_it_is(kind: str, group: str) -> None:
    _, graph, checkpoint = made(kind)
    bad = ruined(checkpoint, group)
    attempt = emit(graph, bad, "int8")
    (first, *_) = attempt.report.refused
    assert first.float_layers == tuple(
        layer.name for layer in attempt.report.layers if layer.reason in ("first layer", "last layer")
    )
    assert f"torso.group_{group}.2" in attempt.report.gated_layers
    # With these rows alone, the mean over all rows would hide the rare group.
    prepared = PreparedGraph(graph)
    version = prepared.without_dead_units(prepared.validated(bad))
    run = version.run("run", [Ladder("int8")])
    emission = version.form.plans("int8").quantize(run, frozenset())
    report = measure(emission, run.outputs, run.batch, graph.signature)
    verdict = judge(report, THRESHOLDS)
    other = "solo" if group == "pair" else "pair"
    assert not verdict.passed
    assert verdict.reason.startswith(f"group {group}: ")
    assert f"group {other}" not in verdict.reason
    without = measure(emission, run.outputs, run.batch, replace(graph.signature, groups=()))
    assert without.groups == ()
    if group == "pair" and kind == "dqn":
        assert judge(without, THRESHOLDS).passed


def group_error(name: str, **errors: Any) -> GroupError:
    return GroupError(name, 10, **{**dict.fromkeys(("mean_error", "max_error"), 0.1), **errors})


def report_of(*groups: GroupError, in_float: bool = False) -> FidelityReport:
    layers = (LayerReport("a", "float32" if in_float else "int8 per channel"),)
    return FidelityReport(20, 0.1, 0.1, 0.5, 0.5, None, layers, groups=groups)


def test_each_group_must_pass_by_its_own_measure() -> None:
    # One passes by its agreement, the other by its loss of value. The worst of both measures would fail.
    agrees = group_error("a", relative_mean_error=0.1, relative_max_error=0.1, argmax_agreement=1.0, value_loss=0.5)
    loses_little = replace(agrees, name="b", argmax_agreement=0.5, value_loss=0.0)
    assert judge(report_of(agrees, loses_little), THRESHOLDS).passed
    neither = replace(agrees, name="c", argmax_agreement=0.5)
    verdict = judge(report_of(agrees, neither), THRESHOLDS)
    assert (verdict.passed, verdict.reason[:9]) == (False, "group c: ")
    assert judge(report_of(neither, in_float=True), THRESHOLDS).passed
    assert severity(report_of(agrees, neither), THRESHOLDS) == severity(report_of(neither), THRESHOLDS)
    assert severity(report_of(neither), THRESHOLDS) > severity(report_of(loses_little), THRESHOLDS)


def test_the_errors_of_a_policy_are_those_of_its_worst_group() -> None:
    _, graph, checkpoint = made("dqn")
    report = emit(graph, ruined(checkpoint, "pair"), "int8").report
    groups = {group.name: group for group in report.groups}
    for name in ("mean_error", "max_error", "relative_mean_error", "relative_max_error"):
        assert getattr(report, name) == max(getattr(group, name) for group in groups.values())
    assert report.argmax_agreement == min(group.argmax_agreement or 0.0 for group in groups.values())
    assert report.observations == 200


def test_a_group_without_rows_is_left_out() -> None:
    _, graph, checkpoint = made("dqn", rows=random_rows(50, 1))
    assert [group.name for group in emit(graph, checkpoint, "int8").report.groups] == ["solo"]
    # The learner's first policy has a row of zeros, of no group.
    _, graph, checkpoint = made("dqn", rows=np.zeros((1, 5), np.float32))
    assert emit(graph, checkpoint, "int8").report.groups == ()


def test_a_batch_of_fewer_rows_keeps_each_group() -> None:
    _, graph, checkpoint = made("ppo", rows=random_rows(2_000, np.where(np.arange(2_000) % 500 == 3, 0, 1)))
    batch = measured_batch(checkpoint.calibration, 10**9, graph.signature)
    rows = rows_by_group(batch, graph.signature)
    assert (int(rows["pair"].sum()), int(rows["solo"].sum())) == (4, 32)
    whole = chosen_rows(checkpoint.calibration, graph.signature, 5_000)
    assert len(whole["observations"]) == 2_000


def test_the_layers_of_a_group_are_measured_on_its_own_rows() -> None:
    rows = random_rows(200, RARE)
    # Larger numbers in the rows of the other group.
    rows[RARE == 1, FIRST_BIT + 2 :] *= 100.0
    _, graph, checkpoint = made("ppo", rows=rows)
    owners = owners_of(graph.model, graph.signature)
    layers = {layer.name: layer for layer in graph.layers}
    assert {name: owners.get(layer.input) for name, layer in layers.items()} == {
        name: name.partition("group_")[2].partition(".")[0] for name in layers
    }
    assert owners.keys().isdisjoint({"logits"})
    wanted = {name: Observed(layers[f"torso.group_{name}.0"].input, Statistic.RANGE) for name in ("pair", "solo")}
    _, found = Reference(graph).observe(checkpoint.parameters, checkpoint.calibration, wanted.values())
    assert np.abs(found[wanted["pair"]]).max() < 5 < np.abs(found[wanted["solo"]]).max()


@pytest.mark.parametrize("first_bit", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_policy_of_one_group_alone_computes_its_rows(kind: str, first_bit: int) -> None:
    spec, graph, checkpoint = made(kind, first_bit)
    expected = Reference(graph).run(checkpoint.parameters, checkpoint.calibration)
    for number, group in enumerate(GROUPS):
        source, smaller = alone(graph, checkpoint, group.name)
        own = Graph.parse(source)
        assert (smaller.graph_digest, own.signature.groups) == (source.digest, ())
        assert own.inputs["observations"].shape == spec.without_groups.observations.shape
        others = {name for name in checkpoint.parameters if "group_" in name and f"group_{group.name}" not in name}
        assert smaller.parameters.keys() == checkpoint.parameters.keys() - others
        assert smaller.parameters["observe.normalizer.mean"].shape == (3,)
        outputs = Reference(own).run(smaller.parameters, smaller.calibration)
        for name, values in outputs.items():
            np.testing.assert_allclose(values, expected[name][number == RARE], atol=1e-6)
        # The nodes of one policy: no bits, and no sums over groups.
        kinds = [node.op_type for node in own.model.graph.node]
        assert kinds.count("Gemm") == len(graph.layers) // 2
        assert not {"Concat", "Identity"} & {*kinds}
        assert kinds.count("Split") == (kind == "sac")


@pytest.mark.parametrize("scheme", ["int8", "int8-static", "int4"])
def test_the_policy_of_one_group_alone_is_quantized_and_judged(scheme: str) -> None:
    _, graph, checkpoint = made("dqn")
    source, smaller = alone(graph, checkpoint, "pair")
    attempt = emit(Graph.parse(source), smaller, scheme)
    assert attempt.quantized == ("torso.group_pair.2",)
    assert attempt.report.observations == 4
    assert attempt.report.groups == ()
    whole = emit(graph, checkpoint, scheme)
    assert len(attempt.model) < 0.7 * len(whole.model)


def test_masks_are_kept_in_the_policy_of_one_group() -> None:
    from actorq.domain.leaves import ACTION_MASK, VECTOR, Leaf, views
    from tests.builders.structured import packed

    leaves = Leaf(VECTOR, "numbers", (5,), "float32"), Leaf(ACTION_MASK, "mask", (4,), "bool")
    spec = replace(grouped(DISCRETE), observations=packed(*leaves))
    rows = np.zeros((200, spec.observations.shape[0]), np.uint8)
    found = views(spec.leaves, rows)
    found[VECTOR][...] = random_rows(200, RARE)
    found[ACTION_MASK][...] = np.random.default_rng(0).random((200, 4)) < 0.5
    found[ACTION_MASK][:, 2] = True
    torch.manual_seed(3)
    policy = QNetwork(spec, (64, 64), dueling=True)
    source = export_policy_graph(policy, spec)
    assert source.signature.groups[0] == RowGroup("pair", "observations/vector", 1)
    graph = Graph.parse(source)
    batch = calibration_batch(rows, spec, False, seed=1)
    checkpoint = Checkpoint(1, 1, source.digest, snapshot_parameters(policy), batch, 0.0)
    expected = Reference(graph).run(checkpoint.parameters, batch)["q_values"]
    own, smaller = alone(graph, checkpoint, "solo")
    found_alone = Reference(Graph.parse(own)).run(smaller.parameters, smaller.calibration)["q_values"]
    np.testing.assert_allclose(found_alone, expected[RARE == 1], atol=1e-6)
    assert smaller.calibration["mask"].shape == (196, 4)


def test_a_group_that_does_not_exist_or_has_no_rows_is_refused() -> None:
    _, graph, checkpoint = made("dqn", rows=random_rows(20, 1))
    with pytest.raises(InvalidInputError, match="--group: expected one of pair, solo, got other"):
        alone(graph, checkpoint, "other")
    with pytest.raises(InvalidInputError, match="no stored observations of group pair"):
        alone(graph, checkpoint, "pair")
    plain = Graph.parse(signed_graph(graph.model, replace(graph.signature, groups=())))
    with pytest.raises(InvalidInputError, match="the policy has no groups, got pair"):
        alone(plain, checkpoint, "pair")


def test_a_graph_that_mixes_groups_is_refused() -> None:
    _, graph, checkpoint = made("ppo")
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    # The logits depend on a sum of both bits.
    (last,) = [node for node in model.graph.node if "logits" in node.output]
    last.output[0] = "before"
    split = next(node for node in model.graph.node if node.op_type == "Split")
    both = [name for name in split.output if name in {each for node in model.graph.node for each in node.input}]
    bits = [name for name in both if name not in next(n for n in model.graph.node if n.op_type == "Concat").input]
    model.graph.node.append(helper.make_node("Sub", ["before", bits[0]], ["logits"]))
    mixed = Graph.parse(signed_graph(model, graph.signature))
    with pytest.raises(InvalidInputError, match="does not separate group pair"):
        alone(mixed, checkpoint, "pair")


def test_a_bit_outside_of_the_input_is_refused() -> None:
    _, graph, _ = made("dqn")
    groups = (RowGroup("pair", "observations", 5),)
    with pytest.raises(InvalidInputError, match="the bit of group 'pair' must be one of the 5 components"):
        Graph.parse(signed_graph(parsed_model(graph.source.model), replace(graph.signature, groups=groups)))


def test_an_emission_keeps_the_signature_with_its_groups() -> None:
    _, graph, checkpoint = made("dqn")
    attempt = emit(graph, checkpoint, "int8")
    assert isinstance(Emission(attempt.model, ()), Emission)
    text = {each.key: each.value for each in parsed_model(attempt.model).metadata_props}["signature"]
    assert '"groups":[["pair","observations",1],["solo","observations",2]]' in text
