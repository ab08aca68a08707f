"""The number of open calls, which peers share."""

import threading
from collections import Counter

from actorq.errors import ExhaustedError


def address_of(peer: str) -> str:
    """The machine of a gRPC peer without the port: "ipv4:10.0.0.1" of "ipv4:10.0.0.1:5000"."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer


class Quota:
    """At most `total` calls at a time, at most `most` of them for one address, so that no peer takes all.

    most: None for half of them, because a thousand actors may share the address of one node or gateway. Thread-safe.
    """

    def __init__(self, total: int, most: int | None = None) -> None:
        self._total = total
        self._most = total // 2 if most is None else min(most, total)
        self._taken: Counter[str] = Counter()
        self._sum = 0
        self._lock = threading.Lock()

    def acquire(self, peer: str) -> None:
        """Acquire one for a peer. Raises ExhaustedError, without acquiring any, if that would exceed a bound."""
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
        """Return one of a peer's."""
        address = address_of(peer)
        with self._lock:
            self._sum -= 1
            self._taken[address] -= 1
            # Entries without any are deleted, so that the table stays bounded.
            if not self._taken[address]:
                del self._taken[address]
