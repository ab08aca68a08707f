"""The members of a run: actors and evaluators with their incarnations, indexes and reports."""

import heapq
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from actorq.domain.status import ActorReport, ActorStatus
from actorq.domain.trajectory import Role
from actorq.errors import ConflictError, ExhaustedError, InvalidInputError, NotFoundError
from learner_service.replay import SegmentSource, actor_key

_MAX_MEMBERS = 20_000
# Members without a stream that one owner may have. Honest members open their streams within seconds.
_MAX_WAITING = 2000
_MOST_STATUSES = 1000
# A member keeps its index this long without a stream. After that it must join again.
_PATIENCE_S = 60.0
# An incarnation has the number of the learner process in its upper bits, and the count of its joins in the lower bits.
_JOIN_BITS = 32

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Member:
    """One incarnation of an actor or evaluator. It holds its index until it leaves.

    life: number of times that this index was assigned, this time included. report: the newest report.
    nonce: identifies the process that joined; 0 when unknown. owner: identifies the caller of Join; see Members.join.
    heard_at: time at which the stream was opened or the newest report came.
    """

    name: str
    role: Role
    index: int
    incarnation: int
    life: int = 1
    state: Literal["joined", "connected", "left"] = "joined"
    report: ActorReport | None = None
    nonce: int = 0
    owner: str = ""
    heard_at: float = 0.0

    def source(self, sequence: int) -> SegmentSource:
        """The identity of segment number `sequence` of this incarnation."""
        return SegmentSource(*self.source_key, sequence)

    @cached_property
    def source_key(self) -> tuple[bytes, int]:
        """(actor key, incarnation), the key of this incarnation's sequence numbers."""
        return actor_key(self.name), self.incarnation


