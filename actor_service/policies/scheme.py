"""Acts with the run's scheme, or with int8-weights on a processor that computes that scheme wrongly."""

import logging
import threading
from collections.abc import Callable

from actor_service.policies.comparison import PolicyCheck
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actor_service.policies.subscription import Subscription
from actorq.client import QuantizerClient
from actorq.domain.policy import FALLBACK, Policy, PolicyDescriptor

_log = logging.getLogger(__name__)

_WAIT_S = 1.0


class SchemeSubscription:
    """Watches one scheme at a time. Its own thread has `check` look at the acting policy.

    It changes to int8-weights when the check finds a mismatch.

    connect: opens a client of the quantizer. The subscription closes it.
    load: makes a policy ready to act.
    on_fault: called with an error that a retry cannot fix.
    check: finds the schemes that this processor computes wrongly.
    scheme: the requested scheme.
    wanted: see Subscription.
    """

    def __init__(
        self,
        connect: Callable[[], QuantizerClient],
        slot: PolicySlot,
        load: Callable[[Policy], OnnxPolicy],
        on_fault: Callable[[BaseException], None],
        check: PolicyCheck,
        scheme: str,
        wanted: Callable[[PolicyDescriptor], bool] = lambda descriptor: True,
    ) -> None:
        self._connect = connect
        self._slot = slot
        self._load = load
        self._on_fault = on_fault
        self._check = check
        self._wanted = wanted
        self._stop = threading.Event()
        self._client = connect()
        self._requested = scheme
        if scheme in check.avoided:
            _log.warning("this processor computes %s wrongly: acting with %s instead", scheme, FALLBACK)
            scheme = FALLBACK
        self._current = self._subscription(scheme, 0)
        self._thread = threading.Thread(target=self._run, name="scheme", daemon=True)

    @property
    def scheme(self) -> str:
        """The scheme that is watched now."""
        return self._current.scheme

    @property
    def avoided(self) -> str:
        """The scheme that this actor avoids because its processor computes it wrongly; empty for none."""
        return "" if self.scheme == self._requested else self._requested

    def settled(self, descriptor: PolicyDescriptor) -> bool:
        """Whether the scheme of this policy is the final choice for its topology."""
        return True

    def start(self) -> None:
        """Begin to watch."""
        self._current.start()
        self._thread.start()

    def look_again(self) -> None:
        """Ask `wanted` again, because its answer may have changed."""
        self._current.look_again()

    def close(self) -> None:
        """Stop watching, and wait until no thread can put a policy into the slot."""
        self._stop.set()
        self._slot.wake()
        self._client.close()
        if self._thread.is_alive():
            self._thread.join()
        self._current.close()

    def _is_due(self, descriptor: PolicyDescriptor) -> bool:
        """Whether to call `_look_at` for the acting policy."""
        return self._check.is_due(descriptor)

    def _look_at(self, acting: PolicyDescriptor) -> None:
        """Check the acting policy, and change the scheme if needed."""
        if self._check.run(self._client, acting) and not self._stop.is_set():
            _log.warning("acting with %s instead of %s from now on", FALLBACK, acting.scheme)
            self._change_to(FALLBACK, acting)

    def _change_to(self, scheme: str, acting: PolicyDescriptor) -> None:
        """Watch another scheme. The acting version comes first, so that the new scheme acts at once."""
        self._current.close()
        newest = self._slot.peek()
        version = newest.descriptor.version if newest else acting.version
        self._current = self._subscription(scheme, version - 1)
        self._current.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and not self._slot.closed:
                policy = self._slot.wait(lambda found: self._stop.is_set() or self._is_due(found), _WAIT_S)
                if policy is not None and not self._stop.is_set():
                    self._look_at(policy.descriptor)
        except BaseException as error:
            # A closed channel raises too, but `close` is no fault.
            if not self._stop.is_set():
                self._on_fault(error)

    def _subscription(self, scheme: str, after_version: int) -> Subscription:
        parts = (self._connect(), scheme, self._slot, self._load, self._on_fault)
        return Subscription(*parts, after_version, self._wanted)
