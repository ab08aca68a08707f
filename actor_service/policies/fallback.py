"""A run's own scheme, or another one where this processor computes it wrongly."""

import logging
import threading
from collections.abc import Callable

from actor_service.counts import ActorCounts
from actor_service.policies.comparison import PolicyCheck
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actor_service.policies.subscription import Subscription
from actorq.client import QuantizerClient
from actorq.domain.policy import FALLBACK, Policy, PolicyDescriptor

_log = logging.getLogger(__name__)

_WAIT_S = 1.0


class FallbackSubscription:
    """A subscription to one scheme that changes over to int8-weights when `check` finds a mismatch.

    The comparison runs on a thread of its own, with policies that it gets from the quantizer.

    connect: opens a client of the quantizer, which this closes.
    load: makes a policy ready to act.
    on_fault: called with an error that trying again would not mend.
    wanted: see Subscription.
    """

    def __init__(
        self,
        connect: Callable[[], QuantizerClient],
        scheme: str,
        slot: PolicySlot,
        load: Callable[[Policy], OnnxPolicy],
        on_fault: Callable[[BaseException], None],
        check: PolicyCheck,
        counts: ActorCounts,
        wanted: Callable[[PolicyDescriptor], bool] = lambda descriptor: True,
    ) -> None:
        self._connect = connect
        self._slot = slot
        self._load = load
        self._on_fault = on_fault
        self._check = check
        self._counts = counts
        self._wanted = wanted
        self._stop = threading.Event()
        self._client = connect()
        self._asked = scheme
        if scheme in check.avoided:
            _log.warning("this processor has no dot product of int8 numbers: acting with %s, not %s", FALLBACK, scheme)
            scheme = FALLBACK
        self._current = self._subscription(scheme, 0)
        self._thread = threading.Thread(target=self._run, name="policy check", daemon=True)

    @property
    def scheme(self) -> str:
        """The scheme that is watched now."""
        return self._current.scheme

    @property
    def avoided(self) -> str:
        """The scheme that was asked for, if this processor computes it wrongly; else empty."""
        return "" if self.scheme == self._asked else self._asked

    def start(self) -> None:
        """Begin to watch."""
        self._current.start()
        self._thread.start()

    def look_again(self) -> None:
        """The answer of `wanted` may be another now."""
        self._current.look_again()

    def close(self) -> None:
        """Stop watching and wait until nothing more is put into the slot."""
        self._stop.set()
        self._slot.wake()
        self._client.close()
        if self._thread.is_alive():
            self._thread.join()
        self._current.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and not self._slot.closed:
                policy = self._slot.wait(lambda found: self._stop.is_set() or self._check.is_due(found), _WAIT_S)
                if policy is None or self._stop.is_set():
                    continue
                if self._check.run(self._client, policy.descriptor) and not self._stop.is_set():
                    self._fall_back(policy.descriptor)
        except BaseException as error:
            # A closed channel raises too: that is the end and no fault.
            if not self._stop.is_set():
                self._on_fault(error)

    def _fall_back(self, acting: PolicyDescriptor) -> None:
        _log.warning("acting with %s from now on, not %s", FALLBACK, acting.scheme)
        self._current.close()
        newest = self._slot.peek()
        version = newest.descriptor.version if newest else acting.version
        # The same version again: it is to act in the other scheme at once.
        self._current = self._subscription(FALLBACK, version - 1)
        self._current.start()

    def _subscription(self, scheme: str, after_version: int) -> Subscription:
        client = self._connect()
        return Subscription(
            client, scheme, self._slot, self._load, self._on_fault, self._counts, after_version, self._wanted
        )
