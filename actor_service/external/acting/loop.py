"""The acting loop for simulators: answers the steps of all streams in batches."""

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actor_service.acting.parts import greedy_actions
from actor_service.counts import ActorCounts
from actor_service.external.acting.evaluation import MarkedEpisodes
from actor_service.external.acting.exploration import Columns, RowExploration
from actor_service.external.acting.pace import PolicyPace
from actor_service.external.acting.segments import Outbox, SegmentForm
from actor_service.external.acting.sizes import SizedPolicy, chunks, padded
from actor_service.external.acting.stream import StreamEpisodes
from actor_service.external.streams.door import Door
from actor_service.external.streams.session import PlaySession
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from actorq import wire
from actorq.domain.trajectory import PolicySpan, Segment

# Longest mean time of a batch that the server's thread may answer. Its other calls wait for so long.
_QUICK_S = 0.005
# Weight of the newest batch in this mean.
_NEWEST = 0.2

Act = Callable[[OnnxPolicy, NDArray[Any], NDArray[np.int64]], tuple[NDArray[Any], Columns]]


class _Rows(NamedTuple):
    """Some environments of a stream that get their actions from one call. rows: bool[n]; None for all."""

    stream: StreamEpisodes
    rows: NDArray[np.bool_] | None

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values of these environments."""
        return values if self.rows is None else values[self.rows]


@dataclass(eq=False)
class SimulatorActing:
    """Answers simulators with the newest policy until `stop` is set. One thread calls `run`.

    While a batch takes little time, the server's thread answers the steps itself (`Door.helper`): a step would need two
    changes of threads otherwise. Both threads take turns.

    outbox: receives segments; None if nobody stores them, and then no stream explores.
    explore: chooses exploring actions. evaluate: chooses the actions of evaluations; None for greedy ones.
    environment_steps: explored transitions.
    """

    door: Door
    slot: PolicySlot
    form: SegmentForm
    explore: RowExploration
    marked: MarkedEpisodes
    pace: PolicyPace
    outbox: Outbox | None
    counts: ActorCounts = field(default_factory=ActorCounts)
    evaluate: Act | None = None

    def __post_init__(self) -> None:
        self.environment_steps = 0
        self._streams: dict[PlaySession, StreamEpisodes] = {}
        self._waiting: dict[StreamEpisodes, None] = {}
        self._free: list[int] = []
        self._places = 0
        self._acting: OnnxPolicy | None = None
        self._turn = threading.Lock()
        self._ended = False
        self._batch_s = math.inf
        self._fault: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        """Answer steps until `stop` is set, then end the segments of all streams."""
        timeout_s: float | None = None
        self.door.helper = self._help
        try:
            while not stop.is_set():
                self.door.wait(timeout_s)
                with self._turn:
                    timeout_s = self._round()
        finally:
            self.door.helper = None
            with self._turn:
                self._ended = True
        for session in list(self._streams):
            self._leave(session)

    def _help(self) -> bool:
        """Answer steps on the server's thread. Returns whether it has done so."""
        if self._batch_s > _QUICK_S or not self._turn.acquire(blocking=False):
            return False
        try:
            if self._ended:
                return False
            timeout_s = self._round()
        except BaseException as error:
            self._fault, timeout_s = error, 0.0
        finally:
            self._turn.release()
        if timeout_s is not None:
            # The thread of `run` waits so long, or fails.
            self.door.wake()
        return True

    def _round(self) -> float | None:
        """Record and answer all steps so far. Returns the seconds until more may be answered; None if unknown."""
        if self._fault is not None:
            raise self._fault
        taken = self.door.taken()
        for session, arrival in taken.arrivals:
            stream = self._streams.get(session) or self._enter(session)
            explored = stream.arrive(arrival, self._send)
            self.environment_steps += explored
            self.marked.explored += explored
            self._waiting[stream] = None
        for session in taken.left:
            self._leave(session)
        return self._answer()

    def _enter(self, session: PlaySession) -> StreamEpisodes:
        while len(self._free) < session.count:
            self._free.append(self._places)
            self._places += 1
        # The lowest numbers first, so that few environments have the rates of different exploration.
        self._free.sort()
        places, self._free = self._free[: session.count], self._free[session.count :]
        stream = StreamEpisodes(session, self.form, np.array(places, np.int64), self.marked)
        self._streams[session] = stream
        return stream

    def _leave(self, session: PlaySession) -> None:
        stream = self._streams.pop(session, None)
        if stream is None:
            return
        self._waiting.pop(stream, None)
        self._free += stream.places.tolist()
        for _ in range(stream.leave(self._send)):
            self.counts.cut_episodes.add()

    def _send(self, session: PlaySession, segment: Segment) -> None:
        if self.outbox is not None:
            self.outbox.put(session, segment)

    def _answer(self) -> float | None:
        """Answer the waiting streams that may act. Returns the seconds until more may act; None if unknown."""
        policy = self.slot.peek()
        if policy is None or not self._waiting:
            return None
        assert isinstance(policy, SizedPolicy)
        wait_s = self.pace.wait_s(policy)
        explores = wait_s == 0.0 and self.outbox is not None and self.outbox.has_room
        if wait_s > 0.0:
            # The learner may need these steps for the newer policy. Other streams still owe the result of an action.
            for stream in self._waiting:
                stream.flush(self._send)
        chosen = [stream for stream in self._waiting if explores or not stream.explores]
        if chosen:
            for stream in chosen:
                del self._waiting[stream]
            began = time.perf_counter()
            self._act(policy, chosen)
            took = time.perf_counter() - began
            self._batch_s = took if math.isinf(self._batch_s) else (1 - _NEWEST) * self._batch_s + _NEWEST * took
        return wait_s or None

    def _act(self, policy: SizedPolicy, chosen: Sequence[StreamEpisodes]) -> None:
        """Compute the actions of these streams, and send them."""
        exploring, greedy, evaluating = self._grouped(chosen)
        before = {each.stream: each.stream.states.copy() for each in exploring} if self.form.state_size else {}
        further: dict[StreamEpisodes, dict[str, NDArray[Any]]] = {}
        if exploring:
            if policy is not self._acting:
                self._acting = policy
                self.slot.activated(policy.descriptor)
            further = self._compute(policy, exploring, self.explore, self.explore.columns)
            self.pace.acted(policy, sum(each.stream.session.count for each in exploring))
        if greedy:
            self._compute(policy, greedy, self._greedy)
        if evaluating and (pinned := self.marked.policy) is not None:
            self._compute(pinned, evaluating, self.evaluate or self._greedy)
        span = PolicySpan(0, policy.descriptor.version, policy.descriptor.effective_scheme)
        for stream in {each.stream: None for each in exploring}:
            columns = further[stream]
            stream.acted(columns, span, columns.pop("actions", stream.actions), before.get(stream, stream.states))
        scheme = policy.descriptor.effective_scheme
        self.door.answer([(stream.session, _answer_of(stream, scheme)) for stream in chosen])

    def _grouped(self, chosen: Sequence[StreamEpisodes]) -> tuple[list[_Rows], list[_Rows], list[_Rows]]:
        """The environments that explore, that a policy server answers, and that are evaluated."""
        exploring, greedy, evaluating = list[_Rows](), list[_Rows](), list[_Rows]()
        for stream in chosen:
            if not stream.session.explore:
                greedy.append(_Rows(stream, None))
            elif not stream.evaluates:
                exploring.append(_Rows(stream, None))
            else:
                evaluating.append(_Rows(stream, stream.evaluating))
                if stream.explores:
                    exploring.append(_Rows(stream, ~stream.evaluating))
        return exploring, greedy, evaluating

    def _compute(
        self, policy: SizedPolicy, parts: Sequence[_Rows], act: Act, columns: Collection[str] = ()
    ) -> dict[StreamEpisodes, dict[str, NDArray[Any]]]:
        """Write the actions of these environments to their streams. Returns the further columns of each stream."""
        observations = _joined([each.of(each.stream.seen) for each in parts])
        places = _joined([each.of(each.stream.places) for each in parts])
        has_state = policy.state_size > 0
        # A copy, because the next states are written to it.
        states = np.concatenate([each.of(each.stream.states) for each in parts])
        if policy.on_observations is not None:
            policy.observed(observations, states)
        actions = np.empty((len(places), *self.form.spec.actions.shape), self.form.spec.actions.dtype)
        found: dict[str, NDArray[Any]] = {}
        for start, stop, size in chunks(len(places)):
            session = policy.of_size(size)
            if has_state:
                np.copyto(session.state, padded(states[start:stop], size))
            acted, further = act(session, padded(observations[start:stop], size), places[start:stop])
            actions[start:stop] = acted
            for name in columns:
                values = further[name]
                found.setdefault(name, np.empty((len(places), *values.shape[1:]), values.dtype))[start:stop] = values
            if has_state:
                states[start:stop] = session.next_state[: stop - start]
        return _scattered(parts, policy, actions, states if has_state else None, found)

    def _greedy(
        self, policy: OnnxPolicy, observations: NDArray[Any], places: NDArray[np.int64]
    ) -> tuple[NDArray[Any], Columns]:
        return greedy_actions(self.form.spec, policy, policy(observations))[: len(places)], {}


