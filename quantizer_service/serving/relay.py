"""A relay: serves the policies of another quantizer to watchers of its own, from memory.

It is a board between two streams: each scheme that somebody watches here is watched once at the upstream, and the
newest policy of each hangs on the board as the bytes that brought it. Relays of relays make a tree.
"""

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NoReturn, ParamSpec, Protocol, TypeVar

from actorq.config.schemes import is_scheme, scheme_names
from actorq.domain.policy import PolicyDescriptor, RetainedPolicy
from actorq.errors import ActorQError, ConflictError, ExhaustedError, InvalidInputError, NotFoundError, UnavailableError
from actorq.transport.reconnect import Backoff, keep_connected
from quantizer_service.serving.board import Board, Subscription
from quantizer_service.serving.policy_stream import Messages, PolicyDelivery

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)

# Calls that are handed on at a time; each has a deadline.
_THREADS = 4
_PATIENCE_S = 5.0


class Deliveries(Protocol):
    """An open stream of one scheme's policies; iterating raises the errors of `actorq.errors`."""

    def wait(self) -> None:
        """Wait until the stream is open or has ended."""
        ...

    def cancel(self) -> None:
        """End it from another thread."""
        ...

    def __iter__(self) -> Iterator[PolicyDelivery]: ...


class PolicyUpstream(Protocol):
    """What a relay asks; calls block, and come from several threads."""

    peer: str

    def watch(self, scheme: str) -> Deliveries:
        """Open a stream of a scheme."""
        ...

    def get(self, scheme: str, version: int) -> PolicyDelivery:
        """One retained policy, version 0 for the newest."""
        ...

    def describe(self, scheme: str, version: int) -> PolicyDescriptor:
        """All of a retained policy but its bytes."""
        ...

    def list_versions(self, page_size: int, page_token: str) -> tuple[tuple[RetainedPolicy, ...], str]:
        """A page of the retained versions."""
        ...

    def hold(self, version: int, seconds: float) -> float:
        """Retain a version until its next evaluation; returns the seconds granted."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Relay:
    """Serves what `upstream` serves; made and used in one event loop.

    now: unix seconds; ages policies.

    relayed, refused: policies that were handed on, and streams that ended because what came was refused, by scheme.
    newest: the newest policy of each scheme that was watched here in this run.
    lag_seconds: how old each of these was when it came, since the learner's snapshot, by both clocks.
    run_id: of the policies that are served; empty before the first.
    failed: done with the error when a feed has failed in a way that nobody foresaw.
    """

    def __init__(
        self, upstream: PolicyUpstream, backoff: Backoff | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._upstream = upstream
        self._backoff = backoff or Backoff()
        self._now = now
        self._board: Board[Messages] = Board(self._leave)
        self._feeds: dict[str, _Feed] = {}
        self._ended: list[_Feed] = []
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="upstream")
        self.draining = asyncio.Event()
        self.failed: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self.run_id = ""
        self.relayed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.newest: dict[str, PolicyDescriptor] = {}
        self.lag_seconds: dict[str, float] = {}

    @property
    def subscribers_by_scheme(self) -> Mapping[str, int]:
        """How many watch each scheme here."""
        return self._board.subscribers_by_scheme

    @property
    def connected(self) -> Mapping[str, bool]:
        """For each scheme that is watched here, whether its stream from the upstream is open."""
        return {scheme: feed.connected for scheme, feed in self._feeds.items()}

    def intake(self) -> NoReturn:
        """Raise ConflictError: nothing can be published to a relay."""
        raise ConflictError(f"this is a relay: nothing can be published to it; publish to its {self._upstream.peer}")

    async def subscribe(self, scheme: str, after_version: int) -> Subscription[Messages]:
        """Watch a scheme, also while the upstream is away; raises NotFoundError when there is no such scheme."""
        if not is_scheme(scheme):
            raise NotFoundError(f"scheme: expected one of {', '.join(scheme_names())}, got {scheme!r}")
        if self.draining.is_set():
            raise UnavailableError("the relay is draining; connect again later")
        subscription = self._board.subscribe(scheme, after_version)
        if scheme not in self._feeds:
            self._feeds[scheme] = _Feed(self, self._upstream, scheme, self._backoff)
        return subscription

    async def get(self, scheme: str, version: int = 0) -> Messages:
        """A retained policy: the newest from memory while its scheme is watched here, others from the upstream.

        While the upstream is away, what is in memory counts as the newest.
        """
        held = self._board.newest(scheme)
        live = scheme in self._feeds and self._feeds[scheme].connected
        if held is not None and (version == self._board.version(scheme) or (not version and live)):
            return held
        try:
            delivery = await self._ask(self._upstream.get, scheme, version)
        except UnavailableError:
            if version or held is None:
                raise
            return held
        found = delivery.descriptor
        older = not version and found.run_id == self.run_id and found.version < self._board.version(scheme)
        return held if older and held is not None else delivery.messages

    async def describe(self, scheme: str, version: int = 0) -> PolicyDescriptor:
        """Asked of the upstream."""
        return await self._ask(self._upstream.describe, scheme, version)

    async def list_versions(self, page_size: int, page_token: str) -> tuple[tuple[RetainedPolicy, ...], str]:
        """Asked of the upstream."""
        return await self._ask(self._upstream.list_versions, page_size, page_token)

    async def hold(self, version: int, seconds: float) -> float:
        """Asked of the upstream."""
        return await self._ask(self._upstream.hold, version, seconds)

    def begin_drain(self) -> None:
        """Take no new work: watchers' streams end."""
        self.draining.set()
        self._board.close()

    async def settle(self) -> None:
        """Hang up at the upstream, and wait for the threads that talked to it."""
        self._stop(tuple(self._feeds))
        loop = asyncio.get_running_loop()
        for feed in self._ended:
            await loop.run_in_executor(self._pool, feed.join, _PATIENCE_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._upstream.close()

    def take(self, feed: "_Feed", delivery: PolicyDelivery) -> None:
        """A policy came; hang it up unless one as new of the same run hangs there. For feeds, on the event loop."""
        if self._feeds.get(feed.scheme) is not feed:
            return
        descriptor = delivery.descriptor
        if self.run_id and descriptor.run_id != self.run_id:
            self._begin_run(descriptor.run_id)
        self.run_id = descriptor.run_id
        newest = self.newest.get(feed.scheme)
        if newest is not None and descriptor.version == newest.version and descriptor.sha256 != newest.sha256:
            self.refused[feed.scheme] += 1
            _log.error(
                "%s serves version %d in %s with other bytes than before; those that came first stay served",
                self._upstream.peer,
                descriptor.version,
                feed.scheme,
            )
        if descriptor.version <= self._board.version(feed.scheme):
            return
        self._board.post(descriptor.version, [(feed.scheme, delivery.messages)])
        self.relayed[feed.scheme] += 1
        self.newest[feed.scheme] = descriptor
        self.lag_seconds[feed.scheme] = self._now() - descriptor.snapshot_at

    def end(self, feed: "_Feed", error: Exception) -> None:
        """A feed gives up: the upstream has no such scheme, or the feed has a fault. On the event loop."""
        if self._feeds.get(feed.scheme) is feed:
            self._stop((feed.scheme,))
        if isinstance(error, ActorQError):
            self._board.refuse(feed.scheme, error)
        elif not self.failed.done():
            self.failed.set_exception(error)

    def _begin_run(self, run_id: str) -> None:
        """Forget the old run: versions of different runs cannot be compared, and its actors are gone or will be."""
        _log.warning("%s serves run %s now, after %s; watchers begin anew", self._upstream.peer, run_id, self.run_id)
        old, self._board = self._board, Board(self._leave)
        self.newest.clear()
        self.lag_seconds.clear()
        # All of them, as others may still hold policies of the old run. Watchers that come again open new ones.
        self._stop(tuple(self._feeds))
        old.close()

    def _leave(self, scheme: str) -> None:
        # Also called for the board of a run that is over.
        if scheme not in self._board.schemes:
            self._stop((scheme,))

    def _stop(self, schemes: Iterable[str]) -> None:
        for scheme in schemes:
            if feed := self._feeds.pop(scheme, None):
                feed.stop()
                self._ended = [*(ended for ended in self._ended if ended.alive), feed]

    async def _ask(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))


