"""The foreign parts of a simulated cluster: KEDA's metric, the HorizontalPodAutoscaler's rule, and pods."""

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Autoscaler:
    """A HorizontalPodAutoscaler on one external AverageValue metric, as KEDA creates it, evaluated every `period_s`.

    The rule is Kubernetes' default. Within a tenth of the target nothing changes. Per period the number of replicas
    at most doubles or grows by four pods, whichever is more. It shrinks only to the largest number wanted within the
    stabilization window.
    """

    minimum: int
    maximum: int
    period_s: float = 15.0
    stabilization_s: float = 120.0
    tolerance: float = 0.1
    polls: int = 0
    _wishes: deque[tuple[float, int]] = field(default_factory=deque)

    def decide(self, now: float, metric: float, replicas: int) -> int:
        """The new number of replicas. `metric` is the sum over all replicas, with a target of 1 for each."""
        self.polls += 1
        ratio = metric / max(1, replicas)
        wish = replicas if abs(ratio - 1) <= self.tolerance else math.ceil(metric)
        wish = min(self.maximum, max(self.minimum, wish))
        self._wishes.append((now, wish))
        while now - self._wishes[0][0] > self.stabilization_s:
            self._wishes.popleft()
        if wish > replicas:
            return min(wish, max(2 * replicas, replicas + 4))
        return min(replicas, max(number for _, number in self._wishes))


class Pods:
    """Start times of a Deployment's pods. Pods start in order, each with a delay. The youngest pods end first.

    starts_at: float64[maximum], infinite for pods that do not exist.
    """

    def __init__(self, maximum: int, start_s: tuple[float, float], per_s: float, rng: np.random.Generator) -> None:
        self.replicas = 0
        self.starts_at = np.full(maximum, np.inf)
        self._start_s = start_s
        self._per_s = per_s
        self._free_at = 0.0
        self._rng = rng

    def scale(self, replicas: int, now: float) -> None:
        """Create or delete pods. The cluster creates at most `per_s` pods per second."""
        self.starts_at[replicas:] = np.inf
        new = range(self.replicas, replicas)
        if new:
            begun = max(now, self._free_at) + np.arange(1, len(new) + 1) / self._per_s
            self.starts_at[new.start : new.stop] = begun + self._rng.uniform(*self._start_s, len(new))
            self._free_at = float(begun[-1])
        self.replicas = replicas
