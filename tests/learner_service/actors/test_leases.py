"""Despite silent, slow and dead streams, the others continue, and the limiter's ratio holds."""

import random
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner_service.actors.credits import ActorStream
from learner_service.actors.members import Member
from learner_service.replay import RateLimiter
from tests.learner_service.simulated_loop import SimulatedLoop, credits_on

SEGMENT = 8
RATIO, MIN_SIZE = 4.0, 64
MOST_S = 10.0
STEP_S = 0.05
# After which gRPC's keepalive ends the stream of a dead peer.
KEEPALIVE_S = 30.0

Kind = Literal["good", "slow", "silent", "dead", "late"]


@dataclass
class Holder:
    """A stream and its actor: good ones send within 0.05 s, slow ones within 30 s, late ones just after their lease."""

    kind: Kind
    stream: ActorStream
    sends_at: float = float("inf")
    waits_since: float = 0.0
    longest_wait: float = 0.0
    stored: int = 0


@dataclass
class World:
    """A learner that samples whenever it may, and holders of all kinds, on simulated time.

    rollout_size: of an on-policy learner that uses `batch` samples of each rollout; 0 for a learner with a replay.
    """

    kinds: list[Kind]
    error_buffer: float
    batch: int
    seed: int
    rollout_size: int = 0
    holders: list[Holder] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._choices = random.Random(self.seed)
        self._loop = SimulatedLoop()
        size, clock = self.rollout_size, self._loop.time
        self.limiter = (
            RateLimiter.of_queue(self.batch // size, size, size, clock)
            if size
            else RateLimiter(RATIO, MIN_SIZE, self.error_buffer, clock)
        )
        self._credits = credits_on(self._loop, self.limiter, SEGMENT)
        for number, kind in enumerate(self.kinds):
            self._open(Holder(kind, ActorStream(Member(f"actor-{number}", "actor", number, 1), 0)))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self._loop.time() + seconds
        while self._loop.time() < until:
            self._loop.pass_time(STEP_S)
            for holder in self.holders:
                self._act(holder)

    def _open(self, holder: Holder) -> None:
        self.holders.append(holder)
        self._credits.open(holder.stream)

    def _act(self, holder: Holder) -> None:
        stream, now = holder.stream, self._loop.time()
        if holder.kind == "dead" and now >= KEEPALIVE_S:
            self._credits.close(stream)
        if holder.kind in ("silent", "dead"):
            return
        if stream.received < stream.credit and holder.sends_at == float("inf"):
            holder.sends_at = now + self._delay(holder.kind)
        if now >= holder.sends_at:
            holder.sends_at = float("inf")
            sequence = stream.received + 1
            if self._credits.spend(stream, sequence, lambda: 1, lambda: self._store(holder, sequence)):
                self._store(holder, sequence)
        holder.longest_wait = max(holder.longest_wait, now - holder.waits_since)

    def _delay(self, kind: Kind) -> float:
        if kind == "good":
            return self._choices.uniform(0.0, 0.05)
        if kind == "late":
            return self._credits.lease_s + STEP_S
        return self._choices.uniform(0.0, 30.0)

    def _store(self, holder: Holder, sequence: int) -> None:
        self.limiter.insert(SEGMENT, SEGMENT)
        self._credits.stored(holder.stream, sequence)
        holder.stored += 1
        holder.waits_since = self._loop.time()
        self._loop.call_soon_threadsafe(self._sample)

    def _sample(self) -> None:
        while self.limiter.can_sample(self.batch):
            self.limiter.sample(self.batch)
        self._check_ratio()

    def _check_ratio(self) -> None:
        if self.rollout_size:
            waiting = self.limiter.inserts - self.limiter.samples * self.rollout_size // self.batch
            assert 0 <= waiting <= self.rollout_size + SEGMENT
            return
        diff = (self.limiter.inserts - MIN_SIZE) * RATIO - self.limiter.samples
        forced = max(self.batch - self.error_buffer, 0.0) + SEGMENT * RATIO
        assert diff <= max(self.error_buffer, forced) + 1e-6
        assert self.limiter.samples == 0 or diff >= -self.error_buffer - 1e-6


def good(world: World) -> list[Holder]:
    return [holder for holder in world.holders if holder.kind == "good"]


@settings(max_examples=40, deadline=None)
@given(
    goods=st.integers(1, 5),
    others=st.lists(st.sampled_from(["slow", "silent", "dead", "late"]), max_size=60),
    # From room for one segment at a time to room for all.
    error_buffer=st.sampled_from([8.0, 64.0, 1_000.0]),
    batch=st.sampled_from([8, 64, 400]),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_set_of_silent_slow_or_dead_holders_stops_the_others(
    goods: int, others: list[Kind], error_buffer: float, batch: int, seed: int
) -> None:
    kinds: list[Kind] = [*others, *["good"] * goods]  # type: ignore[list-item]
    random.Random(seed).shuffle(kinds)
    world = World(kinds, error_buffer, batch, seed)
    world.run(60.0)
    for holder in good(world):
        assert holder.stored > 0
        assert holder.longest_wait <= MOST_S


@pytest.mark.parametrize(("kind", "segments"), [("silent", 300), ("slow", 300), ("dead", 300), ("late", 5)])
def test_one_good_actor_continues_among_five_hundred_bad_ones(kind: Kind, segments: int) -> None:
    """Late streams send data too, so the good stream gets its share of a learner that uses one segment at a time."""
    kinds: list[Kind] = [kind] * 500
    world = World([*kinds, "good"], error_buffer=8.0, batch=8, seed=1)
    world.run(40.0)
    (holder,) = good(world)
    assert holder.longest_wait <= MOST_S
    assert holder.stored >= segments


@settings(max_examples=20, deadline=None)
@given(
    goods=st.integers(1, 3),
    others=st.lists(st.sampled_from(["slow", "silent", "dead", "late"]), min_size=1, max_size=20),
    # From less than a segment to more than all streams may have in flight; segments have 8 steps.
    rollout_size=st.sampled_from([1, 8, 20, 64, 500]),
    seed=st.integers(0, 2**32 - 1),
)
def test_silent_holders_stop_no_queue_either(goods: int, others: list[Kind], rollout_size: int, seed: int) -> None:
    kinds: list[Kind] = [*others, *["good"] * goods]  # type: ignore[list-item]
    world = World(kinds, 0.0, batch=2 * rollout_size, seed=seed, rollout_size=rollout_size)
    world.run(60.0)
    assert world.limiter.samples > 0
    for holder in good(world):
        assert holder.longest_wait <= MOST_S
