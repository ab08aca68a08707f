"""A mixed fleet: watchers whose processors need signed or unsigned weights of the same versions."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from actorq.client import QuantizerClient
from actorq.domain.policy import SIGNED, UNSIGNED, WEIGHT_ENCODINGS, Policy, Variant
from actorq.errors import CorruptedError
from actorq.v1 import policy_pb2, quantizer_pb2
from actorq.weightencoding import weight_encoding_of, with_weight_encoding
from quantizer_service.store.reader import PolicyReader
from tests.quantizer_service.policy_runs import checkpoint
from tests.quantizer_service.quantizer_server import SOURCE, opened, running_quantizer, running_relay


class Fleet:
    """A client of each kind of processor."""

    def __init__(self, address: str) -> None:
        self.signed, self.unsigned = QuantizerClient(address), QuantizerClient(address)
        self.signed.weight_encoding, self.unsigned.weight_encoding = SIGNED, UNSIGNED

    def close(self) -> None:
        self.signed.close()
        self.unsigned.close()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with running_quantizer(tmp_path / "store") as address:
        yield address


@pytest.fixture
def fleet(address: str) -> Iterator[Fleet]:
    fleet = Fleet(address)
    yield fleet
    fleet.close()


def assert_same_numbers(signed: Policy, unsigned: Policy) -> None:
    one, other = signed.descriptor, unsigned.descriptor
    assert (one.weight_encoding, other.weight_encoding) == WEIGHT_ENCODINGS
    assert [weight_encoding_of(policy.model) for policy in (signed, unsigned)] == list(WEIGHT_ENCODINGS)
    assert with_weight_encoding(unsigned.model, SIGNED) == signed.model
    for policy in (signed, unsigned):
        assert hashlib.sha256(policy.model).digest() == policy.descriptor.sha256
        assert len(policy.model) == policy.descriptor.size_bytes
    same = {"sha256": b"", "size_bytes": 0, "weight_encoding": SIGNED}
    assert replace(one, **same) == replace(other, **same)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", ["int8", "int8-static"])
def test_each_watcher_gets_its_encoding_of_each_version(fleet: Fleet, scheme: str) -> None:
    publisher = opened(fleet.signed, versions=1)
    watches = [client.watch(scheme) for client in (fleet.signed, fleet.unsigned)]
    assert_same_numbers(*map(next, watches))

    receipt = publisher.publish(checkpoint(SOURCE, 2))

    policies = [next(watch) for watch in watches]
    assert_same_numbers(*policies)
    told = {policy.variant: policy for policy in receipt.policies}
    for policy in policies:
        assert told[policy.descriptor.variant].sha256 == policy.descriptor.sha256
    (newest, *_) = fleet.signed.list()
    assert {Variant(scheme, SIGNED), Variant(scheme, UNSIGNED)} <= set(newest.variants)


def test_both_encodings_are_stored_and_served_after_a_restart(tmp_path: Path) -> None:
    with running_quantizer(tmp_path / "store") as address:
        fleet = Fleet(address)
        opened(fleet.signed, versions=1)
        before = [fleet.signed.get("int8"), fleet.unsigned.get("int8")]
        fleet.close()
    stored = PolicyReader(tmp_path / "store")
    assert [stored.policy(1, Variant("int8", each)) for each in WEIGHT_ENCODINGS] == before
    with running_quantizer(tmp_path / "store") as address:
        fleet = Fleet(address)
        assert [fleet.signed.get("int8"), fleet.unsigned.get("int8")] == before
        fleet.close()


@pytest.mark.parametrize("kept", WEIGHT_ENCODINGS)
def test_a_missing_encoding_is_made_from_the_stored_one(tmp_path: Path, kept: str) -> None:
    with running_quantizer(tmp_path / "store") as address:
        fleet = Fleet(address)
        publisher = opened(fleet.signed, versions=1)
        watch = (fleet.signed if kept == SIGNED else fleet.unsigned).watch("int8")
        for version in (2, 3):
            next(watch)
            publisher.publish(checkpoint(SOURCE, version))
        fleet.close()
    assert PolicyReader(tmp_path / "store").versions()[0].variants == (Variant("int8", kept),)
    with running_quantizer(tmp_path / "store") as address:
        fleet = Fleet(address)
        for version in (2, 3):
            assert_same_numbers(fleet.signed.get("int8", version), fleet.unsigned.get("int8", version))
        fleet.close()


def test_schemes_without_int8_products_have_one_form(fleet: Fleet) -> None:
    opened(fleet.signed, versions=1)
    for scheme in ("fp32", "int8-weights", "int4"):
        policy = fleet.unsigned.get(scheme)
        assert policy == fleet.signed.get(scheme)
        assert policy.descriptor.weight_encoding == SIGNED


def test_a_relay_forwards_both_encodings(address: str, fleet: Fleet) -> None:
    publisher = opened(fleet.signed, versions=1)
    with running_relay(address) as relay:
        relayed = Fleet(relay)
        watches = [client.watch("int8") for client in (relayed.signed, relayed.unsigned)]
        assert_same_numbers(*map(next, watches))
        publisher.publish(checkpoint(SOURCE, 2))
        policies = [next(watch) for watch in watches]
        assert policies == [fleet.signed.get("int8", 2), fleet.unsigned.get("int8", 2)]
        relayed.close()


def test_an_actor_without_an_encoding_gets_signed_weights(fleet: Fleet) -> None:
    opened(fleet.signed, versions=1)
    stub = fleet.signed.stub
    answers = (
        next(iter(stub.WatchPolicies(quantizer_pb2.WatchPoliciesRequest(scheme="int8")))),
        next(iter(stub.GetPolicy(quantizer_pb2.GetPolicyRequest(scheme="int8")))),
    )
    for answer in answers:
        # As an older quantizer answers, bit for bit.
        assert answer.policy.weight_encoding == policy_pb2.WEIGHT_ENCODING_UNSPECIFIED
        assert answer.policy.sha256 == fleet.signed.get("int8").descriptor.sha256


def test_an_unknown_encoding_is_refused_with_the_known_ones(fleet: Fleet) -> None:
    opened(fleet.signed, versions=1)
    unknown: Any = 7
    watch = fleet.signed.stub.WatchPolicies(quantizer_pb2.WatchPoliciesRequest(weight_encoding=unknown))
    get = fleet.signed.stub.GetPolicy(quantizer_pb2.GetPolicyRequest(weight_encoding=unknown))
    for call in (watch, get):
        with pytest.raises(grpc.RpcError) as refused:
            next(iter(call))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert re.match("weight_encoding: .*_UNSIGNED.*_SIGNED.* 7$", refused.value.details())


def test_a_policy_in_another_encoding_than_asked_for_is_refused(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(fleet.signed, versions=1)
    # An older quantizer does not know the field.
    monkeypatch.setattr("actorq.wire.variant_to_proto", lambda variant: {"scheme": variant.scheme})
    with pytest.raises(CorruptedError, match=r"int8\.unsigned, .*int8$"):
        fleet.unsigned.get("int8")
