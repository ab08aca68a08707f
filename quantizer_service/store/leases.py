"""The versions that somebody holds, in memory only: for how long, and how many at most."""

from collections.abc import Callable

from actorq.errors import InvalidInputError

# Longer than nearly any evaluation, and whoever needs more asks again. Who is gone keeps a version no longer than that.
MAX_HOLD_S = 3600.0
# More than a run has evaluators. Each keeps the files of one version, and together they must not fill the disk.
MAX_LEASES = 16


class Leases:
    """One lease for each version that is held, whoever asked for it.

    clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # When each ends, the one that was granted the longest ago first.
        self._ends: dict[int, float] = {}

    def grant(self, version: int, seconds: float) -> float:
        """Hold a version from now on; returns for how many seconds: those asked for, at most `MAX_HOLD_S`.

        The lease that was granted the longest ago gives way when there are `MAX_LEASES`. Raises InvalidInputError when
        the seconds are not above 0.
        """
        if not seconds > 0:
            raise InvalidInputError(f"duration: expected more than 0 s, got {seconds} s")
        granted = min(seconds, MAX_HOLD_S)
        self.end(version)
        while len(self.held()) >= MAX_LEASES:
            del self._ends[next(iter(self._ends))]
        self._ends[version] = self._clock() + granted
        return granted

    def end(self, version: int) -> None:
        """Hold a version no longer, if it was held."""
        self._ends.pop(version, None)

    def held(self) -> frozenset[int]:
        """The versions that are held now."""
        now = self._clock()
        self._ends = {version: end for version, end in self._ends.items() if end > now}
        return frozenset(self._ends)
