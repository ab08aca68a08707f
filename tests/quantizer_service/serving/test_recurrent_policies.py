"""Policies with memory over the wire: their reports, metrics and relays."""

import asyncio
import time
from pathlib import Path

import numpy as np

from actorq.client import QuantizerClient
from actorq.domain.policy import PolicyDescriptor
from actorq.domain.signature import Role
from quantizer_service.emission.emitter import Emitter
from quantizer_service.emission.inference import open_session
from quantizer_service.serving.metrics import quantizer_metrics
from quantizer_service.serving.quantizer import Quantizer
from quantizer_service.store.store import PolicyStore
from tests.quantizer_service.quantizer_server import Publisher, running_quantizer, running_relay
from tests.quantizer_service.recurrent_graphs import STATE, calibration, integrator, version
from tests.quantizer_service.serving.test_metrics import PROCESS

GRAPH = integrator()


def published(client: QuantizerClient) -> tuple[Publisher, PolicyDescriptor]:
    publisher = Publisher(client)
    publisher.open()
    publisher.send_graph(GRAPH)
    receipt = publisher.publish(version(GRAPH))
    return publisher, receipt.policies[0]


def test_the_report_has_the_errors_of_the_state(tmp_path: Path) -> None:
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        publisher, received = published(client)
        report = client.fidelity("int8").fidelity
        assert report == received.fidelity
        assert [(each.steps, each.sequences) for each in report.sequences] == [(1, 6), (8, 6), (64, 6)]
        assert report.state_drift is not None
        assert report.state_drift <= 0.02
        assert report.refused[0].state_drift is not None
        assert report.refused[0].state_drift > 0.02
        publisher.close()
    # A restarted quantizer has the same report.
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        assert client.fidelity("int8").fidelity == report


def test_a_relay_serves_a_policy_with_its_state(tmp_path: Path) -> None:
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        publisher, received = published(client)
        with running_relay(address) as relay, QuantizerClient(relay) as relayed:
            policy = next(relayed.watch("int8"))
            assert policy == client.get("int8")
            assert relayed.fidelity("int8").fidelity == received.fidelity
        session = open_session(policy.model, "relayed policy")
        rows = calibration(4)
        outputs = dict(zip([each.name for each in session.get_outputs()], session.run(None, rows), strict=True))
        assert outputs["next_state"].shape == (4, STATE)
        assert not np.array_equal(outputs["next_state"], rows[Role.STATE])
        publisher.close()


def test_the_metrics_have_the_drift(tmp_path: Path) -> None:
    emitter = Emitter(PolicyStore(tmp_path, 2, 0))
    emitter.catalog.claim("run")
    emitter.add_graph(GRAPH)

    async def published() -> tuple[float | None, dict[str, float]]:
        quantizer = Quantizer(emitter, lambda: PROCESS)
        receipt = await quantizer.publish(version(GRAPH), "int8", time.perf_counter())
        samples = {each.name: each.value for family in quantizer_metrics(quantizer) for each in family.samples}
        return receipt.policies[0].fidelity.state_drift, samples

    drift, samples = asyncio.run(published())
    assert samples["actorq_quantizer_state_drift_ratio"] == drift is not None
