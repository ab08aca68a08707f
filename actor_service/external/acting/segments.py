"""Builds the segments of one stream from its steps, and sends the segments of all streams in sequence."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actor_service.acting.collector import fitting_segment_length
from actor_service.external.streams.session import Arrival
from actor_service.uploader import Uploader
from actorq.domain.columns import Per, columns_of, state_column
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import Episode, PolicySpan, Segment

_OLDEST = 255
_LEAST_OLD_S, _MOST_SEGMENTS_PER_S = 1.0, 20.0
# Multiples of it, modulo 1, are spread evenly.
_GOLDEN = (math.sqrt(5) - 1) / 2
# Columns with the values of a step.
_NAMES = "actions", "rewards", "terminated", "truncated", "valid"


@dataclass(frozen=True)
class SegmentForm:
    """The form of a run's segments.

    further: names of the columns of the exploration, without "actions", and of states.
    state_size: numbers in a policy's state.
    transitions, max_bytes: of a segment at most; a credit of the learner is for so many transitions.
    usual: steps after which a segment ends once it is `old_s` seconds old. streams: returns the number of open streams.
    """

    spec: EnvironmentSpec
    further: tuple[str, ...]
    state_size: int
    transitions: int
    max_bytes: int
    usual: int
    streams: Callable[[], int] = lambda: 1

    @property
    def old_s(self) -> float:
        """Seconds after which a segment is old: more with many streams, because each segment costs milliseconds."""
        return max(_LEAST_OLD_S, self.streams() / _MOST_SEGMENTS_PER_S)

    def longest(self, environments: int) -> int:
        """Most steps of a segment of a stream with so many environments."""
        steps = max(1, self.transitions // environments)
        return fitting_segment_length(self.spec, environments, steps, self.max_bytes, self.further)


class StreamSegments:
    """Builds the segments [T, n] of one stream, for the acting loop.

    Each step is recorded in two parts: `acted` with the action, `stepped` with its result. A step that `acted` did not
    begin is not recorded.

    place: of its first environment among those of all streams. Streams of different places end their segments at
        different times, so that the uploader does not get all of them at once.
    """

    def __init__(
        self, form: SegmentForm, environments: int, clock: Callable[[], float] = time.monotonic, place: int = 0
    ) -> None:
        self._form, self._count, self._clock = form, environments, clock
        # From 1 to 1.5.
        self._patience = 1 + (place * _GOLDEN) % 1 / 2
        self._longest = form.longest(environments)
        self._columns = [each for each in columns_of(form.spec, form.further) if each.per is Per.STEP]
        observed = form.spec.observations
        # The observations of a policy's stack: the newest one last.
        blank = np.zeros((environments, *observed.shape), observed.dtype)
        self._newest = deque([blank] * form.spec.frame_stack, maxlen=form.spec.frame_stack)
        # The values of each step in the order of `_NAMES`, and of further columns by name. Short arrays are joined at
        # the end, which takes less time than a write into long ones.
        self._rows: list[tuple[NDArray[Any], ...]] = []
        self._further: list[Mapping[str, NDArray[Any]]] = []
        self._acts = False
        # Whether the next segment follows the last one.
        self._follows = False

    @property
    def steps(self) -> int:
        """Recorded steps of the segment that has not ended."""
        return len(self._rows)

    def observed(self, observations: NDArray[Any]) -> None:
        """Record the observations before the next action, [n, *observation]."""
        if self._acts:
            self._observations.append(observations)
        self._newest.append(observations)

    def acted(
        self,
        actions: NDArray[Any],
        further: Mapping[str, NDArray[Any]],
        span: PolicySpan,
        lengths: NDArray[np.int64],
        states: NDArray[np.float32],
    ) -> None:
        """Record an action [n, *action] for the newest observations.

        span: the acting policy. lengths: int64[n], steps since each environment's reset. states: [n, S], before.
        """
        if not self._rows:
            self._begin(lengths, states)
        self._action = actions, further
        last = self._spans[-1] if self._spans else None
        if last is None or (last.version, last.scheme) != (span.version, span.scheme):
            # The action may have no result, so it may belong to the step before the last `stepped`.
            self._spans.append(replace(span, first_step=len(self._rows)))
        self._acts = True

    def stepped(self, arrival: Arrival, valid: NDArray[np.bool_], episodes: tuple[Episode, ...]) -> Segment | None:
        """Record the result of the last action, and return the segment if it ends here.

        valid: bool[n], see `Segment`. episodes: the exploring episodes that ended with this step.
        """
        if not self._acts:
            self.observed(arrival.observations)
            return None
        rewards, terminated, truncated = arrival.rewards, arrival.terminated, arrival.truncated
        if np.count_nonzero(valid) < self._count:
            rewards, terminated, truncated = np.where(valid, rewards, 0.0), terminated & valid, truncated & valid
        actions, further = self._action
        self._rows.append((actions, rewards, terminated, truncated, valid))
        self._further.append(further)
        if episodes:
            self._episodes += episodes
        self.observed(arrival.observations)
        self._acts = False
        steps = len(self._rows)
        old = steps >= self._form.usual and self._clock() - self._begun_at >= self._patience * self._form.old_s
        return self.end() if old or steps == self._longest else None

    def end(self, cut: bool = False, gap: bool = False) -> Segment | None:
        """End the segment. None if it has no valid step. An action without a result is dropped.

        cut: mark the last step of running episodes as truncated. gap: the next segment does not follow this one.
        """
        rows, further, self._rows, self._further, self._acts = self._rows, self._further, [], [], False
        steps = len(rows)
        follows, self._follows = self._follows, bool(steps) and not (cut or gap)
        if not steps:
            # Without steps, the next segment still follows the last one, unless there is a gap.
            self._follows = follows and not (cut or gap)
            return None
        given = dict(zip(_NAMES, zip(*rows, strict=True), strict=True))
        arrays = {
            each.name: self._joined(given.get(each.name) or [of[each.name] for of in further], each.dtype)
            for each in self._columns
        }
        if not arrays["valid"].any():
            self._follows = False
            return None
        if cut:
            last = arrays["valid"][-1] & ~(arrays["terminated"][-1] | arrays["truncated"][-1])
            arrays["truncated"][-1] |= last
        observations = self._joined(self._observations, self._form.spec.observations.dtype)
        columns = {"observations": observations, **arrays, **self._of_segment}
        spans = tuple(span for span in self._spans if span.first_step < steps)
        return Segment(0, columns, spans, tuple(self._episodes), follows=follows)

    def _joined(self, values: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
        """Arrays [n, ...] of T steps as [T, n, ...]."""
        joined = np.concatenate(values).astype(dtype, copy=False)
        return joined.reshape(len(values), self._count, *joined.shape[1:])

    def _begin(self, lengths: NDArray[np.int64], states: NDArray[np.float32]) -> None:
        self._observations = [*self._newest]
        self._of_segment: dict[str, NDArray[Any]] = {"ages": np.minimum(lengths, _OLDEST).astype(np.uint8)}
        if self._form.state_size:
            self._of_segment[state_column(self._form.state_size)] = states.copy()
        self._spans: list[PolicySpan] = []
        self._episodes: tuple[Episode, ...] = ()
        self._begun_at = self._clock()


@dataclass(eq=False)
class Outbox:
    """Numbers the segments of all streams and gives them to the uploader, on its own thread.

    The acting loop never waits for the network: it explores only while `has_room`.

    capacity: queued segments; at least one for each stream may wait, because many streams can end one at once.
    on_room: called when there is room again. streams: returns the number of open streams.
    sequence: number of the last segment that the learner has stored.
    sampled: explore only while the learner has granted credit, because on-policy data lose their value while they wait.
    """

    uploader: Uploader
    stop: threading.Event
    capacity: int
    sampled: bool
    on_room: Callable[[], None]
    sequence: int = 0
    streams: Callable[[], int] = lambda: 1
    _items: deque[tuple[object, Segment]] = field(init=False, default_factory=deque)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._credit = not self.sampled
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether the streams may explore."""
        return self._credit and len(self._items) < max(self.capacity, self.streams())

    def put(self, stream: object, segment: Segment) -> None:
        """Queue a segment of a stream. Never waits."""
        with self._changed:
            self._items.append((stream, segment))
            self._changed.notify_all()

    def close(self, patience_s: float) -> None:
        """Send what is queued, and wait for the thread for at most `patience_s` seconds. Call it once `stop` is set."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.uploader.wake()
        if self._thread.is_alive():
            self._thread.join(patience_s)

    def _run(self) -> None:
        before: object = None
        while True:
            if self.sampled and not self._credit:
                self.uploader.await_credit(self.stop)
                self._credit = True
                self.on_room()
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._items)
                if not self._items:
                    return
                stream, segment = self._items[0]
            self.sequence += 1
            follows = segment.follows and stream is before
            self.uploader.put(replace(segment, sequence=self.sequence, follows=follows), self.stop)
            before = stream
            with self._changed:
                had_room = self.has_room
                self._items.popleft()
                self._credit = not self.sampled
            # The acting loop wakes only if it may wait: its thread would take the turn of the server's.
            if self.has_room and not had_room:
                self.on_room()
