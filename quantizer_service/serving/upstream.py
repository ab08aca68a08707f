"""The quantizer above a relay: its policies come as the messages that carry them, and only when they are whole."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.policy import PolicyDescriptor, RetainedPolicy
from actorq.errors import InvalidInputError
from actorq.transport.errors import translated
from actorq.transport.options import UNARY_DEADLINE_S
from actorq.transport.payload.blobs import ENCODINGS
from actorq.v1 import quantizer_pb2
from quantizer_service.serving.policy_stream import PolicyAssembler, PolicyDelivery

_SERVICE = quantizer_pb2.DESCRIPTOR.services_by_name["QuantizerService"].full_name


class Upstream:
    """Calls one quantizer or relay, for several threads; errors are those of `actorq.errors`."""

    def __init__(self, client: QuantizerClient) -> None:
        self._client = client
        self.peer = f"upstream {client.peer}"

    def watch(self, scheme: str) -> "UpstreamStream":
        """Open a stream of a scheme's newest policies, also of one that was seen already."""
        request = quantizer_pb2.WatchPoliciesRequest(scheme=scheme, encodings=ENCODINGS)
        return UpstreamStream(self._stream("WatchPolicies", request), scheme, self.peer)

    def get(self, scheme: str, version: int) -> PolicyDelivery:
        """One retained policy, version 0 for the newest."""
        request = quantizer_pb2.GetPolicyRequest(scheme=scheme, version=version, encodings=ENCODINGS)
        call = self._stream("GetPolicy", request, UNARY_DEADLINE_S)
        for delivery in UpstreamStream(call, scheme, self.peer):
            return delivery
        raise InvalidInputError(f"{self.peer}: the stream of the policy ended before its last part")

    def describe(self, scheme: str, version: int) -> PolicyDescriptor:
        """All of a retained policy but its bytes."""
        return self._client.fidelity(scheme, version)

    def list_versions(self, page_size: int, page_token: str) -> tuple[tuple[RetainedPolicy, ...], str]:
        """A page of the retained versions, newest first, and the token of the next page."""
        request = quantizer_pb2.ListPoliciesRequest(page_size=page_size, page_token=page_token)
        with translated(self.peer):
            page = self._client.stub.ListPolicies(request, timeout=UNARY_DEADLINE_S)
        return tuple(wire.retained_from_proto(policy) for policy in page.policies), page.next_page_token

    def lease(self, version: int, seconds: float) -> float:
        """Retain a version until its next evaluation; returns the seconds granted."""
        return self._client.hold(version, seconds)

    def _stream(self, method: str, request: Message, deadline_s: float | None = None) -> Any:
        # Answers stay bytes: they are checked here and handed on as they came.
        call = self._client.channel.unary_stream(f"/{_SERVICE}/{method}")
        return call(request.SerializeToString(), timeout=deadline_s)

    def close(self) -> None:
        """Hang up; streams end with UnavailableError."""
        self._client.close()


class UpstreamStream:
    """The policies of one stream, each whole and checked; may be cancelled by another thread."""

    def __init__(self, call: Any, scheme: str, peer: str) -> None:
        self._call = call
        self._scheme = scheme
        self._peer = peer

    def wait(self) -> None:
        """Wait until the upstream has taken the call, or has ended it."""
        self._call.initial_metadata()

    def cancel(self) -> None:
        """End the stream: it raises UnavailableError."""
        self._call.cancel()

    def __iter__(self) -> Iterator[PolicyDelivery]:
        assembler = PolicyAssembler(self._scheme)
        try:
            with translated(self._peer):
                for message in self._call:
                    if (delivery := assembler.add(message)) is not None:
                        yield delivery
        finally:
            # So that a sender whose policy is refused stops sending it.
            self._call.cancel()
