"""The door between the server, which receives the steps of simulators, and the acting loop, which answers them."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from actor_service.external.streams.session import Arrival, Ending, PlaySession, Reply
from actor_service.external.streams.spaces import SimulatorSpaces
from actorq import wire
from actorq.config.sections import ExternalConfig
from actorq.domain.environments import NO_ARGUMENTS, EnvironmentArguments
from actorq.domain.spaces import EnvironmentSpec
from actorq.errors import ConflictError, ExhaustedError, UnavailableError
from actorq.telemetry.histogram import Histogram
from actorq.text import one_line

_MOST_BYTES = 300
# Bucket bounds from 0.1 ms (a small policy) to the longest waits for the learner.
_ANSWER_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)


@dataclass(frozen=True)
class Host:
    """The run that the simulators play in.

    run_id: empty without a run. columns: names of the run's large columns.
    most_transitions: of one segment, so also the most environments of one stream.
    spec: the spaces that a trained policy needs; None if the first simulator sets them.
    explores: whether simulators may explore. Otherwise all of them get greedy actions.
    """

    environment_id: str
    run_id: str = ""
    arguments: EnvironmentArguments = NO_ARGUMENTS
    columns: tuple[str, ...] = ()
    most_transitions: int = 65_536
    spec: EnvironmentSpec | None = None
    explores: bool = True


@dataclass
class Taken:
    """The events since the last call of `Door.take`: new steps, and streams that have ended."""

    arrivals: list[tuple[PlaySession, Arrival]] = field(default_factory=list)
    left: list[PlaySession] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.arrivals or self.left)


class Door:
    """All streams of an actor. Thread-safe.

    The server's thread calls `open`, `offer` and `leave`. The acting loop calls `take`, or `wait` and `taken`, and
    `answer`. A stream that neither sends nor receives is in no queue, so no other stream waits for it.

    post: calls a function on the server's thread, at once if that is this thread. Set before the first stream.
    soon: calls a function on the server's thread after the steps that it is about to read; None without a server. Not
        used once all streams have sent a step.
    helper: answers the steps on the server's thread if that is quick, so that no thread needs to wake; None without
        one. Returns whether it has answered.
    refused: number of refused streams. problem: the newest reason why a stream was refused or ended early.
    actions: number of actions in all answers. answer_seconds: times from a step to its answer.
    """

    def __init__(self, limits: ExternalConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.post: Callable[[Callable[[], None]], object] = lambda function: function()
        self.soon: Callable[[Callable[[], None]], object] | None = None
        self.helper: Callable[[], bool] | None = None
        self.refused = 0
        self.problem = ""
        self.actions = 0
        self.answer_seconds = Histogram(_ANSWER_SECONDS)
        self._clock = clock
        self._changed = threading.Condition()
        self._host: Host | None = None
        self._spaces: SimulatorSpaces | None = None
        self._sessions: set[PlaySession] = set()
        self._rows = 0
        self._taken = Taken()
        self._first_at = 0.0
        self._expected: set[PlaySession] = set()
        self._woken = False
        self._help_comes = False
        self._ending: Ending | None = None

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._sessions)

    @property
    def environments(self) -> int:
        """Number of environments of all open streams."""
        return self._rows

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self._ending is not None

    def admit(self, host: Host) -> None:
        """Accept simulators for this run."""
        with self._changed:
            self._host = host

    def await_spec(self) -> EnvironmentSpec | None:
        """Wait for the first simulator. Returns the spec of its environment; None after `end`."""
        with self._changed:
            self._changed.wait_for(lambda: self._ending is not None or self._spaces is not None)
            return None if self._spaces is None or self._ending is not None else self._spaces.spec

    def open(self, opening: wire.PlayOpening, reply: Callable[[Reply], None]) -> tuple[PlaySession, wire.PlayReady]:
        """Admit a simulator. The first one sets the spaces of all.

        Raises InvalidInputError for spaces that no policy supports. Raises ConflictError for another protocol, and for
        spaces that differ from those of the first simulator. Raises ExhaustedError at a limit. Raises UnavailableError
        before the actor has joined its run, and when the actor ends.
        """
        with self._changed:
            try:
                session = self._open(opening, reply)
            except Exception as error:
                self.refused += not isinstance(error, UnavailableError)
                self.note(error)
                raise
            assert self._host is not None
            self._sessions.add(session)
            self._rows += session.count
            self._spaces = self._spaces or session.spaces
            self._changed.notify_all()
            host = self._host
        return session, wire.PlayReady(wire.PROTOCOL, host.run_id, host.environment_id, self.limits.timeout_s)

    def _open(self, opening: wire.PlayOpening, reply: Callable[[Reply], None]) -> PlaySession:
        if opening.protocol != wire.PROTOCOL:
            raise ConflictError(
                f"open.protocol: expected {wire.PROTOCOL}, got {opening.protocol}: make the simulator's stubs again "
                "from the protos of this actor's version"
            )
        if self._ending is not None:
            if (error := self._ending.error) is None:
                raise ConflictError("the run is over")
            raise type(error)(str(error))
        if self._host is None:
            raise UnavailableError("the actor has not joined its run yet: connect again")
        spaces = SimulatorSpaces.of(opening, self._host.environment_id, self._host.arguments, self._host.columns)
        if (needed := self._host.spec) is not None:
            spaces = spaces.for_policy(needed)
        known = needed if self._spaces is None else self._spaces.spec
        if known is not None and spaces.spec != known:
            whose = "policy" if needed is not None else "first simulator"
            raise ConflictError(
                f"open: expected the spaces of the {whose}, got ones with {known.differences(spaces.spec)}"
            )
        limits = self.limits
        most_environments = min(limits.max_environments, self._host.most_transitions)
        for what, got, most, settings in (
            (
                *("environments of one stream", opening.environments, most_environments),
                "external.max_environments and environments_per_actor",
            ),
            ("streams", len(self._sessions) + 1, limits.max_streams, "external.max_streams"),
        ):
            if got > most:
                raise ExhaustedError(
                    f"open: this actor takes at most {most} {what}, got {got}: connect to another actor, or raise "
                    f"{settings}"
                )
        return PlaySession(spaces, replace(opening, explore=opening.explore and self._host.explores), reply)

    def offer(self, session: PlaySession, arrival: Arrival) -> None:
        """Hand over a step."""
        with self._changed:
            if session not in self._sessions:
                return
            now = self._clock()
            session.arrived(now)
            arrivals = self._taken.arrivals
            if not arrivals:
                self._first_at = now
            arrivals.append((session, arrival))
            self._expected.discard(session)
            if self.helper is None or self.soon is None:
                if len(arrivals) == 1 or not self._expected:
                    self._changed.notify_all()
                return
            if len(arrivals) < len(self._sessions):
                if not self._help_comes:
                    self._help_comes = True
                    self.soon(self._help)
                return
        # No further stream can come.
        self._help()

    def _help(self) -> None:
        self._help_comes = False
        if self.helper is None or not self.helper():
            with self._changed:
                self._changed.notify_all()

    def note(self, error: Exception) -> None:
        """Record why a stream was refused or ended early."""
        with self._changed:
            # Simulators come before the actor has joined its run, and all of them leave at its end.
            if not isinstance(error, UnavailableError) or (self._host is not None and self._ending is None):
                self.problem = one_line(str(error), _MOST_BYTES)
            self._woken = True
            self._changed.notify_all()

    def leave(self, session: PlaySession) -> None:
        """Record the end of a stream."""
        with self._changed:
            if session in self._sessions:
                self._sessions.remove(session)
                self._rows -= session.count
                self._expected.discard(session)
                self._taken.left.append(session)
                self._changed.notify_all()

    def take(self, timeout_s: float | None = None) -> Taken:
        """Wait for steps, and return them. Returns nothing after `timeout_s` seconds, after `wake` and after `end`."""
        self.wait(timeout_s)
        return self.taken()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait as `take` does: for steps, and then at most `external.batch_wait_ms` for further streams."""
        wait_s = self.limits.batch_wait_ms / 1000
        with self._changed:
            self._changed.wait_for(lambda: bool(self._taken) or self._woken, timeout_s)
            self._woken = False
            if self._taken.arrivals and wait_s:
                now = self._clock()
                arrived = {session for session, _ in self._taken.arrivals}
                self._expected = {each for each in self._sessions - arrived if each.is_quick(now, wait_s)}
                while self._expected and (left := self._first_at + wait_s - self._clock()) > 0:
                    self._changed.wait(left)
                self._expected.clear()

    def taken(self) -> Taken:
        """The events since the last call. Does not wait."""
        with self._changed:
            taken, self._taken = self._taken, Taken()
            return taken

    def answer(self, answers: Sequence[tuple[PlaySession, wire.PlayAnswer]]) -> None:
        """Send the answers of a batch."""
        with self._changed:
            now = self._clock()
            for session, _ in answers:
                self.actions += session.count
                self.answer_seconds.observe(now - session.arrived_at)
                session.answered_at = now
        self.post(lambda: _reply_all(answers))

    def wake(self) -> None:
        """Make `take` return, because the acting loop may answer more steps now."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def refuse(self, spec: EnvironmentSpec, error: Exception) -> None:
        """End all streams with the learner's error about their spaces. The next simulator sets the spaces again."""
        with self._changed:
            if self._spaces is None or self._spaces.spec != spec:
                return
            self._spaces = None
            self.refused += len(self._sessions)
            self._end_sessions(Ending(ConflictError(str(error))))
            # The next acting loop must not see steps of these streams.
            self._sessions.clear()
            self._rows, self._taken = 0, Taken()

    def disconnect(self, error: Exception) -> None:
        """End all streams. Their simulators may connect again."""
        with self._changed:
            self._end_sessions(Ending(error))

    def end(self, error: Exception | None) -> None:
        """End all streams, and accept no more. error: the reason; None if the run is over."""
        with self._changed:
            if self._ending is None:
                self._ending = Ending(error)
                self._end_sessions(self._ending)
            self._woken = True
            self._changed.notify_all()

    def _end_sessions(self, ending: Ending) -> None:
        ended = [(session, ending) for session in self._sessions]
        self.post(lambda: _reply_all(ended))


def _reply_all(replies: Sequence[tuple[PlaySession, Reply]]) -> None:
    for session, reply in replies:
        session.reply(reply)
