"""Quantization-aware training of several groups computes the numbers of the emitted policy."""

import numpy as np
import pytest
import torch

from actorq.domain.policy import Checkpoint
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options
from learner_service.networks import SoftmaxPolicy
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from learner_service.quantization.fake_quantization import FakeQuantization
from quantizer_service.emission.inference import open_session
from quantizer_service.emission.prepared_graph import PreparedGraph
from tests.builders.grouped import FIRST_BIT, grouped, random_rows
from tests.builders.processors import exact_here

pytestmark = pytest.mark.usefixtures("operators_parsed_once")

SPEC = grouped(EnvironmentSpec("Team-v0", ArraySpec((3,), "float32"), ArraySpec((), "int64"), (4,)))


@pytest.mark.parametrize("scheme", ["int8-weights", "int8", "int8-static", "int4"])
def test_training_computes_what_actors_compute(scheme: str) -> None:
    torch.manual_seed(0)
    policy = SoftmaxPolicy(SPEC, (64, 64))
    graph = export_policy_graph(policy, SPEC)
    # One row in twenty is of the first group, with larger numbers than the other rows.
    groups = np.where(np.arange(200) % 20, 1, 0)
    rows = random_rows(200, groups)
    rows[:, FIRST_BIT + 2 :] *= np.where(groups, 1.0, 5.0)[:, None].astype(np.float32)
    # Training turns corrections off, as a run with quantization-aware training does.
    prepared = PreparedGraph(Graph.parse(graph), Options(compensate=False))
    stored = Checkpoint(1, 1, graph.digest, snapshot_parameters(policy), {"observations": rows}, 0.0)
    version = prepared.without_dead_units(prepared.validated(stored))
    run = version.run("run", [prepared.ladder(scheme)])
    emission = version.form.plans(scheme).quantize(run, frozenset())
    quantized = [layer.name for layer in emission.layers if not layer.in_float]
    assert {"torso.group_pair.2", "torso.group_solo.2"} <= {*quantized}
    fake = FakeQuantization(policy, graph)
    fake.follow(scheme, emission.layers)
    fake.calibrate(torch.from_numpy(rows))
    assert set(fake.layers) == set(quantized)
    with fake.applied(), torch.no_grad():
        trained = policy(torch.from_numpy(rows)).numpy()
    session = open_session(exact_here(emission.model), "policy")
    (acted,) = session.run(None, {"observations": rows})
    with torch.no_grad():
        in_float = policy(torch.from_numpy(rows)).numpy()
    assert np.abs(acted - in_float).max() > 1e-4
    np.testing.assert_allclose(trained, acted, atol=1e-5)
