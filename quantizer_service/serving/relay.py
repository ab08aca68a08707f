"""A relay: serves the policies of a quantizer or of another relay to its own watchers, from memory.

A relay has one upstream stream for each watched variant, and keeps the newest policy of each as the received bytes.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from actorq.config.schemes import is_scheme, scheme_names
from actorq.domain.policy import Variant
from actorq.errors import ActorQError, ConflictError, NotFoundError, UnavailableError
from actorq.transport.reconnect import Backoff
from quantizer_service.serving.feed import Feed
from quantizer_service.serving.newest_policies import NewestPolicies, Watcher
from quantizer_service.serving.policy_stream import EncodedPolicy
from quantizer_service.serving.upstream import Upstream

_log = logging.getLogger(__name__)

_PATIENCE_S = 5.0


class Relay:
    """Serves the policies of `upstream`. Must be created and used in one event loop.

    now: clock in Unix seconds, for the lag.

    policies: the newest policies of the current run, and their watchers.
    lag_seconds: by variant, time from the learner's snapshot to the newest policy's arrival, from the clocks of both
        machines.
    run_id: run of the served policies; empty before the first.
    failed: holds a feed's unexpected error.
    describe, list_versions, hold: the upstream answers these calls.
    """

    def __init__(
        self, upstream: Upstream, backoff: Backoff | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._upstream = upstream
        self.describe, self.list_versions, self.hold = upstream.describe, upstream.list_versions, upstream.hold
        self._backoff = backoff
        self._now = now
        self.policies = NewestPolicies(self._leave)
        self._feeds: dict[Variant, Feed] = {}
        self._ended: list[Feed] = []
        self.draining = asyncio.Event()
        self.failed: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self.run_id = ""
        self.relayed: Counter[Variant] = Counter()
        self.refused: Counter[Variant] = Counter()
        self.lag_seconds: dict[Variant, float] = {}

    @property
    def connected(self) -> Mapping[Variant, bool]:
        """Whether the stream from the upstream is open, by watched variant."""
        return {variant: feed.connected for variant, feed in self._feeds.items()}

    def intake(self) -> NoReturn:
        """Raise ConflictError, because a relay accepts no publications."""
        raise ConflictError(f"a relay accepts no publications; publish to its {self._upstream.peer}")

    async def watch(self, variant: Variant, after_version: int) -> Watcher:
        """Watch a variant, even while the upstream is down. Raises NotFoundError for an unknown scheme."""
        if not is_scheme(variant.scheme):
            raise NotFoundError(f"scheme: expected one of {', '.join(scheme_names())}, got {variant.scheme!r}")
        if self.draining.is_set():
            raise UnavailableError("the relay is draining; connect again later")
        watcher = self.policies.watch(variant, after_version)
        if variant not in self._feeds:
            calls = self._serve, lambda: self.refused.update([variant]), self._end
            self._feeds[variant] = Feed(self._upstream, variant, self._backoff, *calls)
        return watcher

    async def get(self, variant: Variant, version: int = 0) -> EncodedPolicy:
        """A retained policy. The newest of a watched variant comes from memory, others come from the upstream.

        While the upstream is down, the policy in memory counts as the newest.
        """
        newest = self.policies.get(variant)
        live = variant in self._feeds and self._feeds[variant].connected
        if newest is not None and (version == newest.descriptor.version or (not version and live)):
            return newest
        try:
            found = await self._upstream.get(variant, version)
        except UnavailableError:
            if version or newest is None:
                raise
            return newest
        newest = self.policies.get(variant)
        if version or newest is None or found.descriptor.run_id != self.run_id:
            return found
        return max(found, newest, key=lambda each: each.descriptor.version)

    def begin_drain(self) -> None:
        """Accept no new watchers, and end the watchers' streams."""
        self.draining.set()
        self.policies.close()

    async def settle(self) -> None:
        """Close the connection to the upstream, and wait for the threads that used it."""
        self._stop(tuple(self._feeds))
        for feed in self._ended:
            await asyncio.to_thread(feed.thread.join, _PATIENCE_S)
        self._upstream.close()

    def _serve(self, policy: EncodedPolicy) -> None:
        """Serve a policy, unless the relay has an equal or newer version of the same run."""
        descriptor = policy.descriptor
        variant = descriptor.variant
        if self.run_id and descriptor.run_id != self.run_id:
            self._begin_run(descriptor.run_id)
        self.run_id = descriptor.run_id
        newest = self.policies.get(variant)
        version = self.policies.version(variant)
        if newest is not None and descriptor.version == version and descriptor.sha256 != newest.descriptor.sha256:
            self.refused[variant] += 1
            text = "%s serves version %d in %s with other bytes than before; the first bytes are still served"
            _log.error(text, self._upstream.peer, version, variant)
        if descriptor.version <= version:
            return
        self.policies.put([policy])
        self.relayed[variant] += 1
        self.lag_seconds[variant] = self._now() - descriptor.snapshot_at

    def _end(self, variant: Variant, error: Exception) -> None:
        self._stop((variant,))
        if isinstance(error, ActorQError):
            self.policies.refuse(variant, error)
        elif not self.failed.done():
            self.failed.set_exception(error)

    def _begin_run(self, run_id: str) -> None:
        """Forget the old run: its actors end, and its version numbers mean nothing in the new run."""
        _log.warning("%s now serves run %s, not %s; watchers must reconnect", self._upstream.peer, run_id, self.run_id)
        old, self.policies = self.policies, NewestPolicies(self._leave)
        self.lag_seconds.clear()
        # Stops all feeds, because they may still hold policies of the old run. Returning watchers open new feeds.
        self._stop(tuple(self._feeds))
        old.close()

    def _leave(self, variant: Variant) -> None:
        # Watchers of an old run call this method too.
        if variant not in self.policies.variants:
            self._stop((variant,))

    def _stop(self, variants: Iterable[Variant]) -> None:
        for variant in variants:
            if feed := self._feeds.pop(variant, None):
                feed.stop()
                self._ended = [*(ended for ended in self._ended if ended.thread.is_alive()), feed]
