"""Counts how calls end, for the metrics of a service."""

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import grpc


@dataclass(frozen=True, order=True)
class CallEnd:
    """A method and the end of its call: `code` is the name of the gRPC status at the server."""

    service: str
    method: str
    streaming: bool
    code: str


class CallCounts:
    """Ended calls by method and status, and connections closed because they flooded the service. Thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[CallEnd] = Counter()
        self._lock = threading.Lock()
        self.closed_connections = 0

    def record_closed(self) -> None:
        """Count a connection that was closed."""
        self.closed_connections += 1

    def follow(self, path: str, streaming: bool, context: grpc.aio.ServicerContext) -> None:
        """Count the call of this context when it ends, even if its client disappears."""
        service, _, method = path.lstrip("/").rpartition("/")

        def count(ended: Any) -> None:
            # gRPC sets a code only for aborted calls. If the handler did not finish, the call was canceled.
            code = ended.code() or (grpc.StatusCode.OK if ended.done() else grpc.StatusCode.CANCELLED)
            end = CallEnd(service, method, streaming, code.name)
            with self._lock:
                self._counts[end] += 1

        context.add_done_callback(count)

    def snapshot(self) -> dict[CallEnd, int]:
        """The counts so far."""
        with self._lock:
            return dict(self._counts)
