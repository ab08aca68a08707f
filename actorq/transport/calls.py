"""Counts how calls ended, for the metrics of a service."""

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import grpc


@dataclass(frozen=True, order=True)
class CallEnd:
    """Which method ended how: `code` is the name of the gRPC status as this side saw it."""

    service: str
    method: str
    streaming: bool
    code: str


class CallCounts:
    """Ended calls by method and status. Thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[CallEnd] = Counter()
        self._lock = threading.Lock()

    def follow(self, path: str, streaming: bool, context: grpc.aio.ServicerContext) -> None:
        """Count the call of this context when it ends, also when its client is simply gone."""
        service, _, method = path.lstrip("/").rpartition("/")

        def count(ended: Any) -> None:
            end = CallEnd(service, method, streaming, _code(ended).name)
            with self._lock:
                self._counts[end] += 1

        context.add_done_callback(count)

    def snapshot(self) -> dict[CallEnd, int]:
        """The counts so far."""
        with self._lock:
            return dict(self._counts)


def _code(context: Any) -> grpc.StatusCode:
    # gRPC sets a code only for a call that was aborted; one whose handler did not get to its end was cancelled.
    code: grpc.StatusCode | None = context.code()
    return code or (grpc.StatusCode.OK if context.done() else grpc.StatusCode.CANCELLED)
