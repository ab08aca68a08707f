"""A run's own scheme, or another one where this processor computes it wrongly."""

import logging

from actor_service.policies.scheme import SchemeSubscription
from actorq.domain.policy import FALLBACK, PolicyDescriptor

_log = logging.getLogger(__name__)


class FallbackSubscription(SchemeSubscription):
    """A subscription to one scheme that changes over to int8-weights when `check` finds a mismatch.

    Parameters are those of SchemeSubscription.
    """

    @property
    def avoided(self) -> str:
        """The scheme that was asked for, if this processor computes it wrongly; else empty."""
        return "" if self.scheme == self._asked else self._asked

    def _first(self, scheme: str) -> str:
        self._asked = scheme
        if scheme not in self._check.avoided:
            return scheme
        _log.warning("this processor has no dot product of int8 numbers: acting with %s, not %s", FALLBACK, scheme)
        return FALLBACK

    def _look_at(self, acting: PolicyDescriptor) -> None:
        if self._check.run(self._client, acting) and not self._stop.is_set():
            _log.warning("acting with %s from now on, not %s", FALLBACK, acting.scheme)
            self._change_to(FALLBACK, acting)
