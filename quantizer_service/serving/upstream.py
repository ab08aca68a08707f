"""The client of a relay for its upstream, a quantizer or another relay."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from google.protobuf.message import Message

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.contract import CONTRACT
from actorq.domain.policy import Variant
from actorq.errors import InvalidInputError, UnavailableError
from actorq.transport.errors import translated
from actorq.transport.options import UNARY_DEADLINE_S
from actorq.transport.payload.blobs import ENCODINGS
from actorq.v1 import quantizer_pb2
from quantizer_service.serving.policy_stream import EncodedPolicy, StreamedPolicies

P = ParamSpec("P")
R = TypeVar("R")

_SERVICE = quantizer_pb2.DESCRIPTOR.services_by_name["QuantizerService"].full_name
# Largest number of concurrent calls. Each has a deadline.
_THREADS = 4


class Upstream:
    """Calls a quantizer or relay over the network. Checks the received policies and keeps their messages.

    describe, list_versions, hold: the client's calls `fidelity`, `page` and `hold`.
    """

    def __init__(self, client: QuantizerClient) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="upstream")
        self._closed = False
        self.peer = f"upstream {client.peer}"
        self.describe, self.hold = self._calling(client.fidelity), self._calling(client.hold)
        self.list_versions = self._calling(client.page)

    async def get(self, variant: Variant, version: int = 0) -> EncodedPolicy:
        """A retained policy; version 0 for the newest."""
        return await self._calling(self._get)(variant, version)

    def watch(self, variant: Variant) -> "UpstreamStream":
        """Open a stream of a variant's newest policies, which begins with the current one. Thread-safe."""
        wanted = wire.variant_to_proto(variant)
        request = quantizer_pb2.WatchPoliciesRequest(encodings=ENCODINGS, contract=CONTRACT, **wanted)
        return UpstreamStream(self._stream("WatchPolicies", request), variant, self.peer)

    def close(self) -> None:
        """Close the connection. Streams end with UnavailableError."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _get(self, variant: Variant, version: int) -> EncodedPolicy:
        request = quantizer_pb2.GetPolicyRequest(version=version, encodings=ENCODINGS, **wire.variant_to_proto(variant))
        with self._client.calls():
            call = self._stream("GetPolicy", request, UNARY_DEADLINE_S)
        for policy in UpstreamStream(call, variant, self.peer):
            return policy
        raise InvalidInputError(f"{self.peer}: the stream of the policy ended before its last part")

    def _stream(self, method: str, request: Message, deadline_s: float | None = None) -> Any:
        # Responses stay bytes: they are checked here and forwarded unchanged.
        call = self._client.channel.unary_stream(f"/{_SERVICE}/{method}")
        return call(request.SerializeToString(), timeout=deadline_s)

    def _calling(self, function: Callable[P, R]) -> Callable[P, Awaitable[R]]:
        async def call(*args: P.args, **kwargs: P.kwargs) -> R:
            # A closing server still ends its last calls. The caller may repeat them elsewhere.
            if self._closed:
                raise UnavailableError(f"{self.peer}: this relay is ending; connect again later")
            return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))

        return call


@dataclass(frozen=True)
class UpstreamStream:
    """Yields the complete and checked policies of one stream. Another thread may cancel it."""

    call: Any
    variant: Variant
    peer: str

    def wait(self) -> None:
        """Wait until the upstream has accepted or ended the call."""
        self.call.initial_metadata()

    def cancel(self) -> None:
        """End the stream, which then raises UnavailableError."""
        self.call.cancel()

    def __iter__(self) -> Iterator[EncodedPolicy]:
        assembler = StreamedPolicies(self.variant)
        try:
            with translated(self.peer):
                for message in self.call:
                    if (policy := assembler.add(message)) is not None:
                        yield policy
        finally:
            # Tells the sender to stop after a refused policy.
            self.call.cancel()
