"""Lets actors send: the rate limiter's admission, leased to the open streams in turn."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from actorq.errors import CorruptedError, UnavailableError
from learner_service.actors.members import Member
from learner_service.replay import RateLimiter

# Segments that a stream may have in flight: hides the round trip, and keeps what waits at the learner small.
_WINDOW = 2
# For which a credit keeps its reservation while others wait: longer than an actor with data takes to send a segment.
_LEASE_S = 2.0
# In which every stream that waits gets its turn, even if nobody uses a credit: many streams shorten the leases.
_TURN_S = 5.0
# Of all segments that wait here for a reservation.
_MOST_LATE_BYTES = 64 * 1024 * 1024


class Loop(Protocol):
    """What credits need of an event loop."""

    def time(self) -> float:
        """Seconds that never go back."""

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `callback` at a time of `time`."""

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> object:
        """Call `callback` on the loop, from any thread."""

    def is_closed(self) -> bool:
        """Whether the loop has ended."""


@dataclass(eq=False, slots=True)
class _Lease:
    """A reservation for the next segment of a stream."""

    stream: "ActorStream"
    granted_at: float


@dataclass(eq=False, slots=True)
class _Late:
    """A segment that waits for a reservation."""

    stream: "ActorStream"
    size: int
    insert: Callable[[], None]


