"""Keeps the newest policy in the slot: watches the quantizer, and loads policies on threads beside the acting loop."""

import logging
import random
import threading
import time
from collections.abc import Callable

from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actorq.client import QuantizerClient
from actorq.domain.policy import Policy, PolicyDescriptor
from actorq.errors import ActorQError, DeniedError, InvalidInputError, NotFoundError, UnavailableError, UserError
from actorq.transport.reconnect import keep_connected

_log = logging.getLogger(__name__)

# Errors of a stream that only another scheme or another certificate would mend.
_FINAL = (NotFoundError, DeniedError, UserError)


class Subscription:
    """Watches one scheme of the quantizer on two threads.

    One thread reads the stream and keeps only the newest policy. The other thread loads it. A single thread would load
    outdated versions, because gRPC buffers several small policies.

    client: a client for this subscription alone. The subscription closes it to end a waiting stream.
    load: makes a policy ready to act.
    on_fault: called with an error that a retry cannot fix.
    after_version: receive only versions above this one.
    wanted: whether to load the newest policy. Asked for each newer policy and by `look_again`.
    """

    def __init__(
        self,
        client: QuantizerClient,
        scheme: str,
        slot: PolicySlot,
        load: Callable[[Policy], OnnxPolicy],
        on_fault: Callable[[BaseException], None],
        after_version: int = 0,
        wanted: Callable[[PolicyDescriptor], bool] = lambda descriptor: True,
    ) -> None:
        self.scheme = scheme
        self._client = client
        self._slot = slot
        self._load = load
        self._on_fault = on_fault
        self._wanted = wanted
        self._changed = threading.Condition()
        self._received: Policy | None = None
        self._newest_version = after_version
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (("subscription", self._receive), ("policy loader", self._load_newest))
        ]

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def look_again(self) -> None:
        """Ask `wanted` again, because its answer may have changed."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop watching, and wait until no thread can put a policy into the slot."""
        self._stop.set()
        self.look_again()
        self._client.close()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    def _receive(self) -> None:
        try:
            count_retry = self._slot.counts.quantizer_retries.add
            keep_connected(self._watch, self._stop, self._client.peer, random.Random(), on_retry=count_retry)
        except BaseException as error:
            # A closed channel raises too, but `close` is no fault.
            if not self._stop.is_set():
                self._on_fault(error)

    def _watch(self, connected: Callable[[], None]) -> None:
        try:
            for policy in self._client.watch(self.scheme, self._newest_version):
                connected()
                with self._changed:
                    self._received = policy
                    self._newest_version = self._slot.served_version = policy.descriptor.version
                    self._changed.notify_all()
        except (*_FINAL, UnavailableError):
            raise
        except ActorQError as error:
            # A later attempt may succeed: with another version, or with a quantizer that is repaired or replaced.
            raise UnavailableError(str(error)) from error

    def _load_newest(self) -> None:
        while (policy := self._next()) is not None:
            started = time.perf_counter()
            try:
                loaded = self._load(policy)
                # Counted before the policy can act, so that activations never exceed loads.
                self._slot.counts.load_seconds.observe(time.perf_counter() - started)
                self._slot.put(loaded)
            except InvalidInputError as error:
                # The next version may be valid.
                _log.error("%s; keeping the previous policy", error)
            except Exception as error:
                self._on_fault(error)
                return

    def _next(self) -> Policy | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stop.is_set() or self._is_wanted())
            policy, self._received = self._received, None
            return None if self._stop.is_set() else policy

    def _is_wanted(self) -> bool:
        return self._received is not None and self._wanted(self._received.descriptor)
