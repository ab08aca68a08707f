"""The door between the server and the acting loop."""

import threading
import time
from typing import Any

import numpy as np
import pytest

from actor_service.external.streams.door import Door, Host, Taken
from actorq import wire
from actorq.config.sections import ExternalConfig
from actorq.domain.environments import NO_ARGUMENTS
from actorq.domain.spaces import ArraySpec
from actorq.errors import ActorQError, ConflictError, ExhaustedError, UnavailableError
from tests.actor_service.external.simulators import DEADLINE_S, NAME, SPEC, Simulator, door, opening, step
from tests.builders.clocks import ManualClock


def quick(now: float, *simulators: Simulator) -> None:
    """Make the door expect the next step of each simulator soon, because it usually takes a millisecond."""
    for each in simulators:
        each.session.step_s, each.session.answered_at = 0.001, now


def test_the_first_simulator_sets_the_spaces_of_all() -> None:
    at = door()
    found = threading.Thread(target=lambda: specs.append(at.await_spec()))
    specs: list[Any] = []
    found.start()
    first = Simulator(at, opening(3))
    found.join(DEADLINE_S)
    assert specs == [SPEC]
    assert first.ready == wire.PlayReady(wire.PROTOCOL, "run", NAME, 60.0)
    Simulator(at, opening(2))
    assert (at.streams, at.environments) == (2, 5)
    with pytest.raises(ConflictError, match=r"the spaces of the first simulator, got ones with sizes \(3,\) instead"):
        Simulator(at, opening(sizes=(3,)))
    assert at.refused == 1
    assert "instead of" in at.problem


@pytest.mark.parametrize(
    ("given", "kind", "error"),
    [
        (opening(protocol=2), ConflictError, "expected 1, got 2: make the simulator's stubs again"),
        (opening(protocol=0), ConflictError, "expected 1, got 0"),
        (opening(5), ExhaustedError, "at most 4 environments of one stream, got 5"),
        (opening(actions=ArraySpec((), "int64"), sizes=()), ActorQError, "open.actions"),
    ],
)
def test_a_simulator_that_does_not_fit_is_refused(given: wire.PlayOpening, kind: type[Exception], error: str) -> None:
    at = door(max_environments=4)
    with pytest.raises(kind, match=error):
        Simulator(at, given)
    assert (at.streams, at.refused) == (0, 1)


def test_a_stream_has_at_most_the_environments_of_one_credit() -> None:
    at = Door(ExternalConfig())
    at.admit(Host(NAME, "run", NO_ARGUMENTS, most_transitions=16))
    Simulator(at, opening(16))
    with pytest.raises(ExhaustedError, match="at most 16 environments of one stream, got 17"):
        Simulator(at, opening(17))


def test_the_number_of_streams_is_limited() -> None:
    at = door(max_streams=2)
    first, _ = Simulator(at), Simulator(at)
    with pytest.raises(ExhaustedError, match="at most 2 streams, got 3: connect to another actor, or raise external"):
        Simulator(at)
    first.leave()
    Simulator(at)


def test_before_its_run_an_actor_accepts_nobody_and_after_it_neither() -> None:
    at = door(admitted=False)
    with pytest.raises(UnavailableError, match="has not joined its run yet: connect again"):
        Simulator(at)
    at.admit(Host(NAME))
    playing = Simulator(at)
    at.end(UnavailableError("the actor ends: connect again"))
    assert isinstance(playing.ending().error, UnavailableError)
    with pytest.raises(UnavailableError, match="the actor ends"):
        Simulator(at)
    assert at.await_spec() is None


def test_after_the_end_of_the_run_simulators_have_no_reason_to_come_back() -> None:
    at = door()
    playing = Simulator(at)
    at.end(None)
    assert playing.ending().error is None
    with pytest.raises(ConflictError, match="the run is over"):
        Simulator(at)


def test_steps_of_quick_simulators_become_one_batch() -> None:
    at = door(batch_wait_ms=1_000)
    first, second = Simulator(at), Simulator(at)
    quick(time.monotonic(), first, second)
    taken: list[Taken] = []
    taking = threading.Thread(target=lambda: taken.append(at.take(DEADLINE_S)))
    taking.start()
    first.offer(step())
    assert taking.is_alive(), "it does not wait for the second simulator"
    second.offer(step())
    taking.join(DEADLINE_S)
    assert {session for session, _ in taken[0].arrivals} == {first.session, second.session}


