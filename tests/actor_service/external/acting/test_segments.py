"""The segments of streams: the same as those of environments in the actor."""

import queue
import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from actor_service.acting.collector import SegmentCollector
from actor_service.acting.turns import PolicyTurns
from actor_service.environments import make_environments
from actor_service.external.acting.evaluation import MarkedEpisodes
from actor_service.external.acting.segments import Outbox, SegmentForm, StreamSegments
from actor_service.external.acting.stream import StreamEpisodes
from actor_service.external.streams.session import PlaySession
from actor_service.policies.policy import PolicySlot, load_policy
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from tests.actor_service.actor_policies import random_policy, recurrent_policy
from tests.actor_service.external.simulators import DEADLINE_S, SPEC, CartPoles, Simulator, door, opening, step
from tests.builders.clocks import ManualClock

SEED, LENGTH = 5, 16
SPAN = PolicySpan(0, 1, "int8-weights")


def form(spec: EnvironmentSpec = SPEC, transitions: int = LENGTH, state_size: int = 0, **changed: Any) -> SegmentForm:
    further = (f"state_{state_size}",) if state_size else ()
    return replace(SegmentForm(spec, further, state_size, transitions, 2**20, usual=4), **changed)


def of_the_actor(count: int, steps: int, frame_stack: int, state_size: int) -> list[Segment]:
    """Segments of environments in the actor, with greedy actions."""
    environments = make_environments("CartPole-v1", count)
    environments.spec = replace(environments.spec, frame_stack=frame_stack)
    slot = PolicySlot()
    policy = recurrent_policy(state_size, 4) if state_size else random_policy(4 * frame_stack, 2, seed=frame_stack)
    slot.put(load_policy(policy, environments.spec, count))
    collector = SegmentCollector(
        *(environments, PolicyTurns(slot), lambda policy, seen: policy(seen).argmax(axis=1), LENGTH, SEED),
        state_size=state_size,
    )
    found = [collector.collect(threading.Event()) for _ in range(steps // LENGTH)]
    return [segment for segment in found if segment is not None]


def of_a_stream(count: int, steps: int, frame_stack: int, state_size: int) -> list[Segment]:
    """The same, with the environments as a simulator."""
    spec = replace(SPEC, frame_stack=frame_stack)
    simulator, poles = Simulator(door(), opening(count, frame_stack=frame_stack)), CartPoles(count, SEED)
    shape = form(spec, LENGTH * count, state_size, streams=lambda: 20_000)
    stream = StreamEpisodes(simulator.session, shape, np.arange(count), MarkedEpisodes())
    policy = load_policy(
        recurrent_policy(state_size, 4) if state_size else random_policy(4 * frame_stack, 2, seed=frame_stack),
        spec,
        count,
    )
    segments: list[Segment] = []
    message = poles.first
    for _ in range(steps + 1):
        stream.arrive(simulator.session.accept(message), lambda session, segment: segments.append(segment))
        before = stream.states.copy()
        if state_size:
            np.copyto(policy.state, stream.states)
        actions = policy(stream.seen).argmax(axis=1)
        if state_size:
            stream.states[:] = policy.next_state
        stream.acted({}, SPAN, actions, before)
        message = poles.step(actions)
    return [replace(segment, sequence=number) for number, segment in enumerate(segments, 1)]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("frame_stack", "state_size"), [(1, 0), (3, 0), (1, 2)], ids=["plain", "stack", "memory"])
def test_a_simulator_gives_the_same_segments_as_environments_in_the_actor(
    count: int, frame_stack: int, state_size: int
) -> None:
    expected, found = (make(count, 10 * LENGTH, frame_stack, state_size) for make in (of_the_actor, of_a_stream))
    assert len(found) == len(expected) == 10
    assert any(segment.episodes for segment in expected)
    for one, other in zip(expected, found, strict=True):
        other.check(replace(SPEC, frame_stack=frame_stack))
        assert (one.sequence, one.spans, one.follows) == (other.sequence, other.spans, other.follows)
        assert one.episodes == other.episodes
        assert one.columns.keys() == other.columns.keys()
        for name in one.columns:
            if name == "observations" and one.sequence == 1:
                # Rows before the first episode are not used, as the ages say.
                continue
            np.testing.assert_array_equal(one.columns[name], other.columns[name], err_msg=name)


def segments_of(count: int = 1, clock: ManualClock | None = None, **changed: Any) -> tuple[PlaySession, StreamSegments]:
    session = Simulator(door(), opening(count)).session
    return session, StreamSegments(form(**changed), count, clock or ManualClock())


def act(segments: StreamSegments, span: PolicySpan = SPAN) -> None:
    segments.acted(np.zeros(1, np.int64), {}, span, np.zeros(1, np.int64), np.zeros((1, 0), np.float32))


def play(session: PlaySession, segments: StreamSegments, steps: int, value: float = 0.0) -> Segment | None:
    """The first segment that ends within these steps. The first call also sends the first observation."""
    found = None
    for _ in range(steps):
        arrival = session.accept(step(np.full((1, 4), value, np.float32)))
        found = found or segments.stepped(arrival, ~arrival.begins, ())
        act(segments)
    return found


@pytest.mark.parametrize(("streams", "old_s"), [(1, 1.0), (20, 1.0), (200, 10.0)])
def test_a_segment_ends_when_it_is_old_but_not_before_it_has_the_usual_steps(streams: int, old_s: float) -> None:
    clock = ManualClock()
    session, segments = segments_of(clock=clock, transitions=100, streams=lambda: streams)
    play(session, segments, 2)
    clock.now += 0.9 * old_s
    assert play(session, segments, 4) is None
    clock.now += 0.2 * old_s
    found = play(session, segments, 1)
    assert found is not None
    session, segments = segments_of(clock=clock, transitions=100, streams=lambda: streams)
    play(session, segments, 2)
    clock.now += 5 * old_s
    assert play(session, segments, 2) is None
    found = play(session, segments, 1)
    assert found is not None
    assert found.steps == 4


def test_streams_end_their_segments_at_different_times() -> None:
    clock = ManualClock()
    streams = [StreamSegments(form(transitions=1_000), 1, clock, place) for place in range(50)]
    session, _ = segments_of()
    begun, ended = clock.now, list[float]()
    for number in range(100):
        clock.now = begun + 0.02 * number
        for segments in list(streams):
            if play(session, segments, 1) is not None:
                ended.append(clock.now - begun)
                streams.remove(segments)
    counts = np.histogram(ended, bins=5, range=(1.0, 1.5))[0]
    assert counts.sum() == 50
    assert counts.max() <= 12


def test_a_cut_marks_the_last_complete_step_as_truncated_and_drops_the_open_action() -> None:
    session, segments = segments_of()
    play(session, segments, 3)
    cut = segments.end(cut=True)
    assert cut is not None
    assert cut.steps == 2
    np.testing.assert_array_equal(cut.truncated, [[False], [True]])
    assert not cut.terminated.any()
    cut.check(SPEC)
    assert segments.end(cut=True) is None


def test_a_cut_leaves_an_ended_episode_as_it_is() -> None:
    session, segments = segments_of()
    play(session, segments, 2)
    ended = session.accept(step(terminated=1))
    assert segments.stepped(ended, ~ended.begins, ()) is None
    cut = segments.end(cut=True)
    assert cut is not None
    assert cut.terminated[-1].all()
    assert not cut.truncated.any()


def test_a_policy_whose_action_has_no_result_is_in_no_span() -> None:
    session, segments = segments_of()
    play(session, segments, 3)
    arrival = session.accept(step())
    segments.stepped(arrival, ~arrival.begins, ())
    later = replace(SPAN, version=2)
    act(segments, later)
    found = segments.end(cut=True)
    assert found is not None
    assert found.spans == (SPAN,)


def test_a_segment_without_a_valid_step_is_dropped_and_the_next_one_does_not_follow() -> None:
    session, segments = segments_of()
    play(session, segments, 1)
    for _ in range(2):
        arrival = session.accept(step())
        segments.stepped(arrival, np.zeros(1, np.bool_), ())
        act(segments)
    assert segments.end() is None
    found = play(session, segments, LENGTH + 1)
    assert found is not None
    assert not found.follows


@dataclass(eq=False)
class Uploads:
    """An uploader that a test lets pass one item after the other."""

    def __post_init__(self) -> None:
        self.items: queue.SimpleQueue[Segment] = queue.SimpleQueue()
        self.passes, self.credits = threading.Semaphore(0), threading.Semaphore(0)

    def put(self, item: Segment, stop: threading.Event) -> None:
        self.passes.acquire(timeout=DEADLINE_S)
        self.items.put(item)

    def await_credit(self, stop: threading.Event) -> None:
        self.credits.acquire(timeout=DEADLINE_S)

    def wake(self) -> None:
        self.passes.release()
        self.credits.release()


def segment() -> Segment:
    session, segments = segments_of()
    play(session, segments, 3)
    found = segments.end()
    assert found is not None
    return replace(found, follows=True)


def outbox(
    uploads: Any, room: threading.Semaphore, sampled: bool = False, sequence: int = 0, streams: int = 1
) -> Outbox:
    box = Outbox(uploads, threading.Event(), 1, sampled, room.release, sequence, lambda: streams)
    box.start()
    return box


def test_segments_get_successive_numbers_and_follow_only_in_their_own_stream() -> None:
    uploads, room = Uploads(), threading.Semaphore(0)
    box, one, other = outbox(uploads, room, sequence=7), object(), object()
    for stream in (one, one, other, one):
        box.put(stream, segment())
    for _ in range(4):
        uploads.passes.release()
    sent = [uploads.items.get(timeout=DEADLINE_S) for _ in range(4)]
    assert [(each.sequence, each.follows) for each in sent] == [(8, False), (9, True), (10, False), (11, False)]
    box.close(DEADLINE_S)


def test_streams_wait_while_segments_wait_for_the_uploader() -> None:
    uploads, room = Uploads(), threading.Semaphore(0)
    box = outbox(uploads, room)
    assert box.has_room
    box.put(object(), segment())
    assert not box.has_room
    uploads.passes.release()
    assert room.acquire(timeout=DEADLINE_S)
    assert box.has_room
    box.close(DEADLINE_S)


def test_each_stream_may_have_a_waiting_segment() -> None:
    uploads, room = Uploads(), threading.Semaphore(0)
    box = outbox(uploads, room, streams=3)
    for number in range(3):
        assert box.has_room, number
        box.put(object(), segment())
    assert not box.has_room
    for _ in range(3):
        uploads.passes.release()
        uploads.items.get(timeout=DEADLINE_S)
    box.close(DEADLINE_S)
    assert room.acquire(blocking=False)
    assert not room.acquire(blocking=False), "only the first of the three segments made room"


def test_with_drawn_actions_streams_explore_only_with_credit() -> None:
    uploads, room = Uploads(), threading.Semaphore(0)
    box = outbox(uploads, room, sampled=True)
    assert not box.has_room
    uploads.credits.release()
    assert room.acquire(timeout=DEADLINE_S)
    assert box.has_room
    box.put(object(), segment())
    uploads.passes.release()
    uploads.items.get(timeout=DEADLINE_S)
    assert not box.has_room
    box.close(DEADLINE_S)


def test_a_closed_outbox_sends_what_it_has() -> None:
    uploads, room = Uploads(), threading.Semaphore(0)
    box = outbox(uploads, room)
    box.put(object(), segment())
    uploads.passes.release()
    box.close(DEADLINE_S)
    assert uploads.items.qsize() == 1
