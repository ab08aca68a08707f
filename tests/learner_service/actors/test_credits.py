"""How the limiter's admission is shared out over the streams."""

import asyncio
import threading

import pytest

from actorq.errors import ConflictError, UnavailableError
from learner_service.actors.credits import ActorStream, Credits
from learner_service.actors.members import Member
from learner_service.replay import RateLimiter
from tests.builders.clocks import ManualClock
from tests.learner_service.learner_parts import on_a_loop
from tests.learner_service.simulated_loop import SimulatedLoop, credits_on

SEGMENT = 8


def stream(name: str, acknowledged: int = 0) -> ActorStream:
    return ActorStream(Member(name, "actor", 0, incarnation=1), acknowledged)


def limiter_for(segments: int) -> RateLimiter:
    """Admits so many segments before the first sample; each segment may be sampled once per transition."""
    return RateLimiter(1.0, min_size_to_sample=SEGMENT, error_buffer=SEGMENT * (segments - 1.0), clock=ManualClock())


def spend(credits_: Credits, source: ActorStream, sequence: int) -> bool:
    """A segment comes in. Returns False when it has no credit."""
    try:
        credits_.spend(source, sequence, lambda: 1, lambda: None)
    except ConflictError:
        return False
    return True


def arrive(credits_: Credits, limiter: RateLimiter, source: ActorStream, sequence: int) -> None:
    """A segment comes in and is stored as soon as it has its reservation."""

    def store() -> None:
        limiter.insert(SEGMENT, SEGMENT)
        credits_.stored(source, sequence)

    if credits_.spend(source, sequence, lambda: 1, store):
        store()


def outstanding(limiter: RateLimiter, segments: int) -> int:
    """Segments that are reserved now of the `segments` that the limiter admits, found by reserving the rest."""
    free = 0
    while limiter.try_reserve(SEGMENT):
        free += 1
    for _ in range(free):
        limiter.release(SEGMENT)
    return segments - free - limiter.inserts // SEGMENT


@on_a_loop
async def test_a_stream_gets_a_window_and_the_next_credit_for_each_segment_that_is_stored() -> None:
    limiter = limiter_for(10)
    credits_ = Credits(limiter, SEGMENT, asyncio.get_running_loop())
    only = stream("a", acknowledged=5)
    credits_.open(only)
    assert (only.acknowledged, only.credit) == (5, 7)
    only.changed.clear()
    arrive(credits_, limiter, only, 6)
    assert (only.acknowledged, only.credit) == (6, 8)
    assert only.changed.is_set()
    assert outstanding(limiter, 10) == 2


def test_one_answer_acknowledges_all_segments_that_are_being_stored() -> None:
    loop, limiter = SimulatedLoop(), limiter_for(100)
    credits_, only = credits_on(loop, limiter, SEGMENT), stream("a")
    credits_.open(only)
    only.changed.clear()
    for sequence in (1, 2):
        assert credits_.spend(only, sequence, lambda: 1, lambda: None)
    told = []
    for sequence in (1, 2):
        limiter.insert(SEGMENT, SEGMENT)
        credits_.stored(only, sequence)
        only.record_durable(sequence)
        told.append(only.changed.is_set())
    assert told == [False, True]
    assert (only.acknowledged, only.credit) == (2, 4)


def test_the_only_segment_is_acknowledged_at_once() -> None:
    loop, limiter = SimulatedLoop(), limiter_for(100)
    credits_, only = credits_on(loop, limiter, SEGMENT), stream("a")
    credits_.open(only)
    for sequence in (1, 2, 3):
        only.changed.clear()
        arrive(credits_, limiter, only, sequence)
        assert only.changed.is_set()


def test_an_acknowledgement_does_not_wait_for_a_segment_that_has_no_reservation() -> None:
    loop, limiter = SimulatedLoop(), limiter_for(2)
    credits_, (slow, idle) = leased(loop, limiter, "ab")
    loop.pass_time(2.1)
    # One lease of the idle stream is used for the first segment. The stream itself uses the other lease.
    assert spend(credits_, slow, 1)
    assert spend(credits_, idle, 1)
    assert spend(credits_, slow, 2)
    assert (slow.received, slow.storing) == (2, 1)
    slow.changed.clear()
    limiter.insert(SEGMENT, SEGMENT)
    credits_.stored(slow, 1)
    assert slow.changed.is_set()