def test_the_servers_thread_helps_at_once_when_all_streams_have_sent_a_step() -> None:
    at, helped, later = door(), list[int](), list[Any]()
    at.soon = later.append

    def helper() -> bool:
        helped.append(len(at.taken().arrivals))
        return True

    at.helper = helper
    first = Simulator(at)
    first.offer(step())
    assert (helped, later) == ([1], [])
    second = Simulator(at)
    first.offer(step())
    assert (helped, len(later)) == ([1], 1)
    second.offer(step())
    assert (helped, len(later)) == ([1, 2], 1)
    later.pop()()
    assert helped == [1, 2, 0]


def test_nobody_waits_for_a_simulator_that_has_stopped() -> None:
    clock = ManualClock()
    at = Door(ExternalConfig(batch_wait_ms=1_000), clock)
    at.admit(Host(NAME))
    first, frozen = Simulator(at), Simulator(at)
    quick(clock.now, first, frozen)
    clock.now += 2.5
    first.offer(step())
    # The clock stands still, so a wait would never end.
    assert [session for session, _ in at.take(DEADLINE_S).arrivals] == [first.session]


def test_a_simulator_that_leaves_is_not_waited_for() -> None:
    at = door(batch_wait_ms=1_000)
    first, second = Simulator(at), Simulator(at)
    quick(time.monotonic(), first, second)
    taken: list[Taken] = []
    taking = threading.Thread(target=lambda: taken.append(at.take(DEADLINE_S)))
    taking.start()
    first.offer(step())
    second.leave()
    taking.join(DEADLINE_S)
    assert len(taken[0].arrivals) == 1
    assert taken[0].left == [second.session]


def test_a_wake_and_a_timeout_end_the_wait() -> None:
    at = door()
    assert not at.take(0.001)
    at.wake()
    assert not at.take(DEADLINE_S)


def test_refused_spaces_end_all_streams_and_the_next_simulator_sets_others() -> None:
    at = door()
    first, second = Simulator(at), Simulator(at)
    first.offer(step())
    at.refuse(SPEC, ConflictError("environment: expected the run's"))
    for each in (first, second):
        assert "expected the run's" in str(each.ending().error)
    # These streams are gone, whatever they still send.
    second.offer(step())
    first.leave()
    assert (at.streams, at.environments) == (0, 0)
    assert not at.take(0.001).arrivals
    other = Simulator(at, opening(sizes=(3,)))
    at.refuse(SPEC, ConflictError("an old answer about the first spaces"))
    assert at.streams == 1
    assert other.replies.empty()


def test_a_disconnected_simulator_may_come_back() -> None:
    at = door()
    playing = Simulator(at)
    at.disconnect(UnavailableError("once"))
    assert isinstance(playing.ending().error, UnavailableError)
    playing.leave()
    Simulator(at)


def test_counts_actions_and_measures_the_time_to_each_answer() -> None:
    clock = ManualClock(100.0)
    at = Door(ExternalConfig(batch_wait_ms=0.0), clock)
    at.admit(Host(NAME))
    slow, quick_one = Simulator(at, opening(3)), Simulator(at)
    slow.offer(step(np.zeros((3, 4), np.float32)))
    clock.now += 2.0
    quick_one.offer(step())
    at.take(DEADLINE_S)
    clock.now += 0.002
    answers = [(each.session, answer(each.session.count)) for each in (slow, quick_one)]
    at.answer(answers)
    assert at.actions == 4
    buckets, total = at.answer_seconds.snapshot()
    counts = dict(buckets)
    assert (counts[0.001], counts[0.0025], counts[1.0], counts[5.0]) == (0, 1, 1, 2)
    assert total == pytest.approx(2.004)


def answer(count: int) -> wire.PlayAnswer:
    return wire.PlayAnswer(np.ones(count, np.int64), np.ones(count, np.int64), "int8", np.zeros(count, np.bool_))
