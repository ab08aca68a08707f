"""Corrections of rounding remove the mean error, and improve held-out agreement, with one run of FP32."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from actorq.domain.policy import PolicyGraph
from actorq.quantization.calibration import Observed, Statistic
from actorq.quantization.emission.correction import MOST_INPUTS, WIDEST_INT8
from actorq.quantization.graph import Graph
from actorq.quantization.layers import CONVOLUTION
from actorq.quantization.schemes import SCHEMES, Options, scheme_named
from actorq.quantization.schemes.base import Plan
from quantizer_service.emission.reference import Reference, ReferenceRun
from tests.quantizer_service.policy_graphs import GRAPHS, Tensors, mlp, policy_graph
from tests.quantizer_service.policy_runs import (
    checkpoint,
    emitted,
    fp32_outputs,
    outputs_of,
    random_inputs,
    random_observations,
    random_parameters,
)

QUANTIZED = [name for name in SCHEMES if name != "fp32"]


def layer(inputs: int, bias: bool = True) -> PolicyGraph:
    """One layer, whose outputs are the policy's outputs."""
    parameters = {"l.weight": [24, inputs], **({"l.bias": [24]} if bias else {})}
    node = helper.make_node("Gemm", ["observation", *parameters], ["q_values"], transB=1)
    return policy_graph([node], parameters, ("batch", inputs))


LAYERS = {
    "few inputs": layer(40),
    "many inputs": layer(MOST_INPUTS + 20),
}


@pytest.mark.parametrize("source", LAYERS.values(), ids=LAYERS)
def test_the_mean_error_on_the_calibration_batch_is_gone(source: PolicyGraph) -> None:
    graph = Graph.parse(source)
    parameters, batch = random_parameters(source, 1), random_inputs(graph, 100)
    batch["observation"] += np.float32(0.5)
    expected = fp32_outputs(graph, parameters, batch)

    def mean_error(compensate: bool) -> float:
        # This scheme rounds only weights.
        plan = Plan(graph, scheme_named("int8-weights"), Options(compensate=compensate))
        outputs = outputs_of(emitted(plan, parameters, batch), batch).astype(np.float64)
        return float(np.abs((outputs - expected).mean(axis=0)).max())

    assert mean_error(True) < 1e-6 < 1e-4 < mean_error(False)


@pytest.mark.parametrize("scheme", ["int8", "int8-static", "int4"])
def test_a_layer_without_a_bias_gets_one(scheme: str) -> None:
    source = layer(40, bias=False)
    for compensate in (True, False):
        plan = Plan(Graph.parse(source), scheme_named(scheme), Options(ends=True, compensate=compensate))
        model = onnx.ModelProto.FromString(emitted(plan, random_parameters(source, 1)))
        biases = [numpy_helper.to_array(each) for each in model.graph.initializer if each.name.endswith(":bias")]
        assert len(biases) == compensate
        assert all(bias.shape == (24,) and bias.any() for bias in biases)


def test_a_bias_that_another_node_reads_is_left_alone_by_int8_weights() -> None:
    # Two layers share "a.bias".
    source = GRAPHS["sequence"]
    parameters = random_parameters(source, 1)
    model = onnx.ModelProto.FromString(emitted(Plan(Graph.parse(source), scheme_named("int8-weights")), parameters))
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}

    assert np.array_equal(held["a.bias"], parameters["a.bias"])
    assert not np.array_equal(held["head.bias"], parameters["head.bias"])


def test_convolutions_are_left_alone() -> None:
    for scheme in QUANTIZED:
        for name in ("nature cnn", "pooled"):
            layers = Graph.parse(GRAPHS[name]).layers
            images = {layer.input for layer in layers if layer.kind == CONVOLUTION}
            observed = Plan(Graph.parse(GRAPHS[name]), scheme_named(scheme), Options(ends=True)).observed
            assert not images & {tensor for tensor, statistic in observed if statistic is not Statistic.RANGE}


