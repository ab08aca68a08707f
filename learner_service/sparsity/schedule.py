"""The schedule of mask changes: when masks change, and by how much."""

import math
from dataclasses import dataclass

from actorq.config.run_config import RunConfig


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


def planned_updates(config: RunConfig, batch_size: int, epochs: int | None = None) -> float:
    """Gradient updates of a whole run.

    epochs: passes over each transition; None for the pace of the rate limiter.
    """
    uses = config.rate_limiter.samples_per_insert if epochs is None else epochs
    return config.max_environment_steps * uses / batch_size
