"""The episodes of one stream, for the acting loop: lengths, returns, stacks, states, evaluations and segments."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.acting.frame_stack import FrameStack
from actor_service.external.acting.evaluation import MarkedEpisodes
from actor_service.external.acting.segments import SegmentForm, StreamSegments
from actor_service.external.streams.session import Arrival, PlaySession
from actorq.domain.trajectory import Episode, PolicySpan, Segment


class StreamEpisodes:
    """The running episodes of one stream.

    seen: the policy's observations before the next action, [n, ...]. states: [n, S], before the next action.
    places: int64[n], the numbers of its environments among those of all streams.
    evaluating: bool[n], whether each episode is an evaluation. actions, versions: of the last answer, [n, ...]. None of
        the three is changed in place, because answers and segments keep them.
    """

    def __init__(
        self, session: PlaySession, form: SegmentForm, places: NDArray[np.int64], marked: MarkedEpisodes
    ) -> None:
        count, spec = session.count, form.spec
        self.session, self.places = session, places
        self._marked, self._form = marked, form
        self.seen: NDArray[Any] = np.zeros((count, *spec.policy_observations.shape), spec.observations.dtype)
        self.states = np.zeros((count, form.state_size), np.float32)
        self.evaluating = np.zeros(count, np.bool_)
        self.actions = np.zeros((count, *spec.actions.shape), spec.actions.dtype)
        self.versions = np.zeros(count, np.int64)
        self._stack = FrameStack(spec, count)
        self._evaluations = 0
        self._lengths = np.zeros(count, np.int64)
        self._returns = np.zeros(count)
        # Whether the last ended episode of each environment was an evaluation.
        self._evaluated = np.zeros(count, np.bool_)
        self._running = np.zeros(count, np.bool_)
        self._all, self._none = np.ones(count, np.bool_), np.zeros(count, np.bool_)
        self._segments = StreamSegments(form, count, place=int(places[0])) if session.explore else None

    @property
    def explores(self) -> bool:
        """Whether an answer gives training data: at least one exploring environment."""
        return self.session.explore and self._evaluations < self.session.count

    @property
    def evaluates(self) -> bool:
        """Whether at least one episode is an evaluation."""
        return self._evaluations > 0

    def arrive(self, arrival: Arrival, send: Callable[[PlaySession, Segment], None]) -> int:
        """Record a step. Segments that end with it go to `send`. Returns the number of explored transitions."""
        begins, ends, some_end = arrival.begins, arrival.ends, arrival.some_end
        self._lengths += 1
        self._returns += arrival.rewards
        evaluated, valid, steps = self._none, self._all, 0
        if arrival.some_begin:
            self._lengths[begins] = 0
            self._returns[begins] = 0.0
            self.states[begins] = 0.0
            valid = ~begins
        if self._evaluations:
            evaluated = self.evaluating & ~begins
            valid = valid & ~evaluated
            steps = int(np.count_nonzero(evaluated))
            self._marked.steps += steps
        episodes = self._ended(arrival, ends, evaluated) if some_end else ()
        if self._segments is not None:
            segment = self._segments.stepped(arrival, valid, episodes)
            if segment is not None:
                send(self.session, segment)
        self._running = ~ends if some_end else self._all
        if some_end:
            self._evaluated = np.where(ends, self.evaluating, self._evaluated)
            self._mark(self.evaluating & ~ends)
        if self.session.explore and arrival.some_begin:
            self._claim(begins, send)
        self.seen = self._stack.push(arrival.observations, self._lengths)
        if not self.session.explore:
            return 0
        return self.session.count if valid is self._all else int(np.count_nonzero(valid))

    def _claim(self, begins: NDArray[np.bool_], send: Callable[[PlaySession, Segment], None]) -> None:
        """Make some of the episodes that begin an evaluation."""
        evaluating = self.evaluating.copy()
        for index in np.flatnonzero(begins & ~self._evaluated):
            evaluating[index] = self._marked.claim()
        self._mark(evaluating)
        self._evaluated &= ~begins
        if self._segments is not None and not self.explores:
            # Steps of an evaluation are no training data, so the stream records nothing until it explores again.
            self._send(self._segments.end(gap=True), send)

    def _mark(self, evaluating: NDArray[np.bool_]) -> None:
        self._evaluations = int(np.count_nonzero(evaluating))
        self.evaluating = evaluating if self._evaluations else self._none

    def acted(self, further: Mapping[str, NDArray[Any]], span: PolicySpan, stored: NDArray[Any], before: Any) -> None:
        """Record the answer that an exploring stream gets now.

        further: columns, [n, ...]. span: the exploring policy. stored: the actions as segments have them, [n, *action].
        before: the states before the action.
        """
        assert self._segments is not None
        self._segments.acted(stored, further, span, self._lengths, before)

    def flush(self, send: Callable[[PlaySession, Segment], None]) -> None:
        """End the segment before a wait for a newer policy."""
        if self._segments is not None and self._segments.steps:
            self._send(self._segments.end(), send)

    def leave(self, send: Callable[[PlaySession, Segment], None]) -> int:
        """End the stream. Its running episodes count as truncated. Returns their number."""
        for _ in range(self._evaluations):
            self._marked.lost()
        if self._segments is not None:
            self._send(self._segments.end(cut=True), send)
        return int(np.count_nonzero(self._running & (self._lengths > 0)))

    def _send(self, segment: Segment | None, send: Callable[[PlaySession, Segment], None]) -> None:
        if segment is not None:
            send(self.session, segment)

    def _ended(self, arrival: Arrival, ends: NDArray[np.bool_], evaluated: NDArray[np.bool_]) -> tuple[Episode, ...]:
        """The exploring episodes that end with a step. Those of an evaluation are recorded there."""
        found: list[Episode] = []
        for index in np.flatnonzero(ends):
            success = None if arrival.successes is None else bool(arrival.successes[index])
            episode = Episode(float(self._returns[index]), int(self._lengths[index]), int(index), success)
            if evaluated[index]:
                self._marked.ended(episode)
            else:
                found.append(episode)
        return tuple(found)
