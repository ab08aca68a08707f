"""A relay: serves the policies of another quantizer to watchers of its own, from memory.

Each scheme that somebody watches here is watched once at the upstream. The newest policy of each is kept as the bytes
that brought it. Relays of relays make a tree.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from actorq.config.schemes import is_scheme, scheme_names
from actorq.domain.policy import PolicyDescriptor, RetainedPolicy
from actorq.errors import ActorQError, ConflictError, NotFoundError, UnavailableError
from actorq.transport.reconnect import Backoff
from quantizer_service.serving.feed import Feed
from quantizer_service.serving.newest_policies import NewestPolicies, Subscription
from quantizer_service.serving.policy_stream import EncodedPolicy
from quantizer_service.serving.upstream import Upstream

_log = logging.getLogger(__name__)

_PATIENCE_S = 5.0


class Relay:
    """Serves what `upstream` serves; made and used in one event loop.

    now: unix seconds; ages policies.

    policies: the newest of this run that came, and their watchers.
    relayed, refused: policies that were handed on, and streams that ended because what came was refused, by scheme.
    lag_seconds: by scheme, from the learner's snapshot to the newest policy being here, by both clocks.
    run_id: of the policies that are served; empty before the first.
    failed: done with the error when a feed has failed in a way that nobody foresaw.
    """

    def __init__(
        self, upstream: Upstream, backoff: Backoff | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._upstream = upstream
        self._backoff = backoff or Backoff()
        self._now = now
        self.policies = NewestPolicies(self._leave)
        self._feeds: dict[str, Feed] = {}
        self._ended: list[Feed] = []
        self.draining = asyncio.Event()
        self.failed: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self.run_id = ""
        self.relayed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.lag_seconds: dict[str, float] = {}

    @property
    def connected(self) -> Mapping[str, bool]:
        """For each scheme that is watched here, whether its stream from the upstream is open."""
        return {scheme: feed.connected for scheme, feed in self._feeds.items()}

    def intake(self) -> NoReturn:
        """Raise ConflictError: nothing can be published to a relay."""
        raise ConflictError(f"this is a relay: nothing can be published to it; publish to its {self._upstream.peer}")

    async def subscribe(self, scheme: str, after_version: int) -> Subscription:
        """Watch a scheme, also while the upstream is away; raises NotFoundError when there is no such scheme."""
        if not is_scheme(scheme):
            raise NotFoundError(f"scheme: expected one of {', '.join(scheme_names())}, got {scheme!r}")
        if self.draining.is_set():
            raise UnavailableError("the relay is draining; connect again later")
        subscription = self.policies.subscribe(scheme, after_version)
        if scheme not in self._feeds:
            calls = self._take, self._count_refusal, self._end
            self._feeds[scheme] = Feed(self._upstream, scheme, self._backoff, *calls)
        return subscription

    async def get(self, scheme: str, version: int = 0) -> EncodedPolicy:
        """A retained policy: the newest from memory while its scheme is watched here, others from the upstream.

        While the upstream is away, what is in memory counts as the newest.
        """
        newest = self.policies.get(scheme)
        live = scheme in self._feeds and self._feeds[scheme].connected
        if newest is not None and (version == newest.descriptor.version or (not version and live)):
            return newest
        try:
            found = await self._upstream.get(scheme, version)
        except UnavailableError:
            if version or newest is None:
                raise
            return newest
        newest = self.policies.get(scheme)
        if version or newest is None or found.descriptor.run_id != self.run_id:
            return found
        return max(found, newest, key=lambda each: each.descriptor.version)

    async def describe(self, scheme: str, version: int = 0) -> PolicyDescriptor:
        """Asked of the upstream."""
        return await self._upstream.describe(scheme, version)

    async def list_versions(self, page_size: int, page_token: str) -> tuple[tuple[RetainedPolicy, ...], str]:
        """Asked of the upstream."""
        return await self._upstream.list_versions(page_size, page_token)

    async def lease(self, version: int, seconds: float) -> float:
        """Asked of the upstream."""
        return await self._upstream.lease(version, seconds)

    def begin_drain(self) -> None:
        """Take no new work: watchers' streams end."""
        self.draining.set()
        self.policies.close()

    async def settle(self) -> None:
        """Hang up at the upstream, and wait for the threads that talked to it."""
        self._stop(tuple(self._feeds))
        for feed in self._ended:
            await asyncio.to_thread(feed.join, _PATIENCE_S)
        self._upstream.close()

    def _take(self, policy: EncodedPolicy) -> None:
        """Serve a policy, unless one as new of the same run is served."""
        descriptor = policy.descriptor
        scheme = descriptor.scheme
        if self.run_id and descriptor.run_id != self.run_id:
            self._begin_run(descriptor.run_id)
        self.run_id = descriptor.run_id
        newest = self.policies.get(scheme)
        version = self.policies.version(scheme)
        if newest is not None and descriptor.version == version and descriptor.sha256 != newest.descriptor.sha256:
            self.refused[scheme] += 1
            _log.error(
                "%s serves version %d in %s with other bytes than before; those that came first stay served",
                self._upstream.peer,
                descriptor.version,
                scheme,
            )
        if descriptor.version <= version:
            return
        self.policies.put([policy])
        self.relayed[scheme] += 1
        self.lag_seconds[scheme] = self._now() - descriptor.snapshot_at

    def _count_refusal(self, scheme: str) -> None:
        self.refused[scheme] += 1

    def _end(self, scheme: str, error: Exception) -> None:
        self._stop((scheme,))
        if isinstance(error, ActorQError):
            self.policies.refuse(scheme, error)
        elif not self.failed.done():
            self.failed.set_exception(error)

    def _begin_run(self, run_id: str) -> None:
        """Forget the old run: versions of different runs cannot be compared, and its actors are gone or will be."""
        _log.warning("%s serves run %s now, after %s; watchers begin anew", self._upstream.peer, run_id, self.run_id)
        old, self.policies = self.policies, NewestPolicies(self._leave)
        self.lag_seconds.clear()
        # All of them, as others may still hold policies of the old run. Watchers that come again open new ones.
        self._stop(tuple(self._feeds))
        old.close()

    def _leave(self, scheme: str) -> None:
        # Also called for the watchers of a run that is over.
        if scheme not in self.policies.schemes:
            self._stop((scheme,))

    def _stop(self, schemes: Iterable[str]) -> None:
        for scheme in schemes:
            if feed := self._feeds.pop(scheme, None):
                feed.stop()
                self._ended = [*(ended for ended in self._ended if ended.alive), feed]
