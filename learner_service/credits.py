"""Lets actors send: the rate limiter's admission, shared out fairly over the open streams."""

import asyncio
from collections import deque

from learner_service.members import Member
from learner_service.replay import RateLimiter

# Segments that a stream may have in flight: hides the round trip, and keeps what waits at the learner small.
_WINDOW = 2


class ActorStream:
    """What the learner tells one actor. Lives on the event loop; `changed` is set when there is something to say."""

    def __init__(self, member: Member, acknowledged: int) -> None:
        self.member = member
        self.acknowledged = acknowledged
        self.credit = acknowledged
        self.reserved_segments = 0
        self.wants_credit = False
        self.stop = False
        self.evaluate_version = 0
        self.changed = asyncio.Event()
        self.changed.set()

    def acknowledge(self, sequence: int) -> None:
        """Everything up to `sequence` is stored."""
        self.acknowledged = max(self.acknowledged, sequence)
        self.changed.set()


class Credits:
    """Grants one segment at a time, in turn, to streams that want one, as long as the limiter admits inserts.

    Every grant is a reservation at the limiter for `segment_transitions`. Lives on the event loop; the limiter's
    callbacks come from the trainer's thread and are passed on to the loop.
    """

    def __init__(self, limiter: RateLimiter, segment_transitions: int, loop: asyncio.AbstractEventLoop) -> None:
        self.segment_transitions = segment_transitions
        self._limiter = limiter
        self._waiting: deque[ActorStream] = deque()
        self._loop = loop
        self._pump_is_due = False
        self._stopped = False
        limiter.on_inserts_possible(self._pump_soon)

    def open(self, stream: ActorStream) -> None:
        """A stream wants credit."""
        self._queue(stream)
        self._pump()

    def take(self, stream: ActorStream, sequence: int) -> bool:
        """A segment arrived; False when the stream had no credit for it."""
        if sequence > stream.credit:
            return False
        # From here on the reservation is the intake's, which uses it up whether it stores or refuses the segment.
        stream.reserved_segments -= 1
        self._queue(stream)
        return True

    def stored(self, stream: ActorStream, sequence: int) -> None:
        """The segment is stored, and its reservation used up: acknowledge it and grant further ones."""
        stream.acknowledge(sequence)
        self._pump()

    def stop(self) -> None:
        """The run is ending: grant nothing more."""
        self._stopped = True

    def close(self, stream: ActorStream) -> None:
        """A stream ended: what it did not use of its grants is free for others."""
        if stream.wants_credit:
            stream.wants_credit = False
            self._waiting.remove(stream)
        for _ in range(stream.reserved_segments):
            self._limiter.release(self.segment_transitions)
        stream.reserved_segments = 0
        stream.credit = stream.acknowledged

    def _queue(self, stream: ActorStream) -> None:
        # The stream knows whether it is queued: looking for it would cost as much as there are streams, per segment.
        if not stream.wants_credit:
            stream.wants_credit = True
            self._waiting.append(stream)

    def _pump_soon(self) -> None:
        if not self._pump_is_due and not self._loop.is_closed():
            self._pump_is_due = True
            self._loop.call_soon_threadsafe(self._pump)

    def _pump(self) -> None:
        self._pump_is_due = False
        while self._waiting and not self._stopped:
            stream = self._waiting[0]
            if stream.credit - stream.acknowledged >= _WINDOW:
                self._waiting.popleft().wants_credit = False
                continue
            if not self._limiter.try_reserve(self.segment_transitions):
                return
            stream.credit += 1
            stream.reserved_segments += 1
            stream.changed.set()
            self._waiting.rotate(-1)
