"""Leases keep versions in the store until they are evaluated; in memory only."""

from collections.abc import Callable

from actorq.errors import InvalidInputError

# Longer than nearly any evaluation. A client that needs more asks again. One that is gone keeps a version no longer.
MAX_LEASE_S = 3600.0
# More than a run has evaluators. Each keeps the files of one version, and together they must not fill the disk.
MAX_LEASES = 16


class Leases:
    """One lease for each leased version, shared by all who asked for it.

    clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # When each ends, the one that was granted the longest ago first.
        self._ends: dict[int, float] = {}

    def grant(self, version: int, seconds: float) -> float:
        """Lease a version from now on; returns for how many seconds: those asked for, at most `MAX_LEASE_S`.

        The lease that was granted the longest ago gives way when there are `MAX_LEASES`. Raises InvalidInputError when
        the seconds are not above 0.
        """
        if not seconds > 0:
            raise InvalidInputError(f"duration: expected more than 0 s, got {seconds} s")
        granted = min(seconds, MAX_LEASE_S)
        self.end(version)
        while len(self.versions()) >= MAX_LEASES:
            del self._ends[next(iter(self._ends))]
        self._ends[version] = self._clock() + granted
        return granted

    def end(self, version: int) -> None:
        """End the lease of a version, if it has one."""
        self._ends.pop(version, None)

    def versions(self) -> frozenset[int]:
        """The versions that are leased now."""
        now = self._clock()
        self._ends = {version: end for version, end in self._ends.items() if end > now}
        return frozenset(self._ends)
