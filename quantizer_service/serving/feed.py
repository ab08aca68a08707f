"""A relay's stream of one variant from its upstream, which reconnects until it is stopped."""

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from actorq.domain.policy import Variant
from actorq.errors import ActorQError, ExhaustedError, InvalidInputError, NotFoundError, UnavailableError
from actorq.transport.reconnect import Backoff, keep_connected
from quantizer_service.serving.policy_stream import EncodedPolicy
from quantizer_service.serving.upstream import Upstream, UpstreamStream


class Feed:
    """Reads the stream on its own thread from the moment of its creation. Must be created on the event loop.

    Only the newest policy waits for the event loop. A busy loop skips versions in between.

    The feed calls these functions on the event loop until it is stopped:
    deliver: with each policy. refused: after each refused policy.
    end: with variant and error, when the feed gives up. A feed gives up on a scheme that the upstream does not know,
        and on an unexpected error.
    """

    def __init__(
        self,
        upstream: Upstream,
        variant: Variant,
        backoff: Backoff | None,
        deliver: Callable[[EncodedPolicy], None],
        refused: Callable[[], object],
        end: Callable[[Variant, Exception], None],
    ) -> None:
        self.connected = False
        self._upstream, self._variant, self._backoff = upstream, variant, backoff
        self._on_policy, self._on_refused, self._on_end = deliver, refused, end
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._stream: UpstreamStream | None = None
        self._waiting: deque[EncodedPolicy] = deque(maxlen=1)
        # A daemon thread, because a hanging upstream must not delay the end of the process. No data is lost.
        self.thread = threading.Thread(target=self._run, name=f"upstream {variant}", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End the stream. Call it on the event loop."""
        self._stopped.set()
        if self._stream is not None:
            self._stream.cancel()

    def _run(self) -> None:
        try:
            keep_connected(self._watch, self._stopped, self._upstream.peer, random.Random(), self._backoff)
        except Exception as error:
            self._call(partial(self._on_end, self._variant, error))

    def _watch(self, connected: Callable[[], None]) -> None:
        stream = self._stream = self._upstream.watch(self._variant)
        # `stop` may have run already. It can cancel the stream only from here on.
        if self._stopped.is_set():
            stream.cancel()
        try:
            stream.wait()
            self.connected = True
            for policy in stream:
                # Only a valid policy resets the backoff, so retries slow down for an upstream with invalid policies.
                connected()
                self._waiting.append(policy)
                self._call(self._deliver)
        except (NotFoundError, UnavailableError):
            raise
        except ActorQError as error:
            if isinstance(error, (InvalidInputError, ExhaustedError)):
                self._call(self._on_refused)
            # Retries after any error, because the upstream may be repaired or replaced.
            raise UnavailableError(f"{self._upstream.peer}: {error}; the last valid policy is still served") from error
        finally:
            self.connected = False
        raise UnavailableError(f"{self._upstream.peer} ended the stream of {self._variant} policies")

    def _deliver(self) -> None:
        if self._waiting:
            self._on_policy(self._waiting.pop())

    def _call(self, function: Callable[[], object]) -> None:
        def unless_stopped() -> None:
            if not self._stopped.is_set():
                function()

        # A closed loop raises RuntimeError, but then the process ends anyway.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(unless_stopped)
