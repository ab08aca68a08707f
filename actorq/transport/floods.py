"""Closes connections that flood the service while memory grows, for example with millions of HTTP/2 PRIORITY frames.

gRPC reads frames ahead of their handling, without a bound and before any call. Limits of calls and certificates do not
help. The guard therefore compares the kernel's count of received bytes with the bytes of received messages.
"""

import asyncio
import ipaddress
import logging
import os
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import unquote

import psutil

_log = logging.getLogger(__name__)

# Seconds between checks: normally, and while memory grows.
_PERIOD_S, _HOT_PERIOD_S = 1.0, 0.25
# Growth of resident memory that starts scans of connections. Scans without an offender that stop them.
_GROWTH_BYTES, _CALM_SCANS = 64 * 2**20, 8
# Bytes that a connection may receive in a window in addition to messages: flow control, headers, TLS records.
_WINDOW_S, _SLACK_BYTES, _SLACK_SHARE = 10.0, 16 * 2**20, 0.25
# The same bytes for an address whose connection was closed, and the seconds for which its connections are watched.
_SLACK_OF_OFFENDERS_BYTES, _SUSPICION_S = 4 * 2**20, 60.0
_MOST_OFFENDERS = 1000
# A service has this many connections by default.
_MOST_IDLE = 4096
_FDS = Path("/proc/self/fd")
# tcpi_bytes_received in struct tcp_info of linux/tcp.h.
_BYTES_RECEIVED_AT = 128

Peer = tuple[str, int]
"""Address and port of a connection's other end."""


def peer_of(text: str) -> Peer | None:
    """The peer that gRPC names as "ipv4:10.0.0.1:5000" or "ipv6:%5B::1%5D:5000"; None for other kinds."""
    kind, _, rest = unquote(text).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _normal(host.strip("[]")), int(port)


def _normal(host: str) -> str:
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


class Traffic:
    """Bytes of received messages, by connection. For one thread, except `snapshot`.

    Connections without a call stay known, because they may start another call. Only the newest such connections are
    kept.
    """

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._calls: dict[str, int] = {}
        # Connections without a call, in the order in which their last calls ended.
        self._idle: OrderedDict[str, None] = OrderedDict()

    def begin(self, peer: str) -> None:
        """Record the start of a call."""
        self._calls[peer] = self._calls.get(peer, 0) + 1
        self._bytes.setdefault(peer, 0)
        self._idle.pop(peer, None)

    def add(self, peer: str, size: int) -> None:
        """Record a received message."""
        if peer in self._bytes:
            self._bytes[peer] += size

    def end(self, peer: str) -> None:
        """Record the end of a call."""
        self._calls[peer] -= 1
        if not self._calls[peer]:
            del self._calls[peer]
            self._idle[peer] = None
            if len(self._idle) > _MOST_IDLE:
                del self._bytes[self._idle.popitem(last=False)[0]]

    def snapshot(self) -> dict[Peer, int]:
        """The received bytes so far."""
        found = {peer_of(peer): size for peer, size in self._bytes.copy().items()}
        return {peer: size for peer, size in found.items() if peer is not None}


def connections(port: int) -> Iterator[tuple[Peer, socket.socket]]:
    """The open TCP connections of this process to its own port. Closing a yielded socket keeps its connection."""
    for name in os.listdir(_FDS):
        # Descriptors may open and close during the loop.
        with suppress(OSError, ValueError):
            if not os.readlink(_FDS / name).startswith("socket:"):
                continue
            with closing(socket.socket(fileno=os.dup(int(name)))) as connection:
                if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if connection.getsockname()[1] == port:
                    host, number = connection.getpeername()[:2]
                    yield (_normal(host), number), connection


def received_bytes(connection: socket.socket) -> int:
    """All bytes that the kernel has received on a TCP connection."""
    information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int(struct.unpack_from("=Q", information, _BYTES_RECEIVED_AT)[0])


class FloodGuard:
    """Watches the memory of this process and the connections to `port`, which is set once known.

    memory: resident bytes. clock: monotonic seconds.
    traffic: counts the sizes of messages. on_close: called for each closed connection.
    """

    def __init__(
        self,
        on_close: Callable[[], None],
        memory: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.traffic = Traffic()
        self.port = 0
        self._on_close = on_close
        self._memory = memory or (lambda: int(psutil.Process().memory_info().rss))
        self._clock = clock
        self._calm_bytes = self._memory()
        self._calm_scans = 0
        # All received bytes, and the bytes of messages, at the start of the window.
        self._begin: dict[Peer, tuple[int, int]] = {}
        self._began_at = 0.0
        # The time at which a connection of each address was closed.
        self._offenders: dict[str, float] = {}

    async def watch(self) -> None:
        """Watch until canceled. Does nothing if the kernel does not count received bytes."""
        if not _FDS.exists() or not hasattr(socket, "TCP_INFO"):
            return
        while True:
            grows = False
            # Scanning needs a free file descriptor. Without one, the next round tries again.
            with suppress(OSError):
                grows = await asyncio.to_thread(self.check)
            await asyncio.sleep(_HOT_PERIOD_S if grows else _PERIOD_S)

    def check(self) -> bool:
        """Check once. Returns whether memory grows."""
        now, resident = self._clock(), self._memory()
        self._calm_bytes = min(self._calm_bytes, resident)
        grows = resident - self._calm_bytes >= _GROWTH_BYTES
        self._offenders = {peer: at for peer, at in self._offenders.items() if now - at < _SUSPICION_S}
        if not (grows or self._offenders):
            self._begin = {}
            return False
        if now - self._began_at > _WINDOW_S:
            self._begin, self._began_at = {}, now
        found = self._scan(self.traffic.snapshot(), now)
        self._calm_scans = 0 if found or not grows else self._calm_scans + 1
        if self._calm_scans == _CALM_SCANS:
            # The growth has another cause, such as a larger policy.
            self._calm_bytes, self._calm_scans = resident, 0
        return grows

    def _scan(self, delivered: Mapping[Peer, int], now: float) -> int:
        """Close connections that received far more in the window than their messages. Returns their number."""
        count = 0
        begin: dict[Peer, tuple[int, int]] = {}
        for peer, connection in connections(self.port):
            received, messages = received_bytes(connection), delivered.get(peer, 0)
            begin[peer] = before = self._begin.get(peer, (received, messages))
            excess = received - before[0] - (1 + _SLACK_SHARE) * max(0, messages - before[1])
            if excess > (_SLACK_OF_OFFENDERS_BYTES if peer[0] in self._offenders else _SLACK_BYTES):
                connection.shutdown(socket.SHUT_RDWR)
                begin[peer] = received, messages
                self._record_offender(peer[0], int(excess), now)
                count += 1
        self._begin = begin
        return count

    def _record_offender(self, address: str, excess: int, now: float) -> None:
        self._on_close()
        if address not in self._offenders:
            _log.warning("connections from %s are closed: one sent %d bytes that belong to no message", address, excess)
        if address in self._offenders or len(self._offenders) < _MOST_OFFENDERS:
            self._offenders[address] = now
