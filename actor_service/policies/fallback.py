"""A run's own scheme, or another one where this processor computes it wrongly."""

import logging
from collections.abc import Callable

from actor_service.counts import ActorCounts
from actor_service.policies.comparison import PolicyCheck
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actor_service.policies.scheme import SchemeSubscription
from actorq.client import QuantizerClient
from actorq.domain.policy import FALLBACK, Policy, PolicyDescriptor

_log = logging.getLogger(__name__)


class FallbackSubscription(SchemeSubscription):
    """A subscription to one scheme that changes over to int8-weights when `check` finds a mismatch.

    Parameters are those of SchemeSubscription.
    """

    def __init__(
        self,
        connect: Callable[[], QuantizerClient],
        slot: PolicySlot,
        load: Callable[[Policy], OnnxPolicy],
        on_fault: Callable[[BaseException], None],
        check: PolicyCheck,
        counts: ActorCounts,
        scheme: str,
        wanted: Callable[[PolicyDescriptor], bool] = lambda descriptor: True,
    ) -> None:
        self._asked = scheme
        if scheme in check.avoided:
            _log.warning("this processor has no dot product of int8 numbers: acting with %s, not %s", FALLBACK, scheme)
            scheme = FALLBACK
        super().__init__(connect, slot, load, on_fault, check, counts, scheme, wanted)

    @property
    def avoided(self) -> str:
        """The scheme that was asked for, if this processor computes it wrongly; else empty."""
        return "" if self.scheme == self._asked else self._asked

    def _look_at(self, acting: PolicyDescriptor) -> None:
        if self._check.run(self._client, acting) and not self._stop.is_set():
            _log.warning("acting with %s from now on, not %s", FALLBACK, acting.scheme)
            self._change_to(FALLBACK, acting)