class _Feed:
    """One scheme's stream from the upstream, on a thread of its own, opened again for ever; begins at once.

    Only the newest policy waits for the event loop: when that is busy, versions between are skipped.
    """

    def __init__(self, relay: Relay, upstream: PolicyUpstream, scheme: str, backoff: Backoff) -> None:
        self.scheme = scheme
        self.connected = False
        self._relay = relay
        self._upstream = upstream
        self._backoff = backoff
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._stream: Deliveries | None = None
        self._delivery: PolicyDelivery | None = None
        # A daemon: nothing is lost with it, and an upstream that hangs must not hold up the end of the process.
        self._thread = threading.Thread(target=self._run, name=f"upstream {scheme}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread is still at work."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the stream; nothing is handed over from now on that the relay takes."""
        with self._lock:
            self._stopped.set()
            if self._stream is not None:
                self._stream.cancel()

    def join(self, timeout_s: float) -> None:
        """Wait for its thread."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            keep_connected(self._watch, self._stopped, self._upstream.peer, random.Random(), self._backoff)
        except Exception as error:
            if not self._stopped.is_set():
                self._call(self._relay.end, self, error)

    def _watch(self, connected: Callable[[], None]) -> None:
        stream = self._upstream.watch(self.scheme)
        with self._lock:
            self._stream = stream
            if self._stopped.is_set():
                stream.cancel()
        try:
            stream.wait()
            self.connected = True
            for delivery in stream:
                # Not before: an upstream whose policies are refused is asked less and less often.
                connected()
                self._hand_over(delivery)
        except (NotFoundError, UnavailableError):
            raise
        except ActorQError as error:
            if isinstance(error, (InvalidInputError, ExhaustedError)):
                self._call(self._count_refusal)
            # Whatever it is, the upstream may be mended or replaced, and what is held is served meanwhile.
            raise UnavailableError(f"{self._upstream.peer}: {error}; what came before stays served") from error
        finally:
            self.connected = False
        raise UnavailableError(f"{self._upstream.peer} ended the stream of {self.scheme} policies")

    def _count_refusal(self) -> None:
        self._relay.refused[self.scheme] += 1

    def _hand_over(self, delivery: PolicyDelivery) -> None:
        with self._lock:
            waits, self._delivery = self._delivery is not None, delivery
        if not waits:
            self._call(self._take)

    def _take(self) -> None:
        with self._lock:
            delivery, self._delivery = self._delivery, None
        if delivery is not None:
            self._relay.take(self, delivery)

    def _call(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        # Where the loop is closed, the process is about to end anyway.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: function(*args, **kwargs))
