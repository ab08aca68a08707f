"""The open streams of actors and evaluators, and their credit."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from actorq.domain.trajectory import Role, Segment
from actorq.errors import UnavailableError
from learner_service.actors.credits import ActorStream, Credits
from learner_service.actors.intake import Intake
from learner_service.actors.members import Member
from learner_service.actors.storage_thread import StorageThread
from learner_service.actors.uploads import Uploads
from learner_service.replay import RateLimiter


class Streams:
    """All open streams. Runs on the event loop. Actors have no credit before `admit`."""

    def __init__(self, storage: StorageThread) -> None:
        self._storage = storage
        self._open: set[ActorStream] = set()
        self._credits: Credits | None = None
        self._uploads: Uploads | None = None
        self._left = asyncio.Event()
        self._share = 0

    @property
    def refused_segments(self) -> int:
        """Number of segments refused since `admit`."""
        return self._uploads.refused if self._uploads else 0

    def admit(self, intake: Intake, limiter: RateLimiter, transitions: int, on_stored: Callable[[], None]) -> None:
        """Let actors send from now on.

        transitions: per segment. on_stored: called after each stored segment.
        """
        self._credits = Credits(limiter, transitions, asyncio.get_running_loop())
        self._uploads = Uploads(intake, self._credits, self._storage, on_stored)

    def open(self, member: Member, acknowledged: int, stop: bool) -> ActorStream:
        """Open a member's stream, and end the member's earlier stream if there is one.

        stop: the run is over.
        """
        self.end(member, UnavailableError(f"actor {member.name!r} has opened another stream"))
        stream = ActorStream(member, acknowledged)
        stream.stop, stream.share = stop, self._share
        self._open.add(stream)
        if member.role == "actor" and self._credits is not None:
            self._credits.open(stream)
        return stream

    def close(self, stream: ActorStream) -> None:
        """Forget a stream that has ended."""
        self._open.discard(stream)
        self._left.set()
        if stream.member.role == "actor" and self._credits is not None:
            self._credits.close(stream)

    def has(self, member: Member) -> bool:
        """Whether a member has an open stream."""
        return any(stream.member is member for stream in self._open)

    def insert(
        self, stream: ActorStream, sequence: int, size: Callable[[], int], decode: Callable[[], Segment]
    ) -> None:
        """Store a segment, and acknowledge it once it is stored; see `Uploads.insert`."""
        assert self._uploads is not None
        self._uploads.insert(stream, sequence, size, decode)

    def end(self, member: Member, error: BaseException) -> None:
        """End the streams of a member."""
        for stream in self._open:
            if stream.member is member:
                stream.fail(error)

    def end_all(self, reason: str) -> None:
        """End all streams, so that the actors reconnect."""
        for stream in self._open:
            stream.fail(UnavailableError(reason))

    def stop_credit(self) -> None:
        """Give no more credit."""
        if self._credits is not None:
            self._credits.stop()

    def forget(self, reason: str) -> None:
        """Undo `admit`, and end all streams so that the actors reconnect."""
        for stream in self._open:
            if self._credits is not None:
                self._credits.close(stream)
        self._credits = self._uploads = None
        self.end_all(reason)

    def tell_over(self) -> None:
        """Tell all actors and evaluators that the run is over."""
        for stream in self._open:
            stream.stop = True
            stream.changed.set()

    def ask_for_evaluation(self, version: int) -> None:
        """Ask all evaluators to evaluate a version."""
        for stream in self._of("evaluator"):
            stream.evaluate_version = version
            stream.changed.set()

    def tell_share(self, share: int) -> None:
        """Tell all actors their share of a rollout (`Shares`), if it has changed."""
        if share != self._share:
            self._share = share
            for stream in self._of("actor"):
                stream.share = share
                stream.changed.set()

    def tell_durable(self, role: Role, durable: Callable[[Member], int]) -> None:
        """Tell the members of a role the sequence up to which their data survives a power cut.

        durable: returns that sequence for a member.
        """
        for stream in self._of(role):
            stream.note_durable(durable(stream.member))

    async def until_closed(self, timeout_s: float) -> None:
        """Wait until no stream is open, or for `timeout_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._open:
                    self._left.clear()
                    await self._left.wait()

    def _of(self, role: Role) -> Iterator[ActorStream]:
        return (stream for stream in self._open if stream.member.role == role)