def leaning(seed: int) -> tuple[PolicyGraph, Tensors]:
    """A policy whose actions are equally good on average. A small error of a value therefore changes many actions."""
    source = mlp(64, 64, 64)
    parameters = random_parameters(source, seed)
    values = fp32_outputs(Graph.parse(source), parameters, shifted(256, seed, 1.0))
    (head,) = (name for name, array in parameters.items() if array.shape == values.shape[1:])
    parameters[head] -= values.mean(axis=0).astype(np.float32)
    return source, parameters


def shifted(rows: int, seed: int, by: float) -> Tensors:
    observations = random_observations(rows, seed)["observation"]
    return {"observation": (np.float32(0.5) * observations + np.float32(by)).astype(np.float32)}


@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize("rows", [256, 64])
@pytest.mark.parametrize("by", [1.0, 0.7], ids=["as calibrated", "elsewhere"])
def test_more_held_out_actions_agree(scheme: str, rows: int, by: float) -> None:
    agreement: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(8):
        source, parameters = leaning(seed)
        graph = Graph.parse(source)
        calibration, held_out = shifted(rows, seed, 1.0), shifted(1000, 100 + seed, by)
        expected = fp32_outputs(graph, parameters, held_out).argmax(axis=1)
        for compensate, found in agreement.items():
            plan = Plan(graph, scheme_named(scheme), Options(compensate=compensate))
            outputs = outputs_of(emitted(plan, parameters, calibration), held_out)
            found.append(float((outputs.argmax(axis=1) == expected).mean()))

    disagreement = {on: 1 - np.mean(found) for on, found in agreement.items()}
    assert disagreement[True] < 0.6 * disagreement[False]


@pytest.mark.parametrize("scheme", QUANTIZED)
def test_needs_only_ranges_without_compensation(scheme: str) -> None:
    for source in GRAPHS.values():
        observed = Plan(Graph.parse(source), scheme_named(scheme), Options(compensate=False)).observed
        assert {statistic for _, statistic in observed} <= {Statistic.RANGE}
        assert scheme == "int8-static" or not observed


def test_uses_moments_only_for_narrow_layers() -> None:
    source = mlp(MOST_INPUTS, MOST_INPUTS + 1, 8)
    observed = Plan(Graph.parse(source), scheme_named("int8")).observed

    assert [name for name, statistic in observed if statistic is Statistic.MOMENTS] == ["relu_0"]
    assert [name for name, statistic in observed if statistic is Statistic.MEAN] == ["relu_0", "relu_1"]


@pytest.mark.parametrize(("scheme", "corrected"), [("int8", False), ("int8-weights", False), ("int4", True)])
def test_wide_layers_of_int8_need_no_statistics(scheme: str, corrected: bool) -> None:
    source = mlp(8, WIDEST_INT8 + 1, 8)
    observed = Plan(Graph.parse(source), scheme_named(scheme), Options(ends=True)).observed

    assert (Observed("relu_1", Statistic.MEAN) in observed) == corrected
    assert (Observed("relu_0", Statistic.MEAN) in observed) == (scheme != "int4")


def test_a_large_policy_has_means_of_few_rows_and_ranges_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quantizer_service.emission.reference.MAX_WEIGHT_ROWS", 0)
    source = mlp(32, 32)
    graph = Graph.parse(source)
    observations = random_observations(200)
    taken = replace(checkpoint(source, 1), calibration=observations)
    wanted = frozenset(Observed("observation", each) for each in (Statistic.MEAN, Statistic.RANGE))

    reference = Reference(graph)
    run = ReferenceRun("run", taken, reference, reference, taken.parameters, wanted)
    found = run.statistics(wanted)

    rows = observations["observation"]
    assert len(run.batch["observation"]) == 64
    measured = run.batch["observation"].mean(axis=0, dtype=np.float64)
    assert found[Observed("observation", Statistic.MEAN)] == pytest.approx(measured)
    assert found[Observed("observation", Statistic.RANGE)].tolist() == [rows.min(), rows.max()]
