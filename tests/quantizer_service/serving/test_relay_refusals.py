"""Faults of an upstream: a relay refuses them, reconnects, and still serves the last good policy."""

import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.policy import Policy
from actorq.errors import NotFoundError, UnavailableError
from actorq.transport.payload.blobs import split_blob
from actorq.v1 import quantizer_pb2, tensor_pb2
from actorq_apps.local.services import reserved_addresses
from quantizer_service.serving.policy_stream import policy_messages
from tests.quantizer_service.quantizer_server import running_relay
from tests.quantizer_service.scripted_upstream import policy, scripted_upstream

GIGABYTE = 10**9
# Field 1000, a number.
UNKNOWN_FIELD = b"\xc0\x3e\x01"


def _message(**payload: Any) -> bytes:
    return quantizer_pb2.WatchPoliciesResponse(**payload).SerializeToString()


def _described(wrong: Policy) -> bytes:
    return _message(policy=wire.descriptor_to_proto(wrong.descriptor))


def _claiming(size: int, wrong: Policy) -> list[bytes]:
    """All of it claims that size, and a few bytes come."""
    header = tensor_pb2.BlobHeader(version=wrong.descriptor.version, size_bytes=size, sha256=wrong.descriptor.sha256)
    return [
        _described(replace(wrong, descriptor=replace(wrong.descriptor, size_bytes=size))),
        _message(part=tensor_pb2.BlobPart(header=header)),
        _message(part=tensor_pb2.BlobPart(chunk=b"few")),
    ]


def _header_claims_a_gigabyte(wrong: Policy) -> list[bytes]:
    return [_described(wrong), *_claiming(GIGABYTE, wrong)[1:]]


def _other_bytes(wrong: Policy) -> Sequence[bytes]:
    return policy_messages(replace(wrong, model=wrong.model[::-1]))


def _other_bytes_under_the_right_digest(wrong: Policy) -> list[bytes]:
    last = _message(part=tensor_pb2.BlobPart(chunk=wrong.model[::-1]))
    return [*policy_messages(wrong)[:2], last]


def _smaller_than_described(wrong: Policy) -> list[bytes]:
    short = wrong.model[:10]
    descriptor = replace(wrong.descriptor, sha256=hashlib.sha256(short).digest())
    parts = [_message(part=part) for part in split_blob(short, wrong.descriptor.version)]
    return [_described(replace(wrong, descriptor=descriptor)), *parts]


def _crumbs(wrong: Policy) -> list[bytes]:
    big = policy(wrong.descriptor.version, size=2 * wire.MAX_POLICY_MESSAGES)
    crumbs = [
        _message(part=tensor_pb2.BlobPart(chunk=big.model[at : at + 1])) for at in range(wire.MAX_POLICY_MESSAGES)
    ]
    return [*policy_messages(big)[:2], *crumbs]


def _of(**changes: object) -> Callable[[Policy], Sequence[bytes]]:
    return lambda wrong: policy_messages(replace(wrong, descriptor=replace(wrong.descriptor, **changes)))  # type: ignore[arg-type]


BAD_DELIVERIES: dict[str, Callable[[Policy], Sequence[bytes]]] = {
    "a descriptor that claims 1 GB": lambda wrong: _claiming(GIGABYTE, wrong),
    "a header that claims 1 GB": _header_claims_a_gigabyte,
    "cut off": lambda wrong: policy_messages(wrong)[:-1],
    "cut off by the next": lambda wrong: [*policy_messages(wrong)[:-1], *policy_messages(wrong)],
    "another digest": _other_bytes,
    "another content": _other_bytes_under_the_right_digest,
    "smaller than described": _smaller_than_described,
    "no descriptor": lambda wrong: policy_messages(wrong)[1:],
    "no header": lambda wrong: [policy_messages(wrong)[0], policy_messages(wrong)[-1]],
    "another scheme": _of(scheme="fp32"),
    "no run": _of(run_id=""),
    "no version": _of(version=0),
    "a version beyond the last": _of(version=2**62),
    "an empty message": lambda wrong: [b""],
    "no message": lambda wrong: [b"\xff\xff\xff"],
    "crumbs": _crumbs,
}


@pytest.mark.parametrize("make", BAD_DELIVERIES.values(), ids=BAD_DELIVERIES)
def test_a_bad_policy_is_refused_and_the_last_good_one_stays_served(
    make: Callable[[Policy], Sequence[bytes]],
) -> None:
    with scripted_upstream() as (address, upstream), running_relay(address) as relay, QuantizerClient(relay) as client:
        watch = client.watch("int8")
        upstream.send(policy_messages(policy(1)))
        assert next(watch) == policy(1)
        # The stream was opened again. It brings the invalid version 2, and is opened once more.
        for _ in range(2):
            upstream.wait_for_call()
        upstream.send(make(policy(2)))
        upstream.wait_for_call()

        assert client.get("int8") == policy(1)
        assert next(client.watch("int8")) == policy(1)

        upstream.send(policy_messages(policy(3)))
        assert next(watch) == policy(3)


