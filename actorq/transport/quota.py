"""A bounded amount that peers share: open calls, or bytes of uploads that are not whole yet."""

import threading
from collections import Counter

from actorq.errors import ExhaustedError


def address_of(peer: str) -> str:
    """The machine of a gRPC peer: "ipv4:10.0.0.1:5000" is "ipv4:10.0.0.1", whatever the connection's port."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer


class Quota:
    """At most `total` units at a time, and at most half of them for one address, so that no peer takes all.

    Half, and not less: a thousand actors may share one node's or one gateway's address. Thread-safe.

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
        """How many units are taken now."""
        with self._lock:
            return self._sum

    def take(self, peer: str, units: int = 1) -> None:
        """Take units for a peer; raises ExhaustedError, and takes none, when its address or all would have too many."""
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
        """Return units that the peer took."""
        address = address_of(peer)
        with self._lock:
            self._sum -= units
            self._taken[address] -= units
            # Addresses come and go; those without a unit are forgotten.
            if not self._taken[address]:
                del self._taken[address]
