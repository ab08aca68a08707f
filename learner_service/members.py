"""Who takes part in a run: actors and evaluators, their indexes, streams and reports."""

import logging
import threading
from dataclasses import dataclass
from typing import Literal

from actorq.errors import ConflictError, ExhaustedError, InvalidInputError, NotFoundError
from actorq.status import ActorReport, ActorStatus
from actorq.trajectory import Role
from learner_service.replay import SegmentSource

_MAX_MEMBERS = 20_000
_MOST_STATUSES = 1000

_log = logging.getLogger(__name__)


@dataclass
class Member:
    """One actor or evaluator, in its newest incarnation. It holds its index until it has left.

    life: how often this index has been given out, this time included.
    """

    name: str
    role: Role
    index: int
    incarnation: int
    life: int = 1
    state: Literal["joined", "connected", "left"] = "joined"
    report: ActorReport | None = None

    def source(self, sequence: int) -> SegmentSource:
        """Names what this incarnation sent under `sequence`."""
        return SegmentSource.from_name(self.name, self.incarnation, sequence)


class Members:
    """Members by name. An index is freed when its member's stream closes, and given to the next that joins.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._lives: dict[tuple[Role, int], int] = {}
        self._lock = threading.Lock()

    def join(self, name: str, incarnation: int, role: Role) -> Member:
        """Take in an actor; the same name gets the same index again as long as nobody else holds it."""
        if not 1 <= len(name) <= 128:
            raise InvalidInputError(f"actor_name: must have 1 to 128 characters, got {len(name)}")
        with self._lock:
            known = self._members.get(name)
            if known is not None and incarnation < known.incarnation:
                raise ConflictError(
                    f"actor {name!r}: incarnation {known.incarnation} has joined since, got {incarnation}; give every "
                    "actor a name of its own"
                )
            if known is not None and (known.incarnation, known.role) == (incarnation, role):
                if known.state == "left":
                    known.index = self._free_index(name, role)
                    known.state = "joined"
                return known
            if known is None and len(self._members) >= _MAX_MEMBERS:
                self._forget_those_who_left()
            index = self._free_index(name, role)
            life = self._lives[role, index] = self._lives.get((role, index), 0) + 1
            member = Member(name, role, index, incarnation, life)
            self._members[name] = member
            _log.info("%s joined as %s %d", name, role, member.index)
            return member

    def connect(self, name: str, incarnation: int) -> Member:
        """An actor opened its stream; it must have joined with this incarnation."""
        with self._lock:
            member = self._members.get(name)
            if member is None or member.incarnation != incarnation:
                raise NotFoundError(f"actor {name!r} with incarnation {incarnation} has not joined: call Join first")
            member.state = "connected"
            return member

    def disconnect(self, member: Member) -> None:
        """An actor's stream closed: its index is free, and it has to join again."""
        with self._lock:
            member.state = "left"

    def report(self, member: Member, report: ActorReport) -> None:
        """An actor told how it is."""
        with self._lock:
            member.report = report

    def statuses(self) -> tuple[ActorStatus, ...]:
        """Those who have joined and not left, actors first, by index; at most 1000 of them."""
        with self._lock:
            present = [member for member in self._members.values() if member.state != "left"]
            members = sorted(present, key=lambda member: (member.role, member.index))[:_MOST_STATUSES]
            return tuple(ActorStatus(m.name, m.role, m.index, m.state == "connected", m.report) for m in members)

    def connected(self, role: Role) -> int:
        """How many members of a role have an open stream."""
        with self._lock:
            return sum(member.role == role and member.state == "connected" for member in self._members.values())

    def _free_index(self, name: str, role: Role) -> int:
        held = {m.index for m in self._members.values() if m.role == role and m.name != name and m.state != "left"}
        known = self._members.get(name)
        if known is not None and known.role == role and known.index not in held:
            return known.index
        # "actor-3" likes to be number 3, so that names and indexes agree wherever they can.
        ordinal = name.rpartition("-")[2]
        if ordinal.isdecimal() and int(ordinal) < _MAX_MEMBERS and int(ordinal) not in held:
            return int(ordinal)
        return next(index for index in range(len(held) + 1) if index not in held)

    def _forget_those_who_left(self) -> None:
        for name in [name for name, member in self._members.items() if member.state == "left"]:
            del self._members[name]
        if len(self._members) >= _MAX_MEMBERS:
            raise ExhaustedError(f"a run takes at most {_MAX_MEMBERS} actors; all of them are connected")
