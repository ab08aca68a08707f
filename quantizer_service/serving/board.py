"""The board on which the newest of each scheme hangs: watchers look at it at their own pace and miss what was between.

That is all there is to conflation: nothing is queued for anyone, so a slow watcher neither delays the others nor
falls behind by more than what it is reading now. For one event loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import Generic, TypeVar

from actorq.errors import ActorQError

T = TypeVar("T")


class Board(Generic[T]):
    """The newest item of each scheme, with its version; items are shared by all watchers.

    on_idle: called with a scheme when its last watcher leaves.
    """

    def __init__(self, on_idle: Callable[[str], None] = lambda scheme: None) -> None:
        self._newest: dict[str, tuple[int, T]] = {}
        # Who watches what: a post wakes the watchers of its schemes, and one who leaves wakes nobody else.
        self._watchers: dict[str, dict[Subscription[T], None]] = {}
        self._on_idle = on_idle
        self._closed = False

    @property
    def subscribers(self) -> int:
        """How many watch."""
        return sum(map(len, self._watchers.values()))

    @property
    def subscribers_by_scheme(self) -> Mapping[str, int]:
        """How many watch each scheme, without those that nobody watches."""
        return MappingProxyType({scheme: len(watchers) for scheme, watchers in sorted(self._watchers.items())})

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes that somebody watches."""
        return tuple(sorted(self._watchers))

    def version(self, scheme: str) -> int:
        """The version that hangs there; 0 for none."""
        return self._newest[scheme][0] if scheme in self._newest else 0

    def newest(self, scheme: str) -> T | None:
        """What hangs there."""
        return self._newest[scheme][1] if scheme in self._newest else None

    def post(self, version: int, items: Iterable[tuple[str, T]]) -> None:
        """Hang up an item for each scheme, unless one as new hangs there, and wake the watchers of these schemes."""
        for scheme, item in items:
            if version > self.version(scheme):
                self._newest[scheme] = (version, item)
                self._wake(scheme)

    def subscribe(self, scheme: str, after_version: int = 0) -> "Subscription[T]":
        """Watch a scheme from above a version; leave the subscription when done."""
        subscription = Subscription(self, scheme, after_version)
        self._watchers.setdefault(scheme, {})[subscription] = None
        return subscription

    def refuse(self, scheme: str, error: ActorQError) -> None:
        """Raise an error at everyone who watches a scheme now, once they have seen what hangs there."""
        for subscription in self._watchers.get(scheme, {}):
            subscription._refused = error
        self._wake(scheme)

    def close(self) -> None:
        """End all subscriptions, once they have seen what hangs there now."""
        self._closed = True
        for scheme in self._watchers:
            self._wake(scheme)

    def _wake(self, scheme: str) -> None:
        for subscription in self._watchers.get(scheme, {}):
            subscription._wake()

    def _leave(self, subscription: "Subscription[T]") -> None:
        watchers = self._watchers[subscription._scheme]
        del watchers[subscription]
        if not watchers:
            del self._watchers[subscription._scheme]
            self._on_idle(subscription._scheme)


class Subscription(Generic[T]):
    """One watcher's view of the board, for one task; a context manager."""

    def __init__(self, board: Board[T], scheme: str, after_version: int) -> None:
        self._board = board
        self._scheme = scheme
        self._seen = after_version
        self._open = True
        self._refused: ActorQError | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def next(self) -> T | None:
        """The newest item above what was seen, now or when it comes; None when the board or this is closed.

        Raises the error with which the board has refused the scheme.
        """
        while self._open:
            version, item = self._board._newest.get(self._scheme, (0, None))
            if version > self._seen:
                self._seen = version
                return item
            if self._refused is not None:
                raise self._refused
            if self._board._closed:
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return None

    def close(self) -> None:
        """Leave; may be called again."""
        if self._open:
            self._open = False
            self._wake()
            self._board._leave(self)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def __enter__(self) -> "Subscription[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
