"""A bounded amount that peers share: open calls, or bytes of incomplete uploads."""

import threading
from collections import Counter

from actorq.errors import ExhaustedError


def address_of(peer: str) -> str:
    """The machine of a gRPC peer without the port: "ipv4:10.0.0.1" of "ipv4:10.0.0.1:5000"."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer


class Quota:
    """At most `total` units at a time, at most half of them for one address, so that no peer takes all.

    The share is half because a thousand actors may share the address of one node or gateway. Thread-safe.

    what: names the unit in errors.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._most = total // 2
        self._taken: Counter[str] = Counter()
        self._sum = 0
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """The number of units taken now."""
        with self._lock:
            return self._sum

    def take(self, peer: str, units: int = 1) -> None:
        """Take units for a peer. Raises ExhaustedError, and takes none, when that would exceed one of the bounds."""
        address = address_of(peer)
        with self._lock:
            if self._sum + units > self._total:
                raise ExhaustedError(
                    f"this service takes at most {self._total} {self._what} at a time; try again later"
                )
            if self._taken[address] + units > self._most:
                raise ExhaustedError(
                    f"this service takes at most {self._most} {self._what} from one address at a time, got more from "
                    f"{address}"
                )
            self._taken[address] += units
            self._sum += units

    def give_back(self, peer: str, units: int = 1) -> None:
        """Return a peer's units."""
        address = address_of(peer)
        with self._lock:
            self._sum -= units
            self._taken[address] -= units
            # Entries without units are deleted, so that the table stays bounded.
            if not self._taken[address]:
                del self._taken[address]
