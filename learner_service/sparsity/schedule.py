"""The schedule of mask changes: when masks change, and by how much."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class CosineSchedule:
    """zeta_t = zeta_0 / 2 (1 + cos(pi t / T_end)) every `period` updates of the run before T_end (arXiv 1911.11134).

    replaced: zeta_0. end: T_end, in gradient updates.
    """

    period: int
    replaced: float
    end: float

    def share(self, before: int, after: int) -> float:
        """Share of a layer's weights to replace at a step from `before` updates to `after`; 0 for no change."""
        if after // self.period == before // self.period or after >= self.end:
            return 0.0
        return self.replaced / 2 * (1 + math.cos(math.pi * after / self.end))
