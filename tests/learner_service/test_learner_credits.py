"""How the limiter's admission is shared out over the streams."""

import asyncio
import threading

from learner_parts import ManualClock, on_a_loop

from learner_service.credits import ActorStream, Credits
from learner_service.members import Member
from learner_service.replay import RateLimiter

SEGMENT = 8


def stream(name: str, acknowledged: int = 0) -> ActorStream:
    return ActorStream(Member(name, "actor", 0, incarnation=1), acknowledged)


def limiter_for(segments: int) -> RateLimiter:
    """Admits so many segments before the first sample; each segment may be sampled once per transition."""
    return RateLimiter(1.0, min_size_to_sample=SEGMENT, error_buffer=SEGMENT * (segments - 1.0), clock=ManualClock())


def arrive(credits_: Credits, limiter: RateLimiter, source: ActorStream, sequence: int) -> None:
    """A segment comes in and is stored, as `Run.insert` does it."""
    assert credits_.take(source, sequence)
    limiter.insert(SEGMENT, SEGMENT)
    credits_.stored(source, sequence)


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


@on_a_loop
async def test_scarce_credit_goes_round_all_streams() -> None:
    limiter = limiter_for(4)
    credits_ = Credits(limiter, SEGMENT, asyncio.get_running_loop())
    streams = [stream(name) for name in "abc"]
    for each in streams:
        credits_.open(each)
    # The first two were alone for a moment and took their windows.
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
    assert not credits_.take(first, 3)
    assert not credits_.take(second, 1)


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
async def test_a_stream_that_ends_over_a_refused_segment_gives_back_only_what_it_still_holds() -> None:
    limiter = limiter_for(4)
    credits_ = Credits(limiter, SEGMENT, asyncio.get_running_loop())
    bad, good = stream("bad"), stream("good")
    credits_.open(bad)
    credits_.open(good)
    assert credits_.take(bad, 1)
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
    # What had been granted is still taken.
    arrive(credits_, limiter, before, 2)
    assert not credits_.take(before, 3)
