"""Holds the newest policy of each scheme for the watchers.

Watchers have no queues: a slow watcher skips versions, delays no other watcher, and is at most one policy behind. For
use in one event loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

from actorq.domain.policy import PolicyDescriptor
from actorq.errors import ActorQError
from quantizer_service.serving.policy_stream import EncodedPolicy


class NewestPolicies:
    """The newest policy of each scheme, shared by all watchers.

    on_idle: called with a scheme when its last watcher has left.
    """

    def __init__(self, on_idle: Callable[[str], None] = lambda scheme: None) -> None:
        self._newest: dict[str, EncodedPolicy] = {}
        # By scheme, so that a new policy wakes only the watchers of its scheme.
        self._watchers: dict[str, dict[Subscription, None]] = {}
        self._on_idle = on_idle
        self._closed = False

    @property
    def subscribers(self) -> int:
        """Number of watchers."""
        return sum(map(len, self._watchers.values()))

    @property
    def subscribers_by_scheme(self) -> Mapping[str, int]:
        """Number of watchers by watched scheme."""
        return {scheme: len(watchers) for scheme, watchers in sorted(self._watchers.items())}

    @property
    def schemes(self) -> tuple[str, ...]:
        """The watched schemes."""
        return tuple(sorted(self._watchers))

    @property
    def descriptors(self) -> Mapping[str, PolicyDescriptor]:
        """The descriptors of the newest policies, by scheme."""
        return {scheme: policy.descriptor for scheme, policy in self._newest.items()}

    def version(self, scheme: str) -> int:
        """The newest version in a scheme; 0 for none."""
        return self._newest[scheme].descriptor.version if scheme in self._newest else 0

    def get(self, scheme: str) -> EncodedPolicy | None:
        """The newest policy in a scheme; None if there is none."""
        return self._newest.get(scheme)

    def put(self, policies: Iterable[EncodedPolicy]) -> None:
        """Replace the policies of lower versions in the same schemes, and wake the watchers of these schemes."""
        for policy in policies:
            scheme = policy.descriptor.scheme
            if policy.descriptor.version > self.version(scheme):
                self._newest[scheme] = policy
                self._wake(scheme)

    def forget_unwatched(self, below: int) -> None:
        """Forget the policies of lower versions that nobody watches."""
        for scheme in self._newest.keys() - self._watchers.keys():
            if self.version(scheme) < below:
                del self._newest[scheme]

    def subscribe(self, scheme: str, after_version: int = 0) -> "Subscription":
        """Watch a scheme for versions above `after_version`. Close the subscription when done."""
        subscription = Subscription(self, scheme, after_version)
        self._watchers.setdefault(scheme, {})[subscription] = None
        return subscription

    def refuse(self, scheme: str, error: ActorQError) -> None:
        """Raise an error at each current watcher of a scheme, after it has seen the newest policy."""
        for subscription in self._watchers.get(scheme, {}):
            subscription._refused = error
        self._wake(scheme)

    def close(self) -> None:
        """End all subscriptions, after they have seen the newest policy."""
        self._closed = True
        for scheme in self._watchers:
            self._wake(scheme)

    def _wake(self, scheme: str) -> None:
        for subscription in self._watchers.get(scheme, {}):
            subscription._wake()

    def _leave(self, subscription: "Subscription") -> None:
        watchers = self._watchers[subscription._scheme]
        del watchers[subscription]
        if not watchers:
            del self._watchers[subscription._scheme]
            self._on_idle(subscription._scheme)


class Subscription(AbstractContextManager["Subscription"]):
    """One watcher's subscription to a scheme, a context manager. For use by one task."""

    def __init__(self, newest: NewestPolicies, scheme: str, after_version: int) -> None:
        self._newest = newest
        self._scheme = scheme
        self._seen = after_version
        self._open = True
        self._refused: ActorQError | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def next(self) -> EncodedPolicy | None:
        """Wait for a newer policy than the last seen one, and return it. None when the subscription has ended.

        Raises the error of `refuse`.
        """
        while self._open:
            if (version := self._newest.version(self._scheme)) > self._seen:
                self._seen = version
                return self._newest.get(self._scheme)
            if self._refused is not None:
                raise self._refused
            if self._newest._closed:
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return None

    def close(self) -> None:
        """End the subscription. May be called again."""
        if self._open:
            self._open = False
            self._wake()
            self._newest._leave(self)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def __exit__(self, *error: object) -> None:
        self.close()