def test_an_extra_message_after_a_whole_policy_is_refused_and_the_policy_is_served() -> None:
    with scripted_upstream() as (address, upstream), running_relay(address) as relay, QuantizerClient(relay) as client:
        watch = client.watch("int8")
        upstream.send([*policy_messages(policy(1)), policy_messages(policy(1))[-1]])
        assert next(watch) == policy(1)
        for _ in range(2):
            upstream.wait_for_call()
        upstream.send(policy_messages(policy(2)))

        assert next(watch) == policy(2)


def test_a_version_with_other_bytes_than_before_is_logged_and_not_forwarded(caplog: pytest.LogCaptureFixture) -> None:
    with scripted_upstream() as (address, upstream), running_relay(address) as relay, QuantizerClient(relay) as client:
        watch = client.watch("int8")
        upstream.send(policy_messages(policy(1)))
        assert next(watch) == policy(1)
        for _ in range(2):
            upstream.wait_for_call()
        upstream.send(policy_messages(policy(1, size=2_000)))
        upstream.wait_for_call()
        assert client.get("int8") == policy(1)

        upstream.send(policy_messages(policy(2)))
        assert next(watch) == policy(2)
    assert re.search("version 1 in int8 .*other bytes", caplog.text)


def test_an_older_version_is_not_forwarded() -> None:
    with scripted_upstream() as (address, upstream), running_relay(address) as relay, QuantizerClient(relay) as client:
        watch = client.watch("int8")
        upstream.send(policy_messages(policy(5)))
        assert next(watch) == policy(5)
        for version in (3, 5, 6):
            upstream.send(policy_messages(policy(version)))

        assert next(watch) == policy(6)


def test_a_new_run_replaces_the_old_one_and_watchers_start_again() -> None:
    with scripted_upstream() as (address, upstream), running_relay(address) as relay, QuantizerClient(relay) as client:
        old = client.watch("int8")
        upstream.send(policy_messages(policy(500, "first")))
        assert next(old) == policy(500, "first")

        upstream.send(policy_messages(policy(2, "second")))
        with pytest.raises(UnavailableError, match="another run"):
            next(old)

        assert next(client.watch("int8")) == policy(2, "second")


def test_the_newest_local_policy_is_served_while_the_upstream_is_down() -> None:
    with ExitStack() as stack:
        (address,) = stack.enter_context(reserved_addresses(1))
        with scripted_upstream(address) as (_, upstream):
            client = stack.enter_context(QuantizerClient(stack.enter_context(running_relay(address))))
            watch = client.watch("int8")
            upstream.send(policy_messages(policy(7)))
            assert next(watch) == policy(7)

        assert client.get("int8") == policy(7)
        assert next(client.watch("int8")) == policy(7)
        with pytest.raises(UnavailableError):
            client.get("int8", 6)
        with pytest.raises(UnavailableError):
            client.list()

        with scripted_upstream(address) as (_, again):
            again.send(policy_messages(policy(8)))
            assert next(watch) == policy(8)


def test_a_scheme_that_the_upstream_does_not_know_is_refused_with_its_reason() -> None:
    """As when a relay is newer than its upstream."""
    with scripted_upstream() as (address, upstream), running_relay(address) as relay, QuantizerClient(relay) as client:
        for _ in range(2):
            upstream.refuse("scheme: expected one of fp32")
            with pytest.raises(NotFoundError, match=f"{address}: scheme: expected one of fp32"):
                next(client.watch("int8"))
        upstream.send(policy_messages(policy(1)))
        assert next(client.watch("int8")) == policy(1)


def test_messages_are_forwarded_unchanged_including_unknown_fields() -> None:
    messages = policy_messages(policy(1))
    newer = (messages[0] + UNKNOWN_FIELD, *messages[1:])
    with scripted_upstream() as (address, upstream), running_relay(address) as relay, QuantizerClient(relay) as client:
        raw = client.channel.unary_stream(
            "/actorq.v1.QuantizerService/WatchPolicies", quantizer_pb2.WatchPoliciesRequest.SerializeToString
        )
        upstream.send(newer)
        call = raw(quantizer_pb2.WatchPoliciesRequest(scheme="int8"))

        assert tuple(next(call) for _ in newer) == newer
