"""The whole service over a real socket."""

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from safetensors.numpy import save

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.contract import CONTRACT
from actorq.domain.policy import CALIBRATION_PREFIX, Policy
from actorq.errors import NotFoundError, UnavailableError
from actorq.v1 import quantizer_pb2, trajectory_pb2
from tests.quantizer_service.policy_runs import checkpoint, outputs_of, random_observations, random_parameters
from tests.quantizer_service.quantizer_server import SOURCE, Publisher, opened, running_quantizer


@pytest.fixture
def client(tmp_path: Path) -> Iterator[QuantizerClient]:
    with running_quantizer(tmp_path / "store") as address, QuantizerClient(address) as client:
        yield client


def evaluation(version: int, mean_return: float) -> trajectory_pb2.Evaluation:
    return trajectory_pb2.Evaluation(policy_version=version, scheme="int8", returns=[mean_return], lengths=[10])


def test_a_graph_once_then_versions_each_with_a_receipt(client: QuantizerClient) -> None:
    publisher = Publisher(client)
    ready = publisher.open()
    assert (ready.newest_version, list(ready.graph_digests)) == (0, [])
    publisher.send_graph(SOURCE)

    receipts = [publisher.publish(checkpoint(SOURCE, version)) for version in (1, 2, 5)]

    assert [receipt.version for receipt in receipts] == [1, 2, 5]
    (descriptor,) = receipts[-1].policies
    assert (descriptor.run_id, descriptor.scheme, descriptor.learner_step) == ("run", "int8", 500)
    assert descriptor.snapshot_at == pytest.approx(1_700_000_005.0)
    assert descriptor.fp32_size_bytes == sum(a.nbytes for a in random_parameters(SOURCE, 5).values())
    assert descriptor.fidelity.observations == 32
    assert descriptor.fidelity.float_layers == ("layers.0", "layers.2")
    assert 0 < descriptor.fidelity.relative_max_error < 0.03
    assert receipts[-1].emit_seconds > 0
    assert (receipts[-1].process.role, receipts[-1].process.name) == ("quantizer", "quantizer")
    assert [entry.version for entry in client.list()] == [5, 2, 1]


def test_actors_get_the_published_policy(client: QuantizerClient) -> None:
    opened(client, versions=1)

    policy = client.get("int8")

    assert policy.descriptor == client.fidelity("int8", 1)
    assert len(policy.model) == policy.descriptor.size_bytes
    assert outputs_of(policy.model, random_observations()).shape == (32, 3)


def test_another_scheme_is_emitted_on_demand_and_kept(client: QuantizerClient) -> None:
    opened(client, versions=2)
    assert client.list()[1].schemes == ("int8",)

    old, newest = client.get("fp32", 1), client.get("fp32")

    assert (old.descriptor.version, newest.descriptor.version) == (1, 2)
    assert newest.descriptor.fidelity.relative_max_error < 1e-6
    assert [entry.schemes for entry in client.list()] == [("fp32", "int8")] * 2


def test_a_read_only_quantizer_serves_beside_a_writer_and_accepts_nothing(
    client: QuantizerClient, tmp_path: Path
) -> None:
    opened(client, versions=2)
    # This may store another encoding of the version.
    newest = client.get("int8")
    files = sorted(tmp_path.rglob("*"))
    with running_quantizer(tmp_path / "store", read_only=True) as address, QuantizerClient(address) as reader:
        assert reader.get("int8") == newest
        assert reader.get("fp32", 1).descriptor == reader.fidelity("fp32", 1)
        assert next(reader.watch("int8")).descriptor.version == 2
        with pytest.raises(grpc.RpcError) as caught:
            Publisher(reader).open()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "read-only" in caught.value.details()
    assert sorted(tmp_path.rglob("*")) == files


def test_watchers_get_the_newest_policy_and_later_versions_include_their_schemes(client: QuantizerClient) -> None:
    publisher = opened(client, versions=2)
    watch = client.watch("fp32")
    assert next(watch).descriptor.version == 2

    receipt = publisher.publish(checkpoint(SOURCE, 3))

    assert [policy.scheme for policy in receipt.policies] == ["int8", "fp32"]
    assert receipt.watchers == 1
    assert next(watch).descriptor.version == 3


def test_a_watcher_may_come_before_the_first_version_and_name_its_last_version(client: QuantizerClient) -> None:
    versions: list[int] = []
    early = threading.Thread(target=lambda: versions.append(next(client.watch("int8", 2)).descriptor.version))
    early.start()
    opened(client, versions=3)
    early.join(10)

    assert versions == [3]


def test_a_slow_watcher_sees_a_rising_part_of_the_versions_that_ends_with_the_newest(client: QuantizerClient) -> None:
    publisher = opened(client, versions=1)
    slow, fast = client.watch("int8"), client.watch("int8")
    assert next(slow).descriptor.version == next(fast).descriptor.version == 1
    for version in range(2, 21):
        publisher.publish(checkpoint(SOURCE, version))
        assert next(fast).descriptor.version == version

    seen = _until_version(slow, 20)

    assert seen == sorted(set(seen))
    assert seen[-1] == 20


