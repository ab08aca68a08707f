"""Uploads segments and evaluations to the learner on its own thread, exactly once, within the granted credit."""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import grpc

from actorq import wire
from actorq.client import LearnerClient
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import ActorReport, Membership
from actorq.domain.trajectory import Evaluation, Segment
from actorq.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError, UserError
from actorq.transport.errors import error_from_rpc
from actorq.transport.reconnect import keep_connected
from actorq.v1 import learner_pb2

Item = Segment | Evaluation

# A learner flushes about once a second. These limits for unflushed items cover many flushes.
_MOST_UNFLUSHED_ITEMS = 1024
_MOST_UNFLUSHED_BYTES = 64 * 2**20

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Uploader:
    """Owns the actor's stream. The acting loop calls `put`; any thread may call the other methods.

    Items wait in order until the learner has acknowledged them. At most `capacity` items wait for credit; the credit
    limits the items in flight. Acknowledged items are kept until they are on the learner's disk. After a broken stream
    the uploader joins again and resumes after the last stored item. A power cut at the learner may lose
    acknowledged items. The uploader then sends the unflushed items again.

    join: announces the actor and returns its membership. Raises ConflictError when another process has taken its name.
    report: returns the actor's report, sent every `period_s` seconds and more often at first.
    on_stop, on_evaluate: called for the learner's directives.
    on_fault: called with an error that a retry cannot fix.
    on_retry: called when the stream broke or failed to open, before the next attempt.
    on_share: called when the steps of a policy change (wire.StreamAnswer.max_steps_per_policy).
    """

    client: LearnerClient
    name: str
    join: Callable[[], Membership]
    report: Callable[[], ActorReport]
    on_stop: Callable[[], None]
    on_evaluate: Callable[[int], None]
    on_fault: Callable[[BaseException], None]
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic
    on_retry: Callable[[], None] = lambda: None
    on_share: Callable[[int], None] = lambda steps: None

    def __post_init__(self) -> None:
        self._waited_s = 0.0
        self._full_since: float | None = None
        # Known once the actor has joined.
        self._incarnation: int
        self._lost_through: int
        self._share = 0
        self._changed = threading.Condition()
        self._waiting: deque[Item] = deque()
        self._in_flight: deque[Item] = deque()
        self._unflushed = UnflushedItems()
        self._newest = 0
        self._credit = 0
        self._acknowledged = self._most_acknowledged = 0
        self._abandoned = False
        self._closed = threading.Event()
        self._period_s = 1.0
        self._capacity = 1
        self._spec: EnvironmentSpec | None = None
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="uploader", daemon=True)

    def start(self, spec: EnvironmentSpec, capacity: int, period_s: float) -> None:
        """Open the stream for this environment."""
        self._spec, self._capacity, self._period_s = spec, capacity, period_s
        self._thread.start()

    def put(self, item: Item, stop: threading.Event) -> None:
        """Queue an item. Waits while the queue is full. Once `stop` is set, the item is queued at once."""
        with self._changed:
            self._wait_for_room(lambda: len(self._waiting) < self._capacity or stop.is_set())
            self._waiting.append(item)
            self._newest = item.sequence
            self._changed.notify_all()

    def await_credit(self, stop: threading.Event) -> None:
        """Wait until the next segment could be sent at once, or `stop` is set.

        An actor that collects only then uses the newest possible policy, because no segment waits for credit.
        """
        with self._changed:
            self._wait_for_room(lambda: max(self._newest, self._acknowledged) < self._credit or stop.is_set())

    def _wait_for_room(self, there_is: Callable[[], bool]) -> None:
        self._full_since = self.clock()
        self._changed.wait_for(there_is)
        self._waited_s += self.clock() - self._full_since
        self._full_since = None

    def wake(self) -> None:
        """Make waiting calls check `stop` again."""
        with self._changed:
            self._changed.notify_all()

    @property
    def waited_s(self) -> float:
        """Seconds that `put` and `await_credit` have waited in total, the current wait included."""
        with self._changed:
            return self._waited_s + (0.0 if self._full_since is None else self.clock() - self._full_since)

    @property
    def queued(self) -> int:
        """Number of items that wait for credit, the network or an acknowledgment."""
        with self._changed:
            return len(self._waiting) + len(self._in_flight)

    @property
    def acknowledged(self) -> int:
        """The highest sequence that the learner has ever stored. It does not fall when the learner loses items."""
        with self._changed:
            return self._most_acknowledged

    def flush(self, timeout_s: float) -> int:
        """Wait until all items are acknowledged or abandoned, or time is up. Returns how many items are not stored."""
        with self._changed:
            self._changed.wait_for(lambda: not self.queued or self._abandoned or self._closed.is_set(), timeout_s)
            return self.queued

    def abandon(self) -> None:
        """Make `flush` return at once, because the learner stores nothing more."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def close(self, patience_s: float = 2.0) -> None:
        """End the stream after a last report, and wait for the thread. After `patience_s` the stream is cancelled."""
        self._closed.set()
        self.wake()
        if self._thread.is_alive():
            self._thread.join(patience_s)
            if self._call is not None:
                self._call.cancel()
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        try:
            keep_connected(self._stream, self._closed, self.client.peer, random.Random(), on_retry=self.on_retry)
        except BaseException as error:
            if not self._closed.is_set():
                self.on_fault(error)
                self.abandon()

    def _stream(self, connected: Callable[[], None]) -> None:
        membership = self.join()
        self._incarnation = membership.incarnation
        self._resume_after(membership.resume_after_sequence)
        ended = threading.Event()
        opened = False
        assert self._spec is not None
        # Encoded here, because gRPC would report an error in its thread as a broken stream.
        opening = wire.upload_to_proto(wire.StreamOpening(self.name, self._incarnation, self._spec, self._lost_through))
        call = self._call = self.client.stub.StreamTrajectories(self._requests(opening, ended))
        try:
            for response in call:
                opened = True
                if self._handle(self._answer(response)):
                    connected()
        except grpc.RpcError as error:
            if not self._closed.is_set():
                self._raise(error, opened)
        finally:
            ended.set()
            self.wake()
            call.cancel()
        if not self._closed.is_set():
            raise UnavailableError(f"{self.client.peer} ended the stream of trajectories")

    def _answer(self, response: Any) -> wire.StreamAnswer:
        try:
            return wire.stream_answer_from_proto(response)
        except InvalidInputError as error:
            # A retry, because the learner may be repaired or replaced during the run.
            raise UnavailableError(f"{self.client.peer} sent an invalid answer: {error}") from error

    def _raise(self, error: grpc.RpcError, opened: bool) -> None:
        translated = error_from_rpc(error, self.client.peer)
        if isinstance(translated, InvalidInputError) and not opened:
            # The run cannot use this environment. The settings are wrong, and the learner's error says why on one line.
            raise UserError(str(translated).removeprefix(f"{self.client.peer}: ")) from None
        if isinstance(translated, NotFoundError):
            # The learner restarted between Join and the stream, and does not know this actor: join again.
            raise UnavailableError(str(translated)) from error
        if isinstance(translated, ConflictError):
            # Join raises the error if another process has taken over the name.
            self.join()
        raise translated from error

    def _resume_after(self, stored: int) -> None:
        with self._changed:
            items = [*self._unflushed.pop_all(), *self._in_flight, *self._waiting]
            for item in items:
                if item.sequence <= stored:
                    # The learner has stored these items, but perhaps not flushed them to its disk.
                    self._unflushed.add(item)
            pending = [item for item in items if item.sequence > stored]
            following = pending[0].sequence if pending else self._acknowledged + 1
            self._lost_through = following - 1 if following - 1 > stored else 0
            self._tell_what_was_lost(stored, following)
            self._in_flight.clear()
            self._waiting = deque(pending)
            self._acknowledged = self._credit = max(stored, self._lost_through)
            self._most_acknowledged = max(self._most_acknowledged, stored)
            self._changed.notify_all()

    def _tell_what_was_lost(self, stored: int, following: int) -> None:
        if self._acknowledged > stored:
            lost = max(0, following - 1 - stored)
            _log.warning(
                "%s has lost %d acknowledged items after number %d: %d are sent again, %d cannot be recovered",
                *(self.client.peer, self._acknowledged - stored, stored, self._acknowledged - stored - lost, lost),
            )

    def _handle(self, answer: wire.StreamAnswer) -> bool:
        """Returns whether the stream works. A learner with a full disk may open a stream and then refuse each item."""
        with self._changed:
            works = answer.acknowledged > self._acknowledged
            self._acknowledged = max(self._acknowledged, answer.acknowledged)
            self._most_acknowledged = max(self._most_acknowledged, answer.acknowledged)
            self._credit = max(self._credit, answer.credit_through)
            while self._in_flight and self._in_flight[0].sequence <= self._acknowledged:
                self._unflushed.add(self._in_flight.popleft())
            self._unflushed.forget_through(answer.durable)
            works = works or not (self._in_flight or self._may_send())
            self._changed.notify_all()
        if answer.evaluate_version:
            self.on_evaluate(answer.evaluate_version)
        if answer.max_steps_per_policy != self._share:
            self._share = answer.max_steps_per_policy
            self.on_share(self._share)
        if answer.stop:
            self.on_stop()
        return works

    def _requests(
        self, opening: learner_pb2.StreamTrajectoriesRequest, ended: threading.Event
    ) -> Iterator[learner_pb2.StreamTrajectoriesRequest]:
        yield opening
        soon_s = self._period_s / 8
        report_at, period_s, sent = time.monotonic(), soon_s, 0
        while not (ended.is_set() or self._closed.is_set()):
            item = self._next_item(ended, report_at)
            if item is not None:
                yield wire.upload_to_proto(item)
                if isinstance(item, Segment) and not sent:
                    # Reports are also more frequent after the first segment, because a short run would end within one
                    # period.
                    report_at, period_s = time.monotonic(), soon_s
                sent = item.sequence
            if time.monotonic() >= report_at:
                report_at, period_s = time.monotonic() + period_s, min(2 * period_s, self._period_s)
                yield wire.upload_to_proto(wire.Reported(self.report(), sent))
        if not ended.is_set():
            # A last report, so that even a run of seconds reports the process's total resource use.
            yield wire.upload_to_proto(wire.Reported(self.report(), sent))

    def _next_item(self, ended: threading.Event, until: float) -> Item | None:
        """The next item with credit. None when no item gets credit until time `until`, or when the stream has ended."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._may_send() or ended.is_set() or self._closed.is_set(), until - time.monotonic()
            )
            if not self._may_send() or ended.is_set():
                return None
            item = self._waiting.popleft()
            self._in_flight.append(item)
            self._changed.notify_all()
            return item

    def _may_send(self) -> bool:
        if not self._waiting:
            return False
        return isinstance(self._waiting[0], Evaluation) or self._waiting[0].sequence <= self._credit


class UnflushedItems:
    """The newest acknowledged items, in order, up to a limit, until the learner has flushed them to its disk.

    A learner that loses them in a power cut gets them again. Not thread-safe: the owner's lock protects it.
    """

    def __init__(self, most_items: int = _MOST_UNFLUSHED_ITEMS, most_bytes: int = _MOST_UNFLUSHED_BYTES) -> None:
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._items: deque[Item] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item) -> None:
        """Keep an acknowledged item, and drop the oldest ones beyond the limits."""
        self._items.append(item)
        self._bytes += _nbytes(item)
        while len(self._items) > self._most_items or self._bytes > self._most_bytes:
            self._drop_oldest()

    def forget_through(self, sequence: int) -> None:
        """Drop all items up to `sequence`, which are on the learner's disk."""
        while self._items and self._items[0].sequence <= sequence:
            self._drop_oldest()

    def pop_all(self) -> list[Item]:
        """Remove and return all items, oldest first."""
        items = list(self._items)
        self._items.clear()
        self._bytes = 0
        return items

    def _drop_oldest(self) -> None:
        self._bytes -= _nbytes(self._items.popleft())


def _nbytes(item: Item) -> int:
    return sum(column.nbytes for column in item.columns.values()) if isinstance(item, Segment) else 0
