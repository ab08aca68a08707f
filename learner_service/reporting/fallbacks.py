"""Logs when the fidelity gate puts layers back into float, and the actor with the widest observations."""

import logging
import time
from collections.abc import Callable, Iterable

from actorq.domain.policy import PolicyDescriptor

_log = logging.getLogger(__name__)

# Layers near the threshold change with each version.
_QUIET_S = 60.0


class Fallbacks:
    """Follows a run's emitted policies. widest: the actor with the widest observations, or "". Not thread-safe."""

    def __init__(self, widest: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._widest = widest
        self._clock = clock
        # For each scheme: the last logged layers, and the time of the log line.
        self._told: dict[str, tuple[tuple[str, ...], float]] = {}

    def record(self, policies: Iterable[PolicyDescriptor]) -> None:
        """Record the policies of a version. Logs changes, at most one line a minute for each scheme."""
        now = self._clock()
        for policy in policies:
            told, at = self._told.get(policy.scheme, ((), now - _QUIET_S))
            layers = policy.fidelity.gated_layers
            if layers == told or now - at < _QUIET_S:
                continue
            self._told[policy.scheme] = layers, now
            if layers:
                widest = self._widest()
                _log.warning(
                    "version %d: the fidelity gate keeps %d of %d layers of %s in float (%s)%s",
                    *(policy.version, len(layers), len(policy.fidelity.layers), policy.scheme, ", ".join(layers)),
                    f"; the observations of {widest}" if widest else "",
                )
            else:
                _log.info("version %d: the fidelity gate quantizes all layers of %s", policy.version, policy.scheme)
