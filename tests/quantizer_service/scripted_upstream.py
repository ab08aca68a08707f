"""An upstream that a test scripts, on a real socket, and policies that need no quantizer."""

import hashlib
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from actorq.domain.policy import FidelityReport, LayerReport, Policy, PolicyDescriptor
from actorq.statefiles.crc import crc32
from actorq.transport.payload.checksums import unseal
from actorq.v1 import quantizer_pb2

DEADLINE_S = 30.0


def policy(version: int, run_id: str = "run", scheme: str = "int8", size: int = 1_000) -> Policy:
    """A policy whose model is no model, but has the size and digest that it claims."""
    model = bytes((version + place) % 256 for place in range(size))
    report = FidelityReport(32, 0.1, 0.2, 0.01, 0.02, None, (LayerReport("layers.0", "int8 per tensor"),))
    descriptor = PolicyDescriptor(
        run_id=run_id,
        version=version,
        learner_step=100 * version,
        scheme=scheme,
        sha256=hashlib.sha256(model).digest(),
        size_bytes=size,
        fp32_size_bytes=4 * size,
        snapshot_at=1_700_000_000.0 + version,
        fidelity=report,
        graph_digest=bytes(32),
    )
    return Policy(descriptor, model)


class ScriptedUpstream:
    """Answers each WatchPolicies with the next script of its scheme: its messages, then the end of the stream.

    newest: the answer to each GetPolicy; without one the call is refused.
    """

    def __init__(self) -> None:
        self.newest: Sequence[bytes] = ()
        self._calls: queue.Queue[quantizer_pb2.WatchPoliciesRequest] = queue.Queue()
        self._scripts: dict[str, queue.Queue[Sequence[bytes] | str]] = {
            scheme: queue.Queue() for scheme in ("int8", "fp32")
        }

    def send(self, messages: Sequence[bytes], scheme: str = "int8") -> None:
        """Send this in the stream that waits for it, or in the next one, and end that stream."""
        self._scripts[scheme].put(messages)

    def refuse(self, reason: str) -> None:
        """Report in the waiting stream, or in the next one, that the scheme is unknown."""
        self._scripts["int8"].put(reason)

    def wait_for_call(self) -> quantizer_pb2.WatchPoliciesRequest:
        """Wait until another stream is opened. It waits for the next message."""
        return self._calls.get(timeout=DEADLINE_S)

    def watch(self, request: quantizer_pb2.WatchPoliciesRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Handle a call."""
        self._calls.put(request)
        context.send_initial_metadata(())
        script = self._scripts[request.scheme].get()
        if isinstance(script, str):
            # As services sign a status.
            checksum = f"{crc32(f'NOT_FOUND {script}'.encode()):08x}"
            context.set_trailing_metadata((("actorq-status-crc32", checksum),))
            context.abort(grpc.StatusCode.NOT_FOUND, script)
        else:
            yield from script

    def get(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer with the newest, or refuse the call."""
        if not self.newest:
            context.abort(grpc.StatusCode.UNAVAILABLE, "this upstream only serves streams")
        yield from self.newest

    def end(self) -> None:
        """Let the streams that wait go."""
        for scripts in self._scripts.values():
            scripts.put(())


@contextmanager
def scripted_upstream(address: str = "127.0.0.1:0") -> Iterator[tuple[str, ScriptedUpstream]]:
    """Serve it, and give its address."""
    upstream = ScriptedUpstream()

    def parse(data: bytes) -> quantizer_pb2.WatchPoliciesRequest:
        return quantizer_pb2.WatchPoliciesRequest.FromString(bytes(unseal(data)))

    handler: Any = grpc.unary_stream_rpc_method_handler(upstream.watch, parse)
    handlers = {"WatchPolicies": handler, "GetPolicy": grpc.unary_stream_rpc_method_handler(upstream.get)}
    service = grpc.method_handlers_generic_handler("actorq.v1.QuantizerService", handlers)
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port(address)
    server.start()
    try:
        yield f"127.0.0.1:{port}", upstream
    finally:
        upstream.end()
        server.stop(None).wait(DEADLINE_S)