@on_a_loop
async def test_scarce_credit_goes_to_all_streams_in_turn() -> None:
    limiter = limiter_for(4)
    credits_ = Credits(limiter, SEGMENT, asyncio.get_running_loop())
    streams = [stream(name) for name in "abc"]
    for each in streams:
        credits_.open(each)
    # The first two were alone for a moment and got their windows.
    assert [each.credit for each in streams] == [2, 2, 0]
    for each in streams[:2]:
        arrive(credits_, limiter, each, 1)
    assert [each.credit for each in streams] == [2, 2, 0]
    granted = []
    for _ in range(12):
        limiter.sample(SEGMENT)
        await asyncio.sleep(0)
        for number, each in enumerate(streams):
            while each.credit > each.acknowledged and each.changed.is_set():
                each.changed.clear()
                granted.append(number)
                arrive(credits_, limiter, each, each.acknowledged + 1)
    assert max(map(granted.count, range(3))) - min(map(granted.count, range(3))) <= 2
    assert min(map(granted.count, range(3))) >= 3


@on_a_loop
async def test_nothing_is_granted_while_the_limiter_is_blocked() -> None:
    limiter = limiter_for(2)
    credits_ = Credits(limiter, SEGMENT, asyncio.get_running_loop())
    first, second = stream("a"), stream("b")
    credits_.open(first)
    arrive(credits_, limiter, first, 1)
    arrive(credits_, limiter, first, 2)
    credits_.open(second)
    assert not limiter.try_reserve(1)
    assert (first.credit, second.credit) == (2, 0)
    assert not spend(credits_, first, 3)
    assert not spend(credits_, second, 1)


@on_a_loop
async def test_samples_on_another_thread_let_waiting_streams_send() -> None:
    limiter = limiter_for(2)
    credits_ = Credits(limiter, SEGMENT, asyncio.get_running_loop())
    only = stream("a")
    credits_.open(only)
    arrive(credits_, limiter, only, 1)
    arrive(credits_, limiter, only, 2)
    assert only.credit == 2
    only.changed.clear()
    trainer = threading.Thread(target=limiter.sample, args=(SEGMENT,))
    trainer.start()
    async with asyncio.timeout(10):
        await only.changed.wait()
    trainer.join()
    assert only.credit == 3


@on_a_loop
async def test_a_closed_stream_gives_its_unused_grants_to_others() -> None:
    limiter = limiter_for(2)
    credits_ = Credits(limiter, SEGMENT, asyncio.get_running_loop())
    first, second = stream("a"), stream("b")
    credits_.open(first)
    credits_.open(second)
    assert (first.credit, second.credit) == (2, 0)
    second.changed.clear()
    credits_.close(first)
    assert first.credit == first.acknowledged
    async with asyncio.timeout(10):
        await second.changed.wait()
    assert second.credit == 2
    credits_.close(second)
    await asyncio.sleep(0)
    assert outstanding(limiter, 2) == 0


@on_a_loop
async def test_a_stream_that_ends_with_a_refused_segment_releases_only_its_remaining_leases() -> None:
    limiter = limiter_for(4)
    credits_ = Credits(limiter, SEGMENT, asyncio.get_running_loop())
    bad, good = stream("bad"), stream("good")
    credits_.open(bad)
    credits_.open(good)
    assert spend(credits_, bad, 1)
    limiter.release(SEGMENT)  # as the intake does when it refuses
    await asyncio.sleep(0)
    credits_.close(bad)
    await asyncio.sleep(0)
    assert outstanding(limiter, 4) == 2
    credits_.close(good)
    await asyncio.sleep(0)
    assert outstanding(limiter, 4) == 0


@on_a_loop
async def test_a_grant_reserves_a_whole_segment() -> None:
    limiter = limiter_for(3)
    credits_ = Credits(limiter, SEGMENT, asyncio.get_running_loop())
    credits_.open(stream("a"))
    assert outstanding(limiter, 3) == 2


@on_a_loop
async def test_nothing_is_granted_once_the_run_ends() -> None:
    limiter = limiter_for(10)
    credits_ = Credits(limiter, SEGMENT, asyncio.get_running_loop())
    before, late = stream("a"), stream("b")
    credits_.open(before)
    credits_.stop()
    credits_.open(late)
    arrive(credits_, limiter, before, 1)
    limiter.sample(SEGMENT)
    await asyncio.sleep(0)
    assert (before.credit, late.credit) == (2, 0)
    # Granted credit is still accepted.
    arrive(credits_, limiter, before, 2)
    assert not spend(credits_, before, 3)


