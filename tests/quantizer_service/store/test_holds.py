"""Held versions: duration and number of holds, their effect on retention, and the wire."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from actorq.client import QuantizerClient
from actorq.domain.trajectory import Evaluation
from actorq.errors import ConflictError, NotFoundError, UnavailableError
from actorq.v1 import quantizer_pb2, trajectory_pb2
from quantizer_service.emission.emitter import Emitter
from quantizer_service.store.reader import PolicyReader
from quantizer_service.store.store import MAX_HOLD_S, MAX_HOLDS, Holds, PolicyStore
from tests.builders.clocks import ManualClock
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.quantizer_server import SOURCE, opened, running_quantizer, running_relay


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[PolicyStore]:
    """Two versions, as many as it retains besides the best one."""
    with closing(PolicyStore(tmp_path / "held", 2, 1, clock=clock)) as store:
        store.claim("run")
        store.add_graph(SOURCE)
        publish(store, 1, 2)
        yield store


@pytest.fixture
def client(tmp_path: Path) -> Iterator[QuantizerClient]:
    """Of a quantizer that retains one version besides the best one."""
    config = {"retain_newest": 1, "retain_best": 1}
    with running_quantizer(tmp_path / "store", quantizer=config) as address, QuantizerClient(address) as client:
        yield client


def publish(store: PolicyStore, first: int, last: int) -> None:
    for version in range(first, last + 1):
        store.add_version(checkpoint(SOURCE, version), [])


def retained(store: PolicyReader) -> list[int]:
    return [entry.version for entry in store.versions()]


def test_a_version_is_held_for_as_long_as_was_granted(clock: ManualClock) -> None:
    holds = Holds(clock)
    assert holds.grant(1, 10.0) == 10.0
    assert holds.grant(2, 10 * MAX_HOLD_S) == MAX_HOLD_S
    clock.now = 9.9
    assert holds.versions() == {1, 2}
    clock.now = 10.0
    assert holds.versions() == {2}
    clock.now = MAX_HOLD_S
    assert holds.versions() == set()


def test_a_new_request_replaces_a_hold_even_with_a_shorter_time(clock: ManualClock) -> None:
    holds = Holds(clock)
    holds.grant(1, 100.0)
    clock.now = 50.0
    holds.grant(1, 10.0)
    clock.now = 60.0
    assert holds.versions() == set()


def test_the_oldest_hold_ends_for_a_new_one(clock: ManualClock) -> None:
    holds = Holds(clock)
    for version in range(1, MAX_HOLDS + 1):
        holds.grant(version, 100.0)
    holds.grant(1, 50.0)
    holds.grant(100, 10.0)
    assert holds.versions() == {1, *range(3, MAX_HOLDS + 1), 100}
    # Ended holds are removed before active ones.
    clock.now = 10.0
    holds.grant(101, 10.0)
    assert holds.versions() == {1, *range(3, MAX_HOLDS + 1), 101}


def test_a_held_version_outlives_newer_ones_until_its_time_is_over(store: PolicyStore, clock: ManualClock) -> None:
    assert store.hold(1, 60.0) == 60.0
    publish(store, 3, 9)
    assert retained(store) == [9, 8, 1]
    assert store.checkpoint(1).version == 1
    clock.now = 60.0
    publish(store, 10, 10)
    assert retained(store) == [10, 9]


def test_an_evaluated_version_stays_until_a_newer_evaluation_or_as_the_best(store: PolicyStore) -> None:
    for version, mean_return, expected in (
        (1, 5.0, [12, 11, 1]),
        (11, 9.0, [22, 21, 11]),
        (21, 7.0, [32, 31, 21, 11]),
        (31, 6.0, [42, 41, 31, 11]),
    ):
        store.hold(version, 60.0)
        publish(store, store.highest_version + 1, version + 11)
        assert version in retained(store)
        store.add_evaluation(version, mean_return)
        assert retained(store) == expected


def test_a_version_that_is_not_retained_cannot_be_held(store: PolicyStore) -> None:
    publish(store, 3, 3)
    with pytest.raises(NotFoundError, match=r"version 1 .* 2, newest 3"):
        store.hold(1, 60.0)


def test_the_newest_version_can_be_held_before_it_is_stored_but_no_unpublished_one(store: PolicyStore) -> None:
    emitter = Emitter(store)
    granted: list[float] = []
    emitter.publish(checkpoint(SOURCE, 3), ["int8"], lambda _: granted.append(emitter.catalog.hold(3, 60.0)))
    assert granted == [60.0]
    for unknown in (0, 4):
        with pytest.raises(NotFoundError, match=f"version {unknown} .*newest is 3"):
            emitter.catalog.hold(unknown, 60.0)
    publish(store, 4, 9)
    assert retained(store) == [9, 8, 3]


def test_an_evaluation_that_comes_after_many_versions_counts(store: PolicyStore) -> None:
    emitter = Emitter(store)
    emitter.catalog.hold(2, 60.0)
    publish(store, 3, 100)
    emitter.catalog.record_evaluation(Evaluation(1, 2, 200, "int8", (50.0,), (10,), 8.0))
    publish(store, 101, 200)
    assert [(entry.version, entry.mean_return) for entry in store.versions()] == [(200, None), (199, None), (2, 50.0)]


def test_a_reopened_store_holds_nothing(store: PolicyStore, tmp_path: Path) -> None:
    store.hold(1, 60.0)
    publish(store, 3, 4)
    store.close()
    with closing(PolicyStore(tmp_path / "held", 2, 1)) as again:
        assert retained(again) == [4, 3, 1]
        publish(again, 5, 5)
        assert retained(again) == [5, 4]


def test_a_version_is_held_over_the_wire_until_its_evaluation_comes(client: QuantizerClient) -> None:
    publisher = opened(client, versions=1)
    assert client.hold(1, 7200.0) == 3600.0
    for version in range(2, 12):
        publisher.publish(checkpoint(SOURCE, version))
    assert [entry.version for entry in client.list()] == [11, 1]
    publisher.send(evaluation=trajectory_pb2.Evaluation(policy_version=1, scheme="int8", returns=[3.0], lengths=[1]))
    publisher.publish(checkpoint(SOURCE, 12))
    assert [(entry.version, entry.mean_return) for entry in client.list()] == [(12, None), (1, 3.0)]


def test_a_request_that_cannot_be_granted_has_its_status(client: QuantizerClient) -> None:
    opened(client, versions=2)
    with pytest.raises(NotFoundError, match=r"version 1 .* 1, newest 2"):
        client.hold(1, 1.0)
    for request in (
        quantizer_pb2.HoldPolicyRequest(version=2),
        quantizer_pb2.HoldPolicyRequest(version=2, duration=Duration(seconds=-1)),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            client.stub.HoldPolicy(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "duration" in caught.value.details()


def test_a_read_only_quantizer_cannot_hold_versions(client: QuantizerClient, tmp_path: Path) -> None:
    opened(client, versions=1)
    with (
        running_quantizer(tmp_path / "store", read_only=True) as address,
        QuantizerClient(address) as reader,
        pytest.raises(ConflictError, match="read-only"),
    ):
        reader.hold(1, 1.0)


def test_a_relay_asks_its_upstream(tmp_path: Path) -> None:
    with (
        running_quantizer(tmp_path, quantizer={"retain_newest": 1, "retain_best": 0}) as root,
        running_relay(root) as middle,
        running_relay(middle) as leaf,
        QuantizerClient(root) as client,
        QuantizerClient(leaf) as relayed,
    ):
        publisher = opened(client, versions=1)
        assert relayed.hold(1, 7200.0) == 3600.0
        for version in (2, 3):
            publisher.publish(checkpoint(SOURCE, version))
        assert [entry.version for entry in relayed.list()] == [3, 1]
        with pytest.raises(NotFoundError, match="version 2 "):
            relayed.hold(2, 1.0)


def test_a_relay_whose_upstream_is_away_names_it() -> None:
    upstream = "127.0.0.1:1"
    with (
        running_relay(upstream) as address,
        QuantizerClient(address) as relayed,
        pytest.raises(UnavailableError, match=upstream),
    ):
        relayed.hold(1, 1.0)
