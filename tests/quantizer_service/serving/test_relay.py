"""A relay between a real quantizer and real watchers."""

import gc
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from actorq.client import QuantizerClient
from actorq.domain.policy import Policy
from actorq.errors import NotFoundError, UnavailableError
from actorq_apps.local.services import reserved_addresses
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.quantizer_server import (
    DEADLINE_S,
    SOURCE,
    Publisher,
    opened,
    running_quantizer,
    running_relay,
)


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[str]:
    with running_quantizer(tmp_path / "store") as address:
        yield address


@pytest.fixture
def client(upstream: str) -> Iterator[QuantizerClient]:
    with QuantizerClient(upstream) as client:
        yield client


def test_watchers_of_a_relay_get_what_the_quantizer_serves(upstream: str, client: QuantizerClient) -> None:
    publisher = opened(client, versions=1)
    with running_relay(upstream) as address, QuantizerClient(address) as relayed:
        one, other, floats = relayed.watch("int8"), relayed.watch("int8"), relayed.watch("fp32")
        assert next(one) == next(other) == client.get("int8")
        assert next(floats) == client.get("fp32")

        receipt = publisher.publish(checkpoint(SOURCE, 2))

        assert next(one) == next(other) == client.get("int8")
        # One stream for each scheme, however many watch it.
        assert receipt.watchers == 2
        assert [policy.scheme for policy in receipt.policies] == ["int8", "fp32"]


def test_the_stream_of_a_scheme_is_closed_when_its_last_watcher_leaves(upstream: str, client: QuantizerClient) -> None:
    publisher = opened(client, versions=1)
    with running_relay(upstream) as address:
        leaving = QuantizerClient(address)
        for watch in (leaving.watch("fp32"), leaving.watch("fp32")):
            next(watch)
        leaving.close()

        receipts = (publisher.publish(checkpoint(SOURCE, version)) for version in range(2, 500))

        assert any(receipt.watchers == 0 and len(receipt.policies) == 1 for receipt in receipts)


def test_a_watcher_that_comes_later_gets_the_newest(upstream: str, client: QuantizerClient) -> None:
    publisher = opened(client, versions=1)
    with running_relay(upstream) as address:
        with QuantizerClient(address) as first:
            next(first.watch("int8"))
        publisher.publish(checkpoint(SOURCE, 2))
        with QuantizerClient(address) as second:
            assert next(second.watch("int8", after_version=1)).descriptor.version == 2


def test_other_versions_their_list_and_their_descriptions_come_from_the_upstream(
    upstream: str, client: QuantizerClient
) -> None:
    opened(client, versions=3)
    with running_relay(upstream) as address, QuantizerClient(address) as relayed:
        assert relayed.get("int8", 1) == client.get("int8", 1)
        assert relayed.get("int8") == client.get("int8")
        assert relayed.fidelity("fp32", 2) == client.fidelity("fp32", 2)
        assert relayed.list() == client.list()
        with pytest.raises(NotFoundError, match="version 9 "):
            relayed.get("int8", 9)
        with pytest.raises(NotFoundError, match="'int3'"):
            next(relayed.watch("int3"))


def test_nothing_can_be_published_to_a_relay(upstream: str) -> None:
    with (
        running_relay(upstream) as address,
        QuantizerClient(address) as relayed,
        pytest.raises(grpc.RpcError) as caught,
    ):
        Publisher(relayed).open()
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert upstream in caught.value.details()


def test_a_stream_refused_before_it_is_read_logs_no_warning(upstream: str) -> None:
    """gRPC's iterator of requests warns when it was begun and never awaited."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with (
            running_relay(upstream) as address,
            QuantizerClient(address) as relayed,
            pytest.raises(grpc.RpcError),
        ):
            Publisher(relayed).open()
        gc.collect()
    assert [str(warning.message) for warning in caught if "never awaited" in str(warning.message)] == []


def test_a_relay_may_come_before_its_upstream_and_before_the_first_version(tmp_path: Path) -> None:
    got: list[Policy] = []
    with (
        reserved_addresses(1) as (upstream,),
        running_relay(upstream) as relay,
        QuantizerClient(relay) as relayed,
    ):
        watcher = threading.Thread(target=lambda: got.append(next(relayed.watch("int8"))))
        watcher.start()
        with pytest.raises(UnavailableError):
            relayed.get("int8")
        with running_quantizer(tmp_path / "store", listen=upstream), QuantizerClient(upstream) as client:
            client.wait()
            opened(client, versions=1)
            watcher.join(DEADLINE_S)
            assert got == [client.get("int8")]


def test_draining_ends_the_watchers_streams(upstream: str, client: QuantizerClient) -> None:
    opened(client, versions=1)
    with running_relay(upstream) as address:
        relayed = QuantizerClient(address)
        watch = relayed.watch("int8")
        next(watch)
    with pytest.raises(UnavailableError, match="draining"):
        next(watch)
    with pytest.raises(UnavailableError):
        next(relayed.watch("int8"))
    relayed.close()
