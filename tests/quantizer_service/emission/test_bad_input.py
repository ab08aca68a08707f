"""Harmful submissions: they are refused with a precise status, the last good policy is still served, and their memory
is bounded.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from actorq.client import QuantizerClient
from actorq.domain.policy import Checkpoint
from tests.builders.forked_commands import run
from tests.builders.processors import INT8_HERE
from tests.builders.service_process import service_process
from tests.quantizer_service.bad_submissions import (
    CHECKPOINTS,
    CONFLICT,
    GRAPHS,
    Send,
    blob_in_large_parts,
    edited,
    fits_no_shape,
    huge_checkpoint,
    huge_graph,
    parameters,
    refusal,
    truncated,
    with_value,
)
from tests.quantizer_service.policy_graphs import mlp
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.quantizer_server import SOURCE, Publisher, opened, running_quantizer
from tests.quantizer_service.ruined_policies import DEEP, dead_observations, deep_parameters


@pytest.fixture
def client(tmp_path: Path) -> Iterator[QuantizerClient]:
    with running_quantizer(tmp_path / "store") as address, QuantizerClient(address) as client:
        yield client


@pytest.mark.parametrize(("send", "status", "fact"), CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def test_a_bad_checkpoint_is_refused_and_the_last_good_policy_stays_served(
    client: QuantizerClient, send: Send, status: grpc.StatusCode, fact: str
) -> None:
    _refused(client, send, status, fact)


@pytest.mark.parametrize(("send", "status", "fact"), GRAPHS.values(), ids=GRAPHS.keys())
def test_a_bad_graph_is_refused_and_the_last_good_policy_stays_served(
    client: QuantizerClient, send: Send, status: grpc.StatusCode, fact: str
) -> None:
    _refused(client, send, status, fact)


def _refused(client: QuantizerClient, send: Send, status: grpc.StatusCode, fact: str) -> None:
    publisher = opened(client, versions=1)
    before, listed, watch = client.get("int8"), client.list(), client.watch("int8")
    assert next(watch) == before

    code, details = refusal(publisher, send)

    assert code is status, details
    assert re.search(fact, details), details
    assert "\n" not in details
    assert (client.get("int8"), client.list()) == (before, listed)
    assert client.fidelity("int8", 1) == before.descriptor
    again = Publisher(client)
    ready = again.open()
    assert (ready.newest_version, list(ready.graph_digests)) == (1, [SOURCE.digest])
    assert again.publish(checkpoint(SOURCE, 2)).version == 2
    assert next(watch).descriptor.version == 2


def test_an_older_version_than_the_newest_is_refused(client: QuantizerClient) -> None:
    publisher = opened(client, versions=3)

    code, details = refusal(publisher, lambda p: p.send_checkpoint(checkpoint(SOURCE, 2)))

    assert code is CONFLICT
    assert re.search("version above 3, .*2;", details)
    assert client.get("int8").descriptor.version == 3


def test_many_bad_submissions_leave_no_memory_behind(tmp_path: Path) -> None:
    megabytes = bytes(4 * 2**20)
    bad: list[Send] = [
        lambda p: blob_in_large_parts(p, megabytes),
        truncated,
        huge_checkpoint,
        huge_graph,
        parameters(layers__1__weight=with_value(np.nan)),
        edited(fits_no_shape),
    ]
    # A separate process, so that its memory is only the quantizer's.
    store = str(tmp_path / "store")
    with service_process("quantizer", "--store", store) as process, QuantizerClient(process.address) as client:
        opened(client, versions=1)
        before = client.get("int8")

        def held_after(rounds: int) -> int:
            for send in bad * rounds:
                publisher = Publisher(client)
                publisher.open()
                refusal(publisher, send)
            return int(psutil.Process(process.pid).memory_info().rss)

        held = held_after(5)

        # They send 100 MiB and claim 50 GB.
        assert held_after(25) - held < 50 * 2**20
        assert client.get("int8") == before


def test_the_number_of_kept_graphs_is_bounded(client: QuantizerClient, tmp_path: Path) -> None:
    publisher = opened(client, versions=1)
    for width in range(2, 40):
        publisher.send_graph(mlp(width))
    publisher.close()

    ready = Publisher(client).open()

    assert SOURCE.digest in ready.graph_digests
    assert len(ready.graph_digests) < 12
    assert len(list((tmp_path / "store" / "graphs").iterdir())) == 2 * len(ready.graph_digests)


def ruined(version: int) -> Checkpoint:
    layers = ("layers.1", "layers.2", "layers.3")
    return checkpoint(DEEP, version, parameters=deep_parameters(version, layers), calibration=dead_observations())


def test_a_policy_that_quantization_ruins_is_emitted_with_more_layers_in_float(tmp_path: Path) -> None:
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        client.weight_encoding = INT8_HERE.weight_encoding
        publisher = Publisher(client)
        publisher.open()
        publisher.send_graph(DEEP)
        receipt = publisher.publish(ruined(1))
        before = client.get("int8")

    (descriptor,) = receipt.policies
    assert descriptor == before.descriptor
    assert (descriptor.scheme, descriptor.fidelity.passed) == ("int8", True)
    assert descriptor.fidelity.refused
    assert descriptor.fidelity.gated_layers
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        client.weight_encoding = INT8_HERE.weight_encoding
        assert next(client.watch("int8")) == before
        assert client.fidelity("int8") == descriptor


@pytest.mark.parametrize("more", [[], ["--read-only"]])
def test_a_store_of_an_older_version_of_this_project_ends_the_start_in_one_line(
    tmp_path: Path, more: list[str]
) -> None:
    (tmp_path / "run.json").write_text('{"run_id": "run"}')

    ended = run("quantizer_service", "--store", str(tmp_path), *more, timeout=60)

    assert ended.returncode == 2
    assert re.match(rf"error: --store: {tmp_path}: run\.json .*digest", ended.stderr)
    assert ended.stderr.count("\n") == 1