class ActorStream:
    """What the learner tells one actor. Lives on the event loop; `changed` is set when there is something to say.

    acknowledged <= received <= credit: the highest sequences that are stored, that have come, and that may be sent.
    storing: how many segments of the stream the storage thread has.
    ended: the actor will send nothing more.
    fault: an error that ends the stream.
    refused: a segment was refused, so that none after it may be stored; for the thread that stores.
    """

    def __init__(self, member: Member, acknowledged: int) -> None:
        self.member = member
        self.acknowledged = acknowledged
        self.storing = 0
        self.received = acknowledged
        self.durable = 0
        self.credit = acknowledged
        self.leases: deque[_Lease] = deque()
        self.wants_credit = False
        self.closed = False
        self.ended = False
        self.refused = False
        self.stop = False
        self.fault: BaseException | None = None
        self.evaluate_version = 0
        self.changed = asyncio.Event()
        self.changed.set()

    def note_durable(self, sequence: int) -> None:
        """Everything up to `sequence` survives a power cut."""
        if sequence > self.durable:
            self.durable = sequence
            self.tell()

    def note_sent(self, sequence: int) -> None:
        """The actor has sent everything up to `sequence`. Raises CorruptedError when a part of it has not come.

        The actor gets an answer, in case it has missed the last one.
        """
        self.require_all_before(sequence + 1)
        self.changed.set()

    def require_all_before(self, sequence: int) -> None:
        """Raise CorruptedError when something that the actor has sent before `sequence` has not come."""
        if sequence > self.received + 1:
            raise CorruptedError(
                f"stream: sequences {self.received + 1} to {sequence - 1} were lost on the way; send them again"
            )

    def acknowledge(self, sequence: int) -> None:
        """Everything up to `sequence` is stored."""
        self.acknowledged = max(self.acknowledged, sequence)
        self.received = max(self.received, sequence)
        self.credit = max(self.credit, sequence)
        self.tell()

    def tell(self) -> None:
        """Answer the actor; while a further segment is being stored, its acknowledgement is the answer to both.

        A response costs both ends as much as a small segment. The window bounds how many segments share one.
        """
        if not self.storing:
            self.changed.set()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error; the first one counts."""
        self.fault = self.fault or error
        self.changed.set()

    def end(self) -> None:
        """The actor will send nothing more."""
        self.ended = True
        self.changed.set()

    @property
    def over(self) -> bool:
        """Whether there will be nothing more to say; once the run is over, what was not stored never will be."""
        return self.fault is not None or (self.ended and (self.stop or self.acknowledged >= self.received))


class Credits:
    """Grants one segment at a time, in turn, to streams that want one, as long as the limiter admits inserts.

    A credit is the permission to send a segment, and holds for as long as its stream is open. It comes with a lease: a
    reservation at the limiter for `segment_transitions`. When other streams wait, a lease ends after two seconds, or
    sooner where many streams share few leases. A segment that comes without a lease waits here, ahead of all new
    credits: it gets the next reservation, or takes the oldest lease for which no segment has come. So reservations go
    to segments that are here. A stream that lets a lease end gets no other one before it has sent its segment, so that
    a silent stream costs the others one lease in all.

    Lives on the event loop; the limiter's callbacks come from the trainer's thread and are passed on to the loop.

    may_insert: whether there is room for data at all; `look_again` tells that its answer may have changed.
    """

    def __init__(
        self,
        limiter: RateLimiter,
        segment_transitions: int,
        loop: Loop,
        may_insert: Callable[[], bool] = lambda: True,
    ) -> None:
        self.segment_transitions = segment_transitions
        self._limiter = limiter
        self._may_insert = may_insert
        self._open: set[ActorStream] = set()
        self._waiting: deque[ActorStream] = deque()
        self._leases: OrderedDict[_Lease, None] = OrderedDict()
        self._late: deque[_Late] = deque()
        self._late_bytes = 0
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._pump_is_due = False
        self._stopped = False
        limiter.on_inserts_possible(self._pump_soon)

    def open(self, stream: ActorStream) -> None:
        """A stream wants credit."""
        self._open.add(stream)
        self._queue(stream)
        self._pump()

    def take(self, stream: ActorStream, sequence: int, size: Callable[[], int], insert: Callable[[], None]) -> bool:
        """A segment came. Calls `insert` once it has a reservation, now or later; False when it has no credit.

        From then on the reservation is the intake's, which uses it up whether it stores or refuses the segment.
        size: tells the bytes of the segment. Raises UnavailableError when too many wait, and CorruptedError when the
        segment before it has not come.
        """
        if sequence > stream.credit:
            return False
        stream.require_all_before(sequence)
        if stream.leases:
            stream.received = sequence
            del self._leases[stream.leases.popleft()]
            stream.storing += 1
            insert()
            return True
        late = _Late(stream, size(), insert)
        if self._late_bytes + late.size > _MOST_LATE_BYTES:
            raise UnavailableError(f"segments of {self._late_bytes} bytes wait for the rate limiter: send again later")
        stream.received = sequence
        self._late.append(late)
        self._late_bytes += late.size
        self._pump()
        return True

    def stored(self, stream: ActorStream, sequence: int) -> None:
        """The segment is stored, and its reservation used up: acknowledge it and grant further ones."""
        stream.storing -= 1
        stream.acknowledge(sequence)
        if not stream.closed:
            self._queue(stream)
        self._pump()

    def look_again(self) -> None:
        """Whether inserts are possible may have changed."""
        self._pump()

    def stop(self) -> None:
        """The run is ending: grant nothing more."""
        self._stopped = True
        self._late.clear()
        self._late_bytes = 0

    def close(self, stream: ActorStream) -> None:
        """A stream ended: what it did not use of its grants is free for others."""
        stream.closed = True
        self._open.discard(stream)
        if stream.wants_credit:
            stream.wants_credit = False
            self._waiting.remove(stream)
        if self._late:
            self._late = deque(late for late in self._late if late.stream is not stream)
            self._late_bytes = sum(late.size for late in self._late)
        while stream.leases:
            self._end(stream.leases[0])
            self._limiter.release(self.segment_transitions)
        stream.credit = stream.acknowledged

    @property
    def lease_s(self) -> float:
        """Seconds after which a lease ends when others wait: so short that the turn comes round in time."""
        return min(_LEASE_S, _TURN_S * max(1, len(self._leases)) / max(1, len(self._open)))

    def _queue(self, stream: ActorStream) -> None:
        # The stream knows whether it is queued: looking for it would cost as much as there are streams, per segment.
        if not stream.wants_credit:
            stream.wants_credit = True
            self._waiting.append(stream)

    def _pump_soon(self) -> None:
        # On any thread. Whoever begins to wait looks by itself, after it has joined the queue.
        if (self._waiting or self._late) and not self._pump_is_due and not self._loop.is_closed():
            self._pump_is_due = True
            self._loop.call_soon_threadsafe(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        while not self._stopped and self._may_insert() and (self._admit_late() or self._grant()):
            pass
        if self._waiting and not self._stopped:
            self._end_leases_later()

    def _admit_late(self) -> bool:
        """Insert the segment that has waited longest; False when there is none, or no reservation for it."""
        if not self._late:
            return False
        if not self._limiter.try_reserve(self.segment_transitions):
            if not self._leases:
                return False
            self._end(next(iter(self._leases)))
        late = self._late.popleft()
        self._late_bytes -= late.size
        late.stream.storing += 1
        late.insert()
        return True

    def _grant(self) -> bool:
        """Give a credit to the stream whose turn it is; False when nobody wants one, or nothing is admitted."""
        while self._waiting and not _is_eligible(self._waiting[0]):
            self._waiting.popleft().wants_credit = False
        if not self._waiting or self._late or not self._limiter.try_reserve(self.segment_transitions):
            return False
        stream = self._waiting[0]
        lease = _Lease(stream, self._loop.time())
        self._leases[lease] = None
        stream.leases.append(lease)
        stream.credit += 1
        stream.tell()
        self._waiting.rotate(-1)
        return True

    def _end_leases_later(self) -> None:
        """Nobody minds a lease while nobody waits."""
        if self._timer is None and self._leases:
            due = next(iter(self._leases)).granted_at + self.lease_s
            self._timer = self._loop.call_at(max(due, self._loop.time()), self._end_leases)

    def _end_leases(self) -> None:
        self._timer = None
        now, lease_s = self._loop.time(), self.lease_s
        ended = 0
        while self._waiting and self._leases and (oldest := next(iter(self._leases))).granted_at + lease_s <= now:
            self._end(oldest)
            ended += 1
        for _ in range(ended):
            self._limiter.release(self.segment_transitions)
        self._pump()

    def _end(self, lease: _Lease) -> None:
        """Take a reservation from a stream; its credit stays."""
        del self._leases[lease]
        lease.stream.leases.remove(lease)


def _is_eligible(stream: ActorStream) -> bool:
    """Whether a stream may get one more credit: not while it has a window of them, or one without a lease."""
    return stream.credit - stream.acknowledged < _WINDOW and stream.credit - stream.received == len(stream.leases)
