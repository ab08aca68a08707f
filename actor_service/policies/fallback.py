"""Acts with the run's scheme, or with int8-weights on a processor that computes that scheme wrongly."""

import logging

from actor_service.policies.scheme import SchemeSubscription
from actorq.domain.policy import FALLBACK, PolicyDescriptor

_log = logging.getLogger(__name__)


class FallbackSubscription(SchemeSubscription):
    """A subscription to one scheme that changes to int8-weights when `check` finds a mismatch.

    Parameters are those of SchemeSubscription.
    """

    @property
    def avoided(self) -> str:
        """The requested scheme if this processor computes it wrongly; else empty."""
        return "" if self.scheme == self._asked else self._asked

    def _first(self, scheme: str) -> str:
        self._asked = scheme
        if scheme not in self._check.avoided:
            return scheme
        _log.warning("this processor has no int8 dot product: acting with %s instead of %s", FALLBACK, scheme)
        return FALLBACK

    def _look_at(self, acting: PolicyDescriptor) -> None:
        if self._check.run(self._client, acting) and not self._stop.is_set():
            _log.warning("acting with %s instead of %s from now on", FALLBACK, acting.scheme)
            self._change_to(FALLBACK, acting)
