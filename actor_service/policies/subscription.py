"""Keeps the newest policy in the slot: watches the quantizer and builds sessions off the acting loop's path."""

import logging
import random
import threading
import time
from collections.abc import Callable

from actor_service.counts import ActorCounts
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actorq.client import QuantizerClient
from actorq.domain.policy import Policy, PolicyDescriptor
from actorq.errors import InvalidInputError
from actorq.transport.reconnect import keep_connected

_log = logging.getLogger(__name__)


class Subscription:
    """Watches one scheme of the quantizer on two threads.

    One reads the stream and keeps the newest policy only: gRPC buffers more than one small policy, so a reader that
    stopped to build sessions would work through versions that nobody wants any more. The other builds sessions.

    client: of this subscription alone, which closes it: that is what ends a stream that waits.
    load: makes a policy ready to act.
    on_fault: called with an error that trying again would not mend.
    after_version: only policies above it.
    wanted: whether a session is built of the newest policy; asked again with each newer one, and by `look_again`.
    """

    def __init__(
        self,
        client: QuantizerClient,
        scheme: str,
        slot: PolicySlot,
        load: Callable[[Policy], OnnxPolicy],
        on_fault: Callable[[BaseException], None],
        counts: ActorCounts | None = None,
        after_version: int = 0,
        wanted: Callable[[PolicyDescriptor], bool] = lambda descriptor: True,
    ) -> None:
        self.scheme = scheme
        self._client = client
        self._slot = slot
        self._load = load
        self._on_fault = on_fault
        self._counts = counts or ActorCounts()
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
        """The answer of `wanted` may be another now."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop watching and wait until nothing more is put into the slot."""
        self._stop.set()
        self.look_again()
        self._client.close()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    def _receive(self) -> None:
        try:
            keep_connected(
                self._watch,
                self._stop,
                self._client.peer,
                random.Random(),
                on_retry=self._count_retry,
            )
        except BaseException as error:
            # A closed channel raises too: that is the end and no fault.
            if not self._stop.is_set():
                self._on_fault(error)

    def _count_retry(self) -> None:
        if not self._stop.is_set():
            self._counts.quantizer_retries.add()

    def _watch(self, connected: Callable[[], None]) -> None:
        for policy in self._client.watch(self.scheme, self._newest_version):
            connected()
            with self._changed:
                self._received = policy
                self._newest_version = policy.descriptor.version
                self._changed.notify_all()

    def _load_newest(self) -> None:
        while (policy := self._next()) is not None:
            started = time.perf_counter()
            try:
                loaded = self._load(policy)
                # Before it can act, so that no more policies have acted than were loaded.
                self._counts.load_seconds.observe(time.perf_counter() - started)
                self._slot.put(loaded)
            except InvalidInputError as error:
                # The policy before goes on acting; the next version may be good.
                _log.error("%s; going on with the policy before", error)
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
