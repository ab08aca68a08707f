"""Limits the number of open calls that peers share."""

import threading
from collections import Counter

from actorq.errors import ExhaustedError


def address_of(peer: str) -> str:
    """The machine of a gRPC peer without the port: "ipv4:10.0.0.1" of "ipv4:10.0.0.1:5000"."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer


class Quota:
    """Allows `total` calls at a time, and `most` of them from one address, so that no peer blocks the others.

    most: None for half of `total`, because a thousand actors may share the address of a node or gateway. Thread-safe.
    """

    def __init__(self, total: int, most: int | None = None) -> None:
        self._total = total
        self._most = total // 2 if most is None else min(most, total)
        self._taken: Counter[str] = Counter()
        self._sum = 0
        self._lock = threading.Lock()

    def acquire(self, peer: str) -> None:
        """Acquire a call for a peer. Raises ExhaustedError, and acquires none, if this would exceed a limit."""
        address = address_of(peer)
        with self._lock:
            if self._sum >= self._total:
                raise ExhaustedError(f"this service takes at most {self._total} open calls at a time; try again later")
            if self._taken[address] >= self._most:
                raise ExhaustedError(
                    f"this service takes at most {self._most} open calls from one address at a time, got more from "
                    f"{address}; transport.max_calls_per_address sets the limit"
                )
            self._taken[address] += 1
            self._sum += 1

    def release(self, peer: str) -> None:
        """Release one call of a peer."""
        address = address_of(peer)
        with self._lock:
            self._sum -= 1
            self._taken[address] -= 1
            # Empty entries are deleted, so that the table stays bounded.
            if not self._taken[address]:
                del self._taken[address]
