"""Sparse policies through the emitter: smaller models of the same policy, and plans for each compact form."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from actorq.config.sections import GateConfig, QuantizerConfig
from actorq.domain.policy import SCHEMES, Checkpoint, Policy, Variant
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options
from quantizer_service.command.comparison import compact, compare
from quantizer_service.emission.emitter import Emitter
from quantizer_service.emission.prepared_graph import MAX_FORMS, PreparedGraph
from quantizer_service.store.reader import PolicyReader
from quantizer_service.store.store import PolicyStore
from tests.builders.processors import INT8_HERE
from tests.quantizer_service.policy_graphs import Tensors, mlp
from tests.quantizer_service.policy_runs import all_outputs_of, checkpoint, fp32_outputs, random_parameters
from tests.quantizer_service.ruined_policies import DEEP, dead_observations, deep_parameters

SOURCE = mlp(32, 32)


def emitter_for(path: Path, source: object = SOURCE, config: QuantizerConfig | None = None) -> Emitter:
    emitter = Emitter(PolicyStore(path, retain_newest=9, retain_best=0), config)
    emitter.catalog.claim("run")
    emitter.add_graph(source)  # type: ignore[arg-type]
    return emitter


def sparse(version: int, silent: int = 10, unread: int = 20) -> Checkpoint:
    """A version with this many units without inputs in its first layer, and this many unread units in its second."""
    parameters = random_parameters(SOURCE, version)
    parameters["layers.0.weight"][:silent] = 0
    parameters["layers.2.weight"][:, :unread] = 0
    return checkpoint(SOURCE, version, parameters=parameters)


def shapes(model: bytes) -> set[tuple[int, ...]]:
    return {tuple(tensor.dims) for tensor in onnx.ModelProto.FromString(model).graph.initializer}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_gets_the_compact_policy_and_is_compared_with_the_published_one(
    tmp_path: Path, scheme: str
) -> None:
    loose = QuantizerConfig(gate=GateConfig(max_mean_error=1.0, max_error=1.0, min_agreement=0.0))
    (policy,) = emitter_for(tmp_path, config=loose).publish(version := sparse(1), [scheme])

    widths = {layer.name: (layer.published_units, layer.units) for layer in policy.descriptor.fidelity.layers}
    assert widths == {"layers.0": (32, 22), "layers.1": (32, 12), "layers.2": (0, 0)}
    assert not any(32 in shape for shape in shapes(policy.model))
    expected = fp32_outputs(Graph.parse(SOURCE), version.parameters, version.calibration)
    error = np.abs(all_outputs_of(policy.model, version.calibration)[0] - expected)
    assert policy.descriptor.fidelity.mean_error == pytest.approx(error.mean(), rel=0.05, abs=1e-6)
    assert policy.descriptor.fp32_size_bytes == sum(array.nbytes for array in version.parameters.values())
    assert policy.descriptor.graph_digest == SOURCE.digest


def test_a_version_without_sparsity_is_not_changed(tmp_path: Path) -> None:
    (policy,) = emitter_for(tmp_path).publish(checkpoint(SOURCE, 1), ["int8"])

    assert {layer.units for layer in policy.descriptor.fidelity.layers} == {0}
    assert (32, 32) in shapes(policy.model)


def test_live_units_may_change_from_version_to_version_and_back(tmp_path: Path) -> None:
    emitter = emitter_for(tmp_path)
    sizes = []
    for number, (silent, unread) in enumerate([(10, 20), (0, 0), (11, 20), (10, 20)], 1):
        (policy,) = emitter.publish(sparse(number, silent, unread), ["int8"])
        sizes.append(policy.descriptor.size_bytes)
        assert policy.descriptor.fidelity.passed

    assert sizes[0] == sizes[3] < sizes[1]
    assert sizes[2] < sizes[0]


def test_plans_are_kept_for_the_forms_that_alternate() -> None:
    graph = PreparedGraph(Graph.parse(SOURCE))

    def form(silent: int) -> object:
        return graph.without_dead_units(sparse(1, silent)).form

    first = form(1)
    assert form(1) is first
    for silent in range(2, MAX_FORMS + 1):
        form(silent)
    assert form(1) is first
    for silent in range(2, MAX_FORMS + 2):
        form(silent)
    assert form(1) is not first
    dense = graph.without_dead_units(checkpoint(SOURCE, 1))
    assert dense.form is dense.published


def test_a_policy_that_became_narrower_keeps_its_rung(tmp_path: Path) -> None:
    emitter = emitter_for(tmp_path, DEEP)

    def version(number: int, silent: int) -> Checkpoint:
        parameters: Tensors = deep_parameters(number, ("layers.2",))
        parameters["layers.0.weight"][8 : 8 + silent] = 0
        return checkpoint(DEEP, number, parameters=parameters, calibration=dead_observations())

    before: Policy = emitter.publish(version(1, 0), ["int8"])[0]
    after: Policy = emitter.publish(version(2, 3), ["int8"])[0]

    assert before.descriptor.fidelity.refused
    assert not after.descriptor.fidelity.refused
    assert before.descriptor.fidelity.gated_layers == after.descriptor.fidelity.gated_layers == ("layers.2",)
    assert after.descriptor.fidelity.layers[0].units == 13


def test_widths_are_stored_with_the_policy(tmp_path: Path) -> None:
    emitter = emitter_for(tmp_path)
    version = sparse(1)
    policies = emitter.publish(version, ["int8"])

    assert Emitter(PolicyReader(tmp_path)).catalog.get(INT8_HERE).descriptor == policies[0].descriptor
    assert Emitter(PolicyReader(tmp_path)).catalog.get(Variant("fp32")).descriptor.fidelity.layers[1].units == 12


def test_actorq_quantize_also_removes_dead_units() -> None:
    version = sparse(1)
    found = compare(
        compact(Graph.parse(SOURCE), version.parameters, version.calibration, Options()), (1,), GateConfig()
    )

    assert found.of("fp32").report.layers[0].units == 22
    assert len(found.of("fp32").model) < sum(array.nbytes for array in version.parameters.values())