def test_a_watcher_of_another_contract_is_refused(client: QuantizerClient) -> None:
    request = quantizer_pb2.WatchPoliciesRequest(scheme="fp32", contract=CONTRACT - 1)
    with pytest.raises(grpc.RpcError) as refused:
        next(client.stub.WatchPolicies(request))
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert f"contract {CONTRACT - 1}" in refused.value.details()


def test_watchers_that_leave_are_counted_out(client: QuantizerClient) -> None:
    publisher = opened(client, versions=1)
    call = client.stub.WatchPolicies(quantizer_pb2.WatchPoliciesRequest(scheme="fp32"))
    assert next(call).policy.version == 1
    call.cancel()

    receipts = (publisher.publish(checkpoint(SOURCE, version)) for version in range(2, 200))

    assert any(receipt.watchers == 0 and len(receipt.policies) == 1 for receipt in receipts)


def test_a_restarted_quantizer_serves_its_newest_at_once(tmp_path: Path) -> None:
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        opened(client, versions=3)
        before = client.get("int8")
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        assert next(client.watch("int8")) == before
        publisher = Publisher(client)
        ready = publisher.open()
        assert (ready.newest_version, list(ready.graph_digests)) == (3, [SOURCE.digest])
        # The graph need not be sent again.
        assert publisher.publish(checkpoint(SOURCE, 4)).version == 4
        assert client.get("fp32", 2).descriptor.version == 2


def test_the_store_keeps_the_received_bytes_of_a_checkpoint(tmp_path: Path) -> None:
    sent = checkpoint(SOURCE, 4)
    tensors = {**sent.parameters, **{CALIBRATION_PREFIX + name: batch for name, batch in sent.calibration.items()}}
    # Metadata that an encoding of the tensors would not have.
    data = save(tensors, metadata={"from": "another encoder"})
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        publisher = opened(client, versions=3)
        publisher.send_checkpoint(sent, data)
        assert wire.receipt_from_proto(publisher.answer().receipt).version == 4
        publisher.close()
        assert (tmp_path / "00000004" / "checkpoint.safetensors").read_bytes() == data
    with running_quantizer(tmp_path) as address, QuantizerClient(address) as client:
        assert client.get("fp32").descriptor.version == 4


def test_only_the_newest_and_the_best_are_retained(tmp_path: Path) -> None:
    with (
        running_quantizer(tmp_path, quantizer={"retain_newest": 2, "retain_best": 1}) as address,
        QuantizerClient(address) as client,
    ):
        publisher = opened(client, versions=1)
        publisher.send(evaluation=evaluation(1, 50.0))
        for version in range(2, 6):
            publisher.publish(checkpoint(SOURCE, version))
        publisher.send(evaluation=evaluation(3, 99.0))
        publisher.close()

        assert [(entry.version, entry.mean_return) for entry in client.list()] == [(5, None), (4, None), (1, 50.0)]
        with pytest.raises(NotFoundError, match=r"version 3 .* 3, newest 5"):
            client.get("int8", 3)


def test_draining_ends_the_streams(tmp_path: Path) -> None:
    with running_quantizer(tmp_path) as address:
        client = QuantizerClient(address)
        publisher = opened(client, versions=1)
        watch = client.watch("int8")
        next(watch)

    with pytest.raises(UnavailableError, match="draining"):
        next(watch)
    with pytest.raises(grpc.RpcError) as caught:
        publisher.answer()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(UnavailableError):
        client.list()
    client.close()


def test_requests_for_a_missing_policy_scheme_or_version_are_refused(client: QuantizerClient) -> None:
    with pytest.raises(NotFoundError, match="no policy"):
        client.get("int8")
    with pytest.raises(NotFoundError, match=r"fp32, .*'int3'"):
        client.get("int3")
    opened(client, versions=1)
    with pytest.raises(NotFoundError, match=r"fp32, .*'int3'"):
        client.get("int3")
    with pytest.raises(NotFoundError, match=r"fp32, .*'int3'"):
        next(client.watch("int3"))
    with pytest.raises(NotFoundError, match="version 9 "):
        client.fidelity("int8", 9)
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.ListPolicies(quantizer_pb2.ListPoliciesRequest(page_size=1001))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(("versions", "expected"), [(5, [[5, 4], [3, 2], [1]]), (4, [[4, 3], [2, 1]])])
def test_policies_are_listed_in_pages(client: QuantizerClient, versions: int, expected: list[list[int]]) -> None:
    opened(client, versions=versions)
    token = ""
    pages: list[list[int]] = []
    while token or not pages:
        request = quantizer_pb2.ListPoliciesRequest(page_size=2, page_token=token)
        page = client.stub.ListPolicies(request)
        pages.append([entry.version for entry in page.policies])
        token = page.next_page_token

    assert pages == expected


def _until_version(policies: Iterator[Policy], version: int) -> list[int]:
    seen: list[int] = []
    while not seen or seen[-1] < version:
        seen.append(next(policies).descriptor.version)
    return seen