class Members:
    """Members by name, each in its newest incarnation. Thread-safe.

    An index is freed when its member's stream closes, or when the member opens no stream within a minute.
    process: number of the learner process. Higher process numbers give higher incarnations.
    """

    def __init__(self, process: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_incarnation = (process << _JOIN_BITS) + 1
        self._members: dict[str, Member] = {}
        self._keys: set[bytes] = set()
        self._lives: dict[tuple[Role, int], int] = {}
        self._indexes: dict[Role, Indexes] = {"actor": Indexes(), "evaluator": Indexes()}
        self._connected: Counter[Role] = Counter()
        # By name, oldest first: the join times of members without a stream, and the members that have left.
        self._waiting: OrderedDict[str, float] = OrderedDict()
        self._left: OrderedDict[str, None] = OrderedDict()
        self._waiting_of: Counter[str] = Counter()
        self._lock = threading.Lock()

    def known(self, name: str) -> Member | None:
        """The newest incarnation of the member with this name, present or left."""
        return self._members.get(name)

    def has_key(self, key: bytes) -> bool:
        """Whether a member, present or left, has this key in the tables of last sequences."""
        return key in self._keys

    def join(
        self, name: str, incarnation: int, role: Role, nonce: int = 0, newest_stored: int = 0, owner: str = ""
    ) -> Member:
        """Admit an actor or evaluator. A known name gets its old index again if the index is free.

        Raises ConflictError when another process has taken over the name, and ExhaustedError when the run has too many
        members, or the owner too many that have opened no stream.
        incarnation: 0 when the process joins for the first time, otherwise the incarnation that it got then.
        nonce: identifies the process. A repeated nonce means that the first answer was lost.
        newest_stored: the highest incarnation of this name that has a stored segment.
        owner: identifies the caller, such as its certificate and address.
        """
        with self._lock:
            self._expire()
            known = self._members.get(name)
            if known is not None and _is_same(known, incarnation, role, nonce):
                self._come_back(known, owner)
                return known
            self._require_room(owner)
            newest = max(newest_stored, known.incarnation if known else 0)
            if incarnation and incarnation < newest:
                raise taken_over(name, incarnation)
            if incarnation > newest and incarnation >= self._next_incarnation:
                raise InvalidInputError(
                    f"actor {name!r}: the learner assigns incarnations and did not assign {incarnation}; "
                    "join with 0 first"
                )
            if known is None and len(self._members) >= _MAX_MEMBERS:
                self._forget_one_that_left()
            member = self._admit(name, role, incarnation or self._new_incarnation(newest), nonce, known)
            member.owner = owner
            self._wait(member)
            return member

    def connect(self, name: str, incarnation: int) -> Member:
        """Mark a member as connected. Raises NotFoundError when it has not joined with this incarnation."""
        with self._lock:
            self._expire()
            member = self._members.get(name)
            if member is not None and incarnation < member.incarnation:
                raise taken_over(name, incarnation)
            if member is None or member.incarnation != incarnation or member.state == "left":
                raise NotFoundError(f"actor {name!r} with incarnation {incarnation} has not joined: call Join first")
            if member.state == "joined":
                member.state, member.heard_at = "connected", self._clock()
                self._end_wait(member)
                self._connected[member.role] += 1
            return member

    def disconnect(self, member: Member) -> bool:
        """Mark a member as left and free its index. The member must join again. Returns whether it was present."""
        with self._lock:
            return self._leave(member)

    def statuses(self) -> tuple[ActorStatus, ...]:
        """Statuses of the present members, actors first, by index; at most 1000 of them."""
        with self._lock:
            self._expire()
            present = [member for member in self._members.values() if member.state != "left"]
            members = sorted(present, key=lambda member: (member.role, member.index))[:_MOST_STATUSES]
            return tuple(ActorStatus(m.name, m.role, m.index, m.state == "connected", m.report) for m in members)

    def record_report(self, member: Member, report: ActorReport) -> None:
        """Record a member's newest report."""
        member.report, member.heard_at = report, self._clock()

    def names(self, role: Role, silent_s: float) -> tuple[list[str], list[str], list[str]]:
        """The names of the members of a role: present, away, and silent.

        An away member has no open stream, or has left. A silent member has an open stream, but sent no report for
        `silent_s`
        seconds: its process hangs, or the network drops its messages.
        """
        with self._lock:
            of_role = [member for member in self._members.values() if member.role == role]
            here = [member for member in of_role if member.state == "connected"]
            silent = {member.name for member in here if self._clock() - member.heard_at >= silent_s}
            present = [member.name for member in here if member.name not in silent]
            return present, [member.name for member in of_role if member.state != "connected"], sorted(silent)

    def connected(self, role: Role) -> int:
        """Number of members of a role with an open stream."""
        with self._lock:
            return self._connected[role]

    def _new_incarnation(self, newest: int) -> int:
        # Normally this is the next number. A replay that was copied from another run may contain higher numbers.
        incarnation = max(self._next_incarnation, newest + 1)
        self._next_incarnation += 1
        return incarnation

    def _admit(self, name: str, role: Role, incarnation: int, nonce: int, known: Member | None) -> Member:
        wishes = list(_ordinal(name))
        if known is not None:
            self._leave(known)
            del self._left[name]
            if known.role == role:
                wishes.insert(0, known.index)
        index = self._indexes[role].acquire(*wishes)
        life = self._lives[role, index] = self._lives.get((role, index), 0) + 1
        member = Member(name, role, index, incarnation, life, nonce=nonce)
        self._members[name] = member
        self._keys.add(member.source_key[0])
        _log.info("%s joined as %s %d", name, role, index)
        return member

    def _come_back(self, member: Member, owner: str) -> None:
        if member.state == "left":
            self._require_room(owner)
            member.index = self._indexes[member.role].acquire(member.index, *_ordinal(member.name))
            member.state = "joined"
            del self._left[member.name]
        elif member.state == "joined":
            self._end_wait(member)
        if member.state == "joined":
            self._wait(member)

    def _leave(self, member: Member) -> bool:
        if member.state == "left" or self._members.get(member.name) is not member:
            return False
        if member.state == "connected":
            self._connected[member.role] -= 1
        else:
            self._end_wait(member)
        member.state = "left"
        self._left[member.name] = None
        self._indexes[member.role].release(member.index)
        return True

    def _require_room(self, owner: str) -> None:
        if self._waiting_of[owner] >= _MAX_WAITING:
            raise ExhaustedError(
                f"Join: {_MAX_WAITING} actors of this certificate and address have joined without opening a stream; "
                f"open their streams, or wait {_PATIENCE_S:.0f} s"
            )

    def _wait(self, member: Member) -> None:
        self._waiting[member.name] = self._clock()
        self._waiting_of[member.owner] += 1

    def _end_wait(self, member: Member) -> None:
        del self._waiting[member.name]
        self._waiting_of[member.owner] -= 1
        # Empty entries are deleted, so that the table stays bounded.
        if not self._waiting_of[member.owner]:
            del self._waiting_of[member.owner]

    def _expire(self) -> None:
        due = self._clock() - _PATIENCE_S
        while self._waiting and self._waiting[name := next(iter(self._waiting))] <= due:
            _log.info("%s has joined, but opened no stream within %.0f s", name, _PATIENCE_S)
            self._leave(self._members[name])

    def _forget_one_that_left(self) -> None:
        if not self._left:
            raise ExhaustedError(f"a run has at most {_MAX_MEMBERS} actors, and this run has that many")
        name, _ = self._left.popitem(last=False)
        self._keys.discard(self._members.pop(name).source_key[0])


class Indexes:
    """The held and free exploration indexes of a role, counted from 0. Acquiring and releasing is O(log n).

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._held: set[int] = set()
        # All numbers below `_next` are held or in the heap. The heap has each number once, including some held numbers.
        self._next = 0
        self._heap: list[int] = []
        self._in_heap: set[int] = set()

    def acquire(self, *wishes: int) -> int:
        """Hold the first free number of `wishes`, otherwise the lowest free number."""
        index = next((wish for wish in wishes if wish not in self._held), None)
        if index is None:
            index = self._lowest()
        self._held.add(index)
        return index

    def release(self, index: int) -> None:
        """Release a held number."""
        self._held.discard(index)
        if index < self._next and index not in self._in_heap:
            self._in_heap.add(index)
            heapq.heappush(self._heap, index)

    def _lowest(self) -> int:
        while self._heap:
            index = heapq.heappop(self._heap)
            self._in_heap.discard(index)
            if index not in self._held:
                return index
        while self._next in self._held:
            self._next += 1
        self._next += 1
        return self._next - 1


def _is_same(known: Member, incarnation: int, role: Role, nonce: int) -> bool:
    if known.role != role:
        return False
    return known.incarnation == incarnation or (incarnation == 0 and nonce != 0 and known.nonce == nonce)


def taken_over(name: str, incarnation: int) -> ConflictError:
    """The error for the older of two processes with one name."""
    return ConflictError(
        f"actor {name!r}: another process has taken over this name since incarnation {incarnation}; give every actor a "
        "name of its own"
    )


def _ordinal(name: str) -> tuple[int, ...]:
    """The number at the end of a name is the preferred index: "actor-3" prefers index 3."""
    ordinal = name.rpartition("-")[2]
    return (int(ordinal),) if ordinal.isdecimal() and len(ordinal) < 9 and int(ordinal) < _MAX_MEMBERS else ()