def leased(loop: SimulatedLoop, limiter: RateLimiter, names: str) -> tuple[Credits, list[ActorStream]]:
    """Credits on simulated time, and open streams that were granted all available credit."""
    credits_ = credits_on(loop, limiter, SEGMENT)
    streams = [stream(name) for name in names]
    for each in streams:
        credits_.open(each)
    return credits_, streams


def test_a_silent_stream_loses_its_lease_after_two_seconds_if_others_wait() -> None:
    loop = SimulatedLoop()
    _, (silent, good) = leased(loop, limiter_for(2), "ab")
    assert (silent.credit, good.credit) == (2, 0)
    loop.pass_time(1.9)
    assert good.credit == 0
    loop.pass_time(0.2)
    assert good.credit == 2
    # Its credit holds: it may still send.
    assert silent.credit == 2


def test_a_lease_lasts_while_no_other_stream_waits() -> None:
    loop, limiter = SimulatedLoop(), limiter_for(3)
    credits_, (only,) = leased(loop, limiter, "a")
    loop.pass_time(3_600.0)
    assert outstanding(limiter, 3) == len(only.leases) == 2
    arrive(credits_, limiter, only, 1)
    assert only.acknowledged == 1


def test_a_segment_without_a_lease_gets_the_lease_of_a_silent_stream() -> None:
    loop, limiter = SimulatedLoop(), limiter_for(2)
    credits_, (slow, idle) = leased(loop, limiter, "ab")
    loop.pass_time(2.1)
    assert (len(slow.leases), len(idle.leases)) == (0, 2)
    arrive(credits_, limiter, slow, 1)
    assert slow.acknowledged == 1
    assert len(idle.leases) == 1


def test_a_segment_that_comes_while_inserts_are_blocked_waits_and_is_stored_first() -> None:
    loop, limiter = SimulatedLoop(), limiter_for(2)
    credits_, (slow, good) = leased(loop, limiter, "ab")
    loop.pass_time(2.1)
    for sequence in (1, 2):
        arrive(credits_, limiter, good, sequence)
    arrive(credits_, limiter, slow, 1)
    assert (slow.acknowledged, good.acknowledged, good.credit) == (0, 2, 2)
    limiter.sample(SEGMENT)
    loop.pass_time(0.0)
    assert (slow.acknowledged, good.credit) == (1, 2)
    limiter.sample(SEGMENT)
    loop.pass_time(0.0)
    assert good.credit == 3


def test_the_waiting_segments_of_a_closed_stream_are_dropped() -> None:
    loop, limiter = SimulatedLoop(), limiter_for(2)
    credits_, (slow, good) = leased(loop, limiter, "ab")
    loop.pass_time(2.1)
    for sequence in (1, 2):
        arrive(credits_, limiter, good, sequence)
    arrive(credits_, limiter, slow, 1)
    credits_.close(slow)
    limiter.sample(SEGMENT)
    loop.pass_time(0.0)
    assert (slow.acknowledged, good.credit) == (0, 3)


def test_segments_that_wait_are_bounded_in_bytes() -> None:
    loop, limiter = SimulatedLoop(), limiter_for(2)
    credits_, (slow, good) = leased(loop, limiter, "ab")
    loop.pass_time(2.1)
    for sequence in (1, 2):
        arrive(credits_, limiter, good, sequence)
    credits_.spend(slow, 1, lambda: 64 * 2**20, lambda: None)
    with pytest.raises(UnavailableError, match="67108864"):
        credits_.spend(slow, 2, lambda: 1, lambda: None)
    assert slow.received == 1


def test_five_hundred_silent_streams_do_not_keep_a_good_one_waiting() -> None:
    loop, limiter = SimulatedLoop(), limiter_for(2)
    credits_, silent = leased(loop, limiter, "s" * 500)
    good = stream("good")
    credits_.open(good)
    while good.credit == 0:
        loop.pass_time(0.1)
    assert loop.time() < 10.0
    started = loop.time()
    for sequence in range(1, 101):
        while good.credit < sequence:
            loop.pass_time(0.1)
        arrive(credits_, limiter, good, sequence)
        limiter.sample(SEGMENT)
        loop.pass_time(0.0)
    assert loop.time() - started < 10.0
    assert all(each.credit >= 1 for each in silent)
