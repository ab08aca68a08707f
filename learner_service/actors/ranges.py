"""Ranges of the actors' observations. One actor's outliers must not affect the policy of all actors."""

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_log = logging.getLogger(__name__)

# Number of actors with the newest segments that are compared. With fewer than three, there is no majority.
_MOST_ACTORS, _LEAST_ACTORS = 256, 3
# Observations up to this many spans beyond the range of most actors are kept, because exploring actors differ much.
_SPANS = 10.0
# An actor whose range reaches this many spans beyond is named when the fidelity gate falls back.
_WIDE = 0.5
# Share by which a range shrinks toward the range of a newer, smaller segment.
_FORGET = 0.05
# At most this share of a batch is left out. If more is outside, the actors differ and none is an outlier.
_MOST_LEFT_OUT = 0.5


@dataclass
class _Range:
    lowest: NDArray[np.float64]
    highest: NDArray[np.float64]

    def add(self, lowest: NDArray[np.float64], highest: NDArray[np.float64]) -> None:
        self.lowest = np.minimum(lowest, self.lowest + _FORGET * (lowest - self.lowest))
        self.highest = np.maximum(highest, self.highest + _FORGET * (highest - self.highest))


class ObservedRanges:
    """The range of each component of the observations, by actor. Integers are not compared. Not thread-safe."""

    def __init__(self) -> None:
        self._ranges: OrderedDict[str, _Range] = OrderedDict()
        self._told: set[str] = set()
        # The bounds of most actors until the next recorded segment; None until they are needed.
        self._known: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        self.left_out = 0

    def update(self, actor: str, observations: NDArray[np.generic]) -> None:
        """Record a segment's observations, [T, E, *observation]."""
        if observations.dtype.kind != "f":
            return
        lowest = np.asarray(observations.min((0, 1)), np.float64)
        highest = np.asarray(observations.max((0, 1)), np.float64)
        self._known = None
        known = self._ranges.get(actor)
        if known is None:
            self._ranges[actor] = _Range(lowest, highest)
            if len(self._ranges) > _MOST_ACTORS:
                self._ranges.popitem(last=False)
        else:
            known.add(lowest, highest)
            self._ranges.move_to_end(actor)

    def inside(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether rows [B, ..., *observation] are not far outside the range of most actors, bool[B]."""
        everything = np.ones(len(rows), np.bool_)
        if len(self._ranges) < _LEAST_ACTORS or not len(rows) or rows.dtype.kind != "f":
            return everything
        if self._known is None:
            lowest, highest = self._most()
            # A component that never changes for most actors has no span: any other value may be the first of many.
            margin = _SPANS * np.where(highest > lowest, highest - lowest, np.inf)
            self._known = lowest - margin, highest + margin
        lowest, highest = self._known
        inside = ((rows >= lowest) & (rows <= highest)).reshape(len(rows), -1)
        kept: NDArray[np.bool_] = np.logical_and.reduce(inside, axis=1)
        count = len(rows) - int(np.count_nonzero(kept))
        if not 0 < count <= _MOST_LEFT_OUT * len(rows):
            return everything
        self.left_out += count
        self._tell(lowest, highest)
        return kept

    def widest(self) -> str:
        """The actor whose observations are farthest outside the range of most actors; "" if there is none, or with too
        few actors.
        """
        if len(self._ranges) < _LEAST_ACTORS:
            return ""
        lowest, highest = self._most()
        spans = np.where(highest > lowest, highest - lowest, np.inf)
        beyond = {
            actor: float((np.maximum(lowest - each.lowest, each.highest - highest) / spans).max())
            for actor, each in self._ranges.items()
        }
        actor = max(beyond, key=beyond.__getitem__)
        if beyond[actor] < _WIDE:
            return ""
        return f"{actor} reach {beyond[actor]:.3g} times the range of most actors beyond it"

    def _most(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The range of most actors."""
        ranges = self._ranges.values()
        lowest = np.median([each.lowest for each in ranges], axis=0)
        return lowest, np.median([each.highest for each in ranges], axis=0)

    def _tell(self, lowest: NDArray[np.float64], highest: NDArray[np.float64]) -> None:
        """Log once for each actor whose observations are left out."""
        for actor, each in self._ranges.items():
            if actor not in self._told and ((each.lowest < lowest) | (each.highest > highest)).any():
                self._told.add(actor)
                _log.warning(
                    "%s: observations far outside those of the other actors are left out of calibration; "
                    "is its environment faulty?",
                    actor,
                )
        # Names of actors that have left are forgotten, so that the table stays bounded.
        self._told &= self._ranges.keys()
