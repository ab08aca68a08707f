"""Flow control of actors: grants credits to open streams in turn, when the rate limiter admits inserts."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from actorq.errors import ConflictError, CorruptedError, UnavailableError
from learner_service.actors.members import Member
from learner_service.replay import RateLimiter

WINDOW = 2
"""Segments that a stream may have in flight: enough to hide the round trip, few enough to keep the learner's queues
short.
"""
# Duration of a lease while other streams wait. An actor with data sends a segment sooner.
_LEASE_S = 2.0
# Longest wait of a stream for its turn, even if no stream uses its credit. Many streams shorten leases.
_TURN_S = 5.0
# Limit for the bytes of all segments that wait for a reservation.
_MOST_LATE_BYTES = 64 * 1024 * 1024


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
    store: Callable[[], None]


class ActorStream:
    """The state of one actor's stream. Lives on the event loop. `changed` is set when there is an answer to send.

    acknowledged <= received <= credit: the highest sequences that are stored, received, and allowed.
    storing: number of the stream's segments at the storage thread. share: see `Shares`.
    refused: a segment was refused, so no later one may be stored; used by the storage thread.
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
        self.ended = False
        self.refused = False
        self.stop = False
        self.fault: BaseException | None = None
        self.evaluate_version = 0
        self.share = 0
        self.changed = asyncio.Event()
        self.changed.set()

    def record_durable(self, sequence: int) -> None:
        """Record that everything up to `sequence` survives a power cut."""
        if sequence > self.durable:
            self.durable = sequence
            self.tell()

    def check_sent(self, sequence: int) -> None:
        """Raise CorruptedError unless all sequences up to `sequence` were received.

        Repeats the last answer, which may be lost.
        """
        self.require_all_before(sequence + 1)
        self.changed.set()

    def require_all_before(self, sequence: int) -> None:
        """Raise CorruptedError when a sequence before `sequence` was not received."""
        if sequence > self.received + 1:
            raise CorruptedError(
                f"stream: sequences {self.received + 1} to {sequence - 1} were lost on the way; send them again"
            )

    def acknowledge(self, sequence: int) -> None:
        """Record that everything up to `sequence` is stored."""
        self.acknowledged = max(self.acknowledged, sequence)
        self.received = max(self.received, sequence)
        self.credit = max(self.credit, sequence)
        self.tell()

    def tell(self) -> None:
        """Send an answer to the actor, unless another of its segments is being stored: one answer then covers both.

        A response costs both ends as much as a small segment. At most a window of segments shares one response.
        """
        if not self.storing:
            self.changed.set()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error. Keeps the first error."""
        self.fault = self.fault or error
        self.changed.set()

    def end(self) -> None:
        """Record that the actor sends no more segments."""
        self.ended = True
        self.changed.set()

    @property
    def over(self) -> bool:
        """Whether the stream gets no further answer. After the end of the run, no segments are stored."""
        return self.fault is not None or (self.ended and (self.stop or self.acknowledged >= self.received))


@dataclass(eq=False)
class Credits:
    """Grants credits for one segment at a time, in turn, while the limiter admits inserts.

    A credit is the permission to send a segment, as long as its stream is open. Each credit comes with a
    lease: a reservation at the limiter for `segment_transitions`. When other streams wait, a lease ends after two
    seconds. It ends sooner when many streams share few leases.

    A segment without a lease waits here, ahead of all new credits. It gets the next reservation, or the oldest lease
    whose segment has not arrived. A stream whose lease has ended gets no new lease before it sends its segment.
    Therefore a silent stream costs the other streams one lease in total.

    Runs on the event loop. The limiter's callbacks come from the trainer's thread and move to the loop.
    """

    limiter: RateLimiter
    segment_transitions: int
    loop: asyncio.AbstractEventLoop

    def __post_init__(self) -> None:
        self._open: set[ActorStream] = set()
        self._waiting: deque[ActorStream] = deque()
        self._leases: OrderedDict[_Lease, None] = OrderedDict()
        self._late: deque[_Late] = deque()
        self._late_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pump_is_due = False
        self._stopped = False
        self.limiter.on_inserts_possible(self._pump_soon)

    def open(self, stream: ActorStream) -> None:
        """Add a stream that needs credit."""
        self._open.add(stream)
        self._queue(stream)
        self._pump()

    def spend(self, stream: ActorStream, sequence: int, size: Callable[[], int], store: Callable[[], None]) -> bool:
        """Spend the credit of a received segment. Returns whether it has a reservation.

        Without a reservation, calls `store` when the segment gets one. The reservation then belongs to the intake,
        which uses it for a stored segment and otherwise releases it. size: returns the bytes of the segment.
        Raises ConflictError without credit, UnavailableError when too many segments wait, and CorruptedError when an
        earlier segment is missing.
        """
        if sequence > stream.credit:
            raise ConflictError(f"segment: expected a sequence with credit, at most {stream.credit}, got {sequence}")
        stream.require_all_before(sequence)
        if stream.leases:
            stream.received = sequence
            del self._leases[stream.leases.popleft()]
            stream.storing += 1
            return True
        late = _Late(stream, size(), store)
        if self._late_bytes + late.size > _MOST_LATE_BYTES:
            raise UnavailableError(f"segments of {self._late_bytes} bytes wait for the rate limiter: send again later")
        stream.received = sequence
        self._late.append(late)
        self._late_bytes += late.size
        self._pump()
        return False

    def stored(self, stream: ActorStream, sequence: int) -> None:
        """Acknowledge a stored segment, whose reservation is now used, and grant further credits."""
        stream.storing -= 1
        stream.acknowledge(sequence)
        if stream in self._open:
            self._queue(stream)
        self._pump()

    def stop(self) -> None:
        """Grant no more credits, because the run is ending."""
        self._stopped = True
        self._late.clear()
        self._late_bytes = 0

    def close(self, stream: ActorStream) -> None:
        """Remove a stream that has ended, and release its unused reservations."""
        self._open.discard(stream)
        if stream.wants_credit:
            stream.wants_credit = False
            self._waiting.remove(stream)
        if self._late:
            self._late = deque(late for late in self._late if late.stream is not stream)
            self._late_bytes = sum(late.size for late in self._late)
        while stream.leases:
            self._end(stream.leases[0])
            self.limiter.release(self.segment_transitions)
        stream.credit = stream.acknowledged

    @property
    def lease_s(self) -> float:
        """Seconds after which a lease ends while other streams wait."""
        return min(_LEASE_S, _TURN_S * max(1, len(self._leases)) / max(1, len(self._open)))

    def _queue(self, stream: ActorStream) -> None:
        # A flag on the stream, because a search in the queue for each segment is O(streams).
        if not stream.wants_credit:
            stream.wants_credit = True
            self._waiting.append(stream)

    def _pump_soon(self) -> None:
        # Called on any thread. A stream that begins to wait joins the queue and then calls `_pump` itself.
        if (self._waiting or self._late) and not self._pump_is_due and not self.loop.is_closed():
            self._pump_is_due = True
            self.loop.call_soon_threadsafe(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        while not self._stopped and (self._admit_late() or self._grant()):
            pass
        # Leases end only while streams wait.
        if self._waiting and self._leases and self._timer is None and not self._stopped:
            due = next(iter(self._leases)).granted_at + self.lease_s
            self._timer = self.loop.call_at(max(due, self.loop.time()), self._end_leases)

    def _admit_late(self) -> bool:
        """Store the segment that has waited longest. Returns False if no segment waits or there is no reservation."""
        if not self._late:
            return False
        if not self.limiter.try_reserve(self.segment_transitions):
            if not self._leases:
                return False
            self._end(next(iter(self._leases)))
        late = self._late.popleft()
        self._late_bytes -= late.size
        late.stream.storing += 1
        late.store()
        return True

    def _grant(self) -> bool:
        """Give a credit to the next stream in turn. Returns False when no stream waits or no insert is admitted."""
        while self._waiting and not _is_eligible(self._waiting[0]):
            self._waiting.popleft().wants_credit = False
        if not self._waiting or self._late or not self.limiter.try_reserve(self.segment_transitions):
            return False
        stream = self._waiting[0]
        lease = _Lease(stream, self.loop.time())
        self._leases[lease] = None
        stream.leases.append(lease)
        stream.credit += 1
        stream.tell()
        self._waiting.rotate(-1)
        return True

    def _end_leases(self) -> None:
        self._timer = None
        now, lease_s = self.loop.time(), self.lease_s
        while self._waiting and self._leases and (oldest := next(iter(self._leases))).granted_at + lease_s <= now:
            self._end(oldest)
            self.limiter.release(self.segment_transitions)
        self._pump()

    def _end(self, lease: _Lease) -> None:
        """End a stream's lease. Its credit stays."""
        del self._leases[lease]
        lease.stream.leases.remove(lease)


def _is_eligible(stream: ActorStream) -> bool:
    """Whether a stream may get a credit: it has fewer credits than a window, and each of them has a lease."""
    return stream.credit - stream.acknowledged < WINDOW and stream.credit - stream.received == len(stream.leases)
