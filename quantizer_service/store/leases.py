"""Leases, which keep versions in the store until their evaluation. They exist only in memory."""

from collections.abc import Callable

# Longer than nearly any evaluation. A client that needs more time asks again. A dead client blocks no longer than this.
MAX_LEASE_S = 3600.0
# More than a run has evaluators. Each lease keeps the files of one version, which must not fill the disk.
MAX_LEASES = 16


class Leases:
    """One lease per leased version, shared by its clients.

    clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # The end of each lease, in the order in which they were granted.
        self._ends: dict[int, float] = {}

    def grant(self, version: int, seconds: float) -> float:
        """Lease a version from now on. Returns the granted seconds, at most `MAX_LEASE_S`.

        Ends the oldest lease when there are `MAX_LEASES`.
        """
        granted = min(seconds, MAX_LEASE_S)
        self.end(version)
        while len(self.versions()) >= MAX_LEASES:
            del self._ends[next(iter(self._ends))]
        self._ends[version] = self._clock() + granted
        return granted

    def end(self, version: int) -> None:
        """End the lease of a version, if there is one."""
        self._ends.pop(version, None)

    def versions(self) -> frozenset[int]:
        """The leased versions."""
        now = self._clock()
        self._ends = {version: end for version, end in self._ends.items() if end > now}
        return frozenset(self._ends)
