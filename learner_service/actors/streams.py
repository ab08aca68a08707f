"""The open streams of actors and evaluators: passes their segments to the intake, and reports the stored segments."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from actorq.domain.trajectory import Role, Segment
from actorq.errors import ActorQError, UnavailableError
from learner_service.actors.credits import ActorStream, Credits
from learner_service.actors.intake import Intake
from learner_service.actors.members import Member
from learner_service.actors.storage_thread import StorageThread
from learner_service.replay import RateLimiter


class Streams:
    """All open streams, on the event loop.

    Actors have no credit before `admit`. refused_segments: number since `admit`.
    """

    def __init__(self, storage: StorageThread) -> None:
        self.refused_segments = 0
        self._storage = storage
        self._open: set[ActorStream] = set()
        self._credits: Credits | None = None
        self._intake: Intake | None = None
        self._on_stored: Callable[[], None] = lambda: None
        self._left = asyncio.Event()
        self._share = 0

    def admit(self, intake: Intake, limiter: RateLimiter, transitions: int, on_stored: Callable[[], None]) -> None:
        """Let actors send. transitions: number per segment. on_stored: called after each stored segment."""
        self._credits = Credits(limiter, transitions, asyncio.get_running_loop())
        self._intake, self._on_stored, self.refused_segments = intake, on_stored, 0

    def open(self, member: Member, acknowledged: int, stop: bool) -> ActorStream:
        """Open a member's stream, and end its earlier stream if there is one. stop: whether the run is over."""
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

    def receive(
        self, stream: ActorStream, sequence: int, size: Callable[[], int], decode: Callable[[], Segment]
    ) -> None:
        """Store a segment, then acknowledge it. The segments of a stream are stored in order.

        Raises ConflictError without credit, and CorruptedError when an earlier segment is missing. An invalid segment
        ends the stream later.
        size: returns the bytes of the message. decode: returns the segment; called on the storage thread.
        """
        intake, credits_ = self._intake, self._credits
        assert intake is not None
        assert credits_ is not None
        if sequence <= stream.received:
            intake.record_duplicate(stream.member, sequence)
            stream.changed.set()
            return
        submit = partial(
            self._storage.submit,
            partial(intake.store, stream, decode, credits_.segment_transitions),
            partial(self._stored, credits_, stream, sequence),
            partial(self._refuse, stream),
        )
        try:
            if credits_.spend(stream, sequence, size, submit):
                submit()
        except ActorQError:
            self.refused_segments += 1
            raise

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
        """Grant no more credit."""
        if self._credits is not None:
            self._credits.stop()

    def forget(self, reason: str) -> None:
        """Undo `admit`, and end all streams so that the actors reconnect."""
        for stream in self._open:
            if self._credits is not None:
                self._credits.close(stream)
        self._credits = self._intake = None
        self.end_all(reason)

    def tell_over(self) -> None:
        """Inform all actors and evaluators that the run is over."""
        for stream in self._open:
            stream.stop = True
            stream.changed.set()

    def ask_for_evaluation(self, version: int) -> None:
        """Ask all evaluators to evaluate a version."""
        for stream in self._of("evaluator"):
            stream.evaluate_version = version
            stream.changed.set()

    def tell_share(self, share: int) -> None:
        """Send all actors their share of a rollout (`Shares`), if it has changed."""
        if share != self._share:
            self._share = share
            for stream in self._of("actor"):
                stream.share = share
                stream.changed.set()

    def tell_durable(self, role: Role, durable: Mapping[tuple[bytes, int], int]) -> None:
        """Send a role's members the sequence up to which their data survives a power cut, by `source_key`."""
        for stream in self._of(role):
            stream.record_durable(durable.get(stream.member.source_key, 0))

    async def until_closed(self, timeout_s: float) -> None:
        """Wait until no stream is open, or for `timeout_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._open:
                    self._left.clear()
                    await self._left.wait()

    def _stored(self, credits_: Credits, stream: ActorStream, sequence: int, stored: bool) -> None:
        if stored:
            credits_.stored(stream, sequence)
            self._on_stored()

    def _refuse(self, stream: ActorStream, error: BaseException) -> None:
        self.refused_segments += isinstance(error, ActorQError)
        stream.fail(error)

    def _of(self, role: Role) -> Iterator[ActorStream]:
        return (stream for stream in self._open if stream.member.role == role)
