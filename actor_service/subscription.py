"""Keeps the newest policy in the slot: watches the quantizer and builds sessions off the acting loop's path."""

import logging
import random
import threading
from collections.abc import Callable

from actor_service.policy import OnnxPolicy, PolicySlot
from actorq.client import QuantizerClient
from actorq.errors import ActorQError, InvalidInputError, UnavailableError
from actorq.policy import Policy
from actorq.transport.reconnect import keep_connected

_log = logging.getLogger(__name__)


class Subscription:
    """A thread that watches one scheme of the quantizer.

    load: makes a policy ready to act.
    on_fault: called with an error that trying again would not mend.
    """

    def __init__(
        self,
        client: QuantizerClient,
        scheme: str,
        slot: PolicySlot,
        load: Callable[[Policy], OnnxPolicy],
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._client = client
        self._scheme = scheme
        self._slot = slot
        self._load = load
        self._on_fault = on_fault
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="subscription", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching. The caller closes the client, which ends a stream that waits."""
        self._stop.set()

    def _run(self) -> None:
        try:
            keep_connected(self._watch, self._stop, self._client.peer, random.Random())
        except BaseException as error:
            if not self._stop.is_set():
                self._on_fault(error)

    def _watch(self, connected: Callable[[], None]) -> None:
        newest = self._slot.peek()
        try:
            for policy in self._client.watch(self._scheme, newest.descriptor.version if newest else 0):
                connected()
                self._take(policy)
                if self._stop.is_set():
                    return
        except ActorQError:
            if self._stop.is_set():
                return
            raise
        except ValueError:
            # grpc raises it for a call on a channel that has been closed meanwhile.
            if self._stop.is_set():
                return
            raise
        raise UnavailableError(f"{self._client.peer} ended the stream of policies")

    def _take(self, policy: Policy) -> None:
        try:
            self._slot.put(self._load(policy))
        except InvalidInputError as error:
            # The policy before goes on acting; the next version may be good.
            _log.error("%s; going on with the policy before", error)