def _joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The rows of all parts. The result of a single part is that part."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _scattered(
    parts: Sequence[_Rows],
    policy: SizedPolicy,
    actions: NDArray[Any],
    states: NDArray[np.float32] | None,
    further: Columns,
) -> dict[StreamEpisodes, dict[str, NDArray[Any]]]:
    """Give each stream its rows of a batch. Rows of a column that were not computed are 0."""
    columns: dict[StreamEpisodes, dict[str, NDArray[Any]]] = {}
    start, version = 0, policy.descriptor.version
    for stream, rows in parts:
        count = stream.session.count
        if rows is None:
            # Parts of the batch's arrays, because nothing changes these.
            stop = start + count
            stream.actions, stream.versions = actions[start:stop], _all_of(version, count)
            own = {name: values[start:stop] for name, values in further.items()}
        else:
            stop = start + int(np.count_nonzero(rows))
            stream.actions, stream.versions = stream.actions.copy(), stream.versions.copy()
            stream.actions[rows], stream.versions[rows] = actions[start:stop], version
            own = {name: np.zeros((count, *values.shape[1:]), values.dtype) for name, values in further.items()}
            for name, values in further.items():
                own[name][rows] = values[start:stop]
        if states is not None:
            stream.states[slice(None) if rows is None else rows] = states[start:stop]
        columns[stream] = own
        start = stop
    return columns


@lru_cache(maxsize=256)
def _all_of(version: int, count: int) -> NDArray[np.int64]:
    """The version for each of `count` environments; read-only, because answers share it."""
    versions = np.full(count, version, np.int64)
    versions.setflags(write=False)
    return versions


def _answer_of(stream: StreamEpisodes, scheme: str) -> wire.PlayAnswer:
    return wire.PlayAnswer(stream.actions, stream.versions, scheme, stream.evaluating)
