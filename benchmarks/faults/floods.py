"""Floods a quantizer with HTTP/2 frames that belong to no call, and measures its memory and its answers to other
clients.

Each sender opens its connection again when the service closes it.
"""

import argparse
import contextlib
import multiprocessing
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.processes import serving

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_REPEATS = 4000
_READ_BYTES = 2**16
_ANSWER_S = 5.0
_MOST_BYTES = 512 * 2**20
_MOST_ANSWER_S = 1.0
_AGAIN_S = 0.05


def frame(kind: int, payload: bytes = b"", stream: int = 0) -> bytes:
    """An HTTP/2 frame without flags (RFC 9113, 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, 0, stream) + payload


FRAMES = {
    "priority": frame(2, struct.pack(">IB", 0, 10), stream=1),
    "settings": frame(4, struct.pack(">HI", 4, 65_535)),
    "ping": frame(6, bytes(8)),
    "window update": frame(8, struct.pack(">I", 1)),
    "unknown": frame(0x99, bytes(5)),
}


def _send(address: tuple[str, int], one: bytes) -> None:
    """Send frames until the connection is closed."""
    with socket.create_connection(address) as connection:

        def read() -> None:
            with contextlib.suppress(OSError):
                while connection.recv(_READ_BYTES):
                    pass

        threading.Thread(target=read, daemon=True).start()
        connection.sendall(_PREFACE + frame(4))
        block = one * _REPEATS
        while True:
            connection.sendall(block)


def _flood(address: tuple[str, int], one: bytes) -> None:
    while True:
        with contextlib.suppress(OSError):
            _send(address, one)
        time.sleep(_AGAIN_S)


@contextmanager
def _senders(count: int, address: tuple[str, int], one: bytes) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    senders = [context.Process(target=_flood, args=(address, one), daemon=True) for _ in range(count)]
    for sender in senders:
        sender.start()
    try:
        yield
    finally:
        for sender in senders:
            sender.kill()
            sender.join()


def _answer_s(address: str) -> float:
    """Seconds until a new client gets an answer; without an answer the longest wait."""
    begun = time.monotonic()
    with (
        contextlib.suppress(grpc.RpcError),
        grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel,
    ):
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_ANSWER_S)
    return time.monotonic() - begun


def measure(kind: str, connections: int, seconds: float) -> dict[str, Any]:
    """Flood a new quantizer with one kind of frames."""
    with TemporaryDirectory() as store, serving("quantizer_service", "--store", store) as service:
        host, _, port = service.address.rpartition(":")
        before, most, answers = service.cost().resident_bytes, 0, []
        with _senders(connections, (host, int(port)), FRAMES[kind]):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                answers.append(_answer_s(service.address))
                most = max(most, service.cost().resident_bytes)
                threading.Event().wait(0.5)
        said = [line for line in service.log if "belong to no message" in line]
    found = {
        "resident_bytes_before": before,
        "most_resident_bytes": most,
        "median_answer_s": round(median(answers), 4),
        "longest_answer_s": round(max(answers), 4),
        "log_lines": len(said),
    }
    print(kind, found, flush=True)
    return found


MEANINGS = (
    Meaning(
        r"bytes of memory, (?P<kind>.+) frames",
        "How much memory does a quantizer use under a flood of frames?",
        "A hostile client can exhaust the memory of the quantizer's machine.",
        unit=" MB",
        scale=1e-6,
        case="{kind} frames",
    ),
)


def targets(figures: dict[str, Any]) -> list[Target]:
    """The targets of these figures."""
    floods = figures["floods"].items()
    return [
        *(Target(f"bytes of memory, {kind} frames", each["most_resident_bytes"], _MOST_BYTES) for kind, each in floods),
        Target(
            "median s to an answer for others, all kinds",
            max(each["median_answer_s"] for _, each in floods),
            _MOST_ANSWER_S,
        ),
    ]


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    kinds = arguments.kinds or list(FRAMES)
    floods = {kind: measure(kind, arguments.connections, arguments.seconds) for kind in kinds}
    figures = {"connections": arguments.connections, "seconds": arguments.seconds, "floods": floods}
    return figures, targets(figures)


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=8, help="connections that flood (default: 8)")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of each flood (default: 60)")
    parser.add_argument("--kinds", nargs="*", choices=FRAMES, help="kinds of frames (default: all)")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _add_flags, _measure))
