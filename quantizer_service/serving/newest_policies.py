"""Holds the newest policy of each variant for the watchers. For use in one event loop.

Watchers have no queues: a slow watcher skips versions, delays no other watcher, and is at most one policy behind.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

from actorq.domain.policy import PolicyDescriptor, Variant
from actorq.errors import ActorQError
from quantizer_service.serving.policy_stream import EncodedPolicy


class NewestPolicies:
    """The newest policy of each variant. on_idle: called with a variant when its last watcher has left."""

    def __init__(self, on_idle: Callable[[Variant], None] = lambda variant: None) -> None:
        self._newest: dict[Variant, EncodedPolicy] = {}
        # The watchers of each variant, so that a new policy wakes only these.
        self._watchers: dict[Variant, dict[Watcher, None]] = {}
        self._on_idle = on_idle
        self._closed = False

    @property
    def watchers_by_variant(self) -> Mapping[Variant, int]:
        """Number of watchers by watched variant."""
        return {variant: len(watchers) for variant, watchers in sorted(self._watchers.items())}

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The watched variants."""
        return tuple(sorted(self._watchers))

    @property
    def descriptors(self) -> Mapping[Variant, PolicyDescriptor]:
        """The descriptors of the newest policies, by variant."""
        return {variant: policy.descriptor for variant, policy in self._newest.items()}

    def version(self, variant: Variant) -> int:
        """The newest version of a variant; 0 for none."""
        return self._newest[variant].descriptor.version if variant in self._newest else 0

    def get(self, variant: Variant) -> EncodedPolicy | None:
        """The newest policy of a variant; None if there is none."""
        return self._newest.get(variant)

    def put(self, policies: Iterable[EncodedPolicy]) -> None:
        """Replace the policies of lower versions of the same variants, and wake the watchers of these."""
        for policy in policies:
            variant = policy.descriptor.variant
            if policy.descriptor.version > self.version(variant):
                self._newest[variant] = policy
                self._wake(variant)

    def forget_unwatched(self, below: int) -> None:
        """Forget the unwatched policies of lower versions."""
        for variant in self._newest.keys() - self._watchers.keys():
            if self.version(variant) < below:
                del self._newest[variant]

    def watch(self, variant: Variant, after_version: int = 0) -> "Watcher":
        """Watch a variant for versions above `after_version`. Close the watcher when done."""
        watcher = Watcher(self, variant, after_version)
        self._watchers.setdefault(variant, {})[watcher] = None
        return watcher

    def refuse(self, variant: Variant, error: ActorQError) -> None:
        """Raise an error at each current watcher of a variant, after the watcher has received the newest policy."""
        for watcher in self._watchers.get(variant, {}):
            watcher._refused = error
        self._wake(variant)

    def close(self) -> None:
        """End all watchers, after they have received the newest policy."""
        self._closed = True
        for variant in self._watchers:
            self._wake(variant)

    def _wake(self, variant: Variant) -> None:
        for watcher in self._watchers.get(variant, {}):
            watcher._wake()

    def _leave(self, watcher: "Watcher") -> None:
        watchers = self._watchers[watcher._variant]
        del watchers[watcher]
        if not watchers:
            del self._watchers[watcher._variant]
            self._on_idle(watcher._variant)


class Watcher(AbstractContextManager["Watcher"]):
    """One watcher of a variant, a context manager. For use by one task."""

    def __init__(self, newest: NewestPolicies, variant: Variant, after_version: int) -> None:
        self._newest = newest
        self._variant = variant
        self._seen = after_version
        self._open = True
        self._refused: ActorQError | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def next(self) -> EncodedPolicy | None:
        """Wait for a policy newer than the last one received. None when the watcher has ended.

        Raises the error of `refuse`.
        """
        while self._open:
            if (version := self._newest.version(self._variant)) > self._seen:
                self._seen = version
                return self._newest.get(self._variant)
            if self._refused is not None:
                raise self._refused
            if self._newest._closed:
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return None

    def close(self) -> None:
        """End the watcher. May be called again."""
        if self._open:
            self._open = False
            self._wake()
            self._newest._leave(self)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def __exit__(self, *error: object) -> None:
        self.close()
