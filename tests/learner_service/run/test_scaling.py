"""The desired number of actors of a run, from measurements of both sides of the rate limiter."""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner_service.run.scaling import ScalingSignal
from tests.builders.clocks import ManualClock

SPI = 4.0


@dataclass
class Run:
    """A learner that uses `demand` transitions per second, and actors that make `supply` each, second by second.

    filling_s: seconds in which the actors do not wait, because their queues have space.
    """

    demand: float
    supply: float
    actors: int
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.signal = ScalingSignal(SPI, self.clock)
        self._samples = self._starved = self._stored = 0.0
        self._waited: dict[str, float] = {}
        self.filling_s = 0

    def go_on(self, seconds: int = 120, paused: bool = False, missing: int = 0) -> int:
        """Let time pass. Returns the desired number of actors after it."""
        for _ in range(seconds):
            flow = min(self.demand, self.supply * self.actors)
            self._samples += flow * SPI
            self._starved += 1 - flow / self.demand
            self.clock.now += 1
            for number in range(self.actors):
                name = f"actor-{number}"
                work = 1.0 if self.filling_s else flow / self.actors / self.supply
                self._stored += flow / self.actors
                self._waited[name] = self._waited.get(name, 0.0) + 1 - work
                self.signal.record_report(name, 1, self._waited[name])
            self.filling_s = max(0, self.filling_s - 1)
            totals = round(self._samples), self._starved, round(self._stored)
            self.signal.observe(*totals, self.actors, paused, missing)
        return self.signal.desired_actors


@pytest.mark.parametrize("actors", [1, 3, 10, 40])
def test_the_desired_number_is_the_quotient_and_a_tenth_for_any_present_number(actors: int) -> None:
    # 1000 / 100 and a tenth.
    assert Run(demand=1_000.0, supply=100.0, actors=actors).go_on() in (11, 12)


@settings(deadline=None, max_examples=25)
@given(demand=st.floats(200, 20_000), supply=st.floats(100, 2_000), actors=st.integers(1, 20))
def test_the_desired_actors_feed_the_learner_with_a_small_surplus(demand: float, supply: float, actors: int) -> None:
    desired = Run(demand, supply, actors).go_on(70)
    # Samples are counted in whole numbers, so that the signal knows the demand to a thousandth only.
    assert desired * supply >= 0.999 * demand
    assert desired <= demand / supply * 1.15 + 1


def test_the_waiting_fractions_show_the_limiting_side() -> None:
    starving = Run(demand=1_000.0, supply=100.0, actors=4)
    starving.go_on()
    status = starving.signal
    assert status.starved_fraction == pytest.approx(0.6, abs=0.01)
    assert status.blocked_fraction == pytest.approx(0.0, abs=0.01)
    waiting = Run(demand=1_000.0, supply=100.0, actors=20)
    waiting.go_on()
    status = waiting.signal
    assert status.starved_fraction == pytest.approx(0.0, abs=0.01)
    assert status.blocked_fraction == pytest.approx(0.5, abs=0.01)
    assert status.demand == pytest.approx(1_000.0, rel=0.01)
    assert status.supply_per_actor == pytest.approx(100.0, rel=0.05)


def test_it_follows_a_learner_that_becomes_slower_and_faster_again() -> None:
    run = Run(demand=1_000.0, supply=100.0, actors=10)
    assert run.go_on() == 11
    run.demand = 300.0
    assert run.go_on(180) == 4
    run.demand = 1_000.0
    assert run.go_on() == 11


@pytest.mark.parametrize("filling_s", [0, 15])
def test_a_slower_learner_needs_fewer_actors_in_one_step(filling_s: int) -> None:
    # HPA ignores the last of several small steps. Surplus actors would stay.
    run = Run(demand=10_000.0, supply=100.0, actors=110)
    run.go_on()
    run.demand = 5_000.0
    # The rate limiter's buffer is full before the actors' queues are.
    assert run.go_on(20) == 110
    run.filling_s = filling_s
    assert {run.go_on(1) for _ in range(180)} == {110, 56}


@pytest.mark.parametrize(
    ("demand", "paused", "missing"),
    [(1_000.0, False, 0), (500.0, True, 0), (500.0, False, 1)],
    ids=["fast again", "paused", "filling the replay"],
)
def test_a_learner_that_is_slow_for_a_minute_keeps_its_actors(demand: float, paused: bool, missing: int) -> None:
    run = Run(demand=1_000.0, supply=100.0, actors=11)
    before = run.go_on()
    for _ in range(3):
        run.demand = 500.0
        assert run.go_on(60) == before
        run.demand = demand
        assert run.go_on(60, paused=paused, missing=missing) == before


def test_small_changes_do_not_change_the_desired_number() -> None:
    run = Run(demand=1_000.0, supply=100.0, actors=10)
    first = run.go_on()
    asked_for = set()
    for demand in (1_030.0, 970.0, 1_040.0, 960.0):
        run.demand = demand
        asked_for.add(run.go_on())
    assert asked_for == {first}


def test_before_a_measurement_the_desired_number_is_the_most_connected() -> None:
    clock = ManualClock()
    signal = ScalingSignal(SPI, clock)
    assert signal.desired_actors == 1
    for connected in (2, 5, 4):
        clock.now += 10
        # Nothing is sampled before the replay has its minimum.
        signal.observe(samples=0, starved_s=clock.now, stored=0, connected=connected)
    assert signal.desired_actors == 5
    assert signal.demand is None


def test_a_replay_that_would_take_long_to_get_its_minimum_gets_more_actors() -> None:
    clock = ManualClock()
    signal = ScalingSignal(SPI, clock)
    for second in range(1, 61):
        clock.now = second
        signal.record_report("actor-0", 1, 0.0)
        stored = 100 * second
        signal.observe(samples=0, starved_s=clock.now, stored=stored, connected=1, missing=60_000 - stored)
    # A minute of ten actors, each with 100 transitions per second.
    assert signal.desired_actors == 10


def test_one_actor_more_or_less_does_not_make_the_desired_number_oscillate() -> None:
    # One actor is just not enough, and two are faster on average. The desired number must not oscillate.
    run = Run(demand=100.0, supply=98.0, actors=1)
    assert run.go_on() == 2
    run.actors, run.supply = 2, 112.0
    assert run.go_on(600) == 2


def test_a_pause_of_training_changes_nothing() -> None:
    run = Run(demand=1_000.0, supply=100.0, actors=10)
    before = run.go_on()
    for _ in range(300):
        run.clock.now += 1
        run.signal.observe(samples=10**9, starved_s=0.0, stored=10**9, connected=10, paused=True)
    assert run.signal.desired_actors == before


def test_while_all_actors_wait_the_last_measured_speed_is_kept() -> None:
    run = Run(demand=1_000.0, supply=100.0, actors=10)
    run.go_on()
    run.demand = 1e-9
    run.go_on()
    assert run.signal.supply_per_actor == pytest.approx(100.0, rel=0.05)


def test_a_restarted_actor_is_counted_from_its_own_first_report() -> None:
    clock = ManualClock()
    signal = ScalingSignal(SPI, clock)
    signal.record_report("actor-0", 1, 500.0)
    for second in range(1, 21):
        clock.now += 1
        incarnation = 1 if second <= 10 else 2
        signal.record_report("actor-0", incarnation, 500.0 if incarnation == 1 else 0.0)
        signal.observe(samples=400 * second, starved_s=0.0, stored=50 * second, connected=1)
    assert signal.supply_per_actor == pytest.approx(50.0, rel=0.06)


def test_a_new_learner_reports_that_it_has_not_measured() -> None:
    run = Run(demand=1_000.0, supply=100.0, actors=10)
    assert not run.signal.can_tell
    run.go_on(5)
    assert not run.signal.can_tell
    assert run.go_on(15) == 11
    assert run.signal.can_tell


@pytest.mark.parametrize("paused", [False, True])
def test_after_a_minute_without_a_measurement_the_connected_actors_decide(paused: bool) -> None:
    clock = ManualClock()
    signal = ScalingSignal(SPI, clock)
    clock.now += 1_000
    for _ in range(60):
        assert not signal.can_tell
        signal.observe(samples=0, starved_s=0.0, stored=0, connected=3, paused=paused)
        clock.now += 1
    assert signal.can_tell
    assert signal.desired_actors == 3


@pytest.mark.parametrize("waited_s", [math.nan, math.inf, -math.inf, 1e300, -1e300])
def test_an_implausible_report_does_not_spoil_the_measurement(waited_s: float) -> None:
    run = Run(demand=1_000.0, supply=100.0, actors=10)
    before = run.go_on()
    run.signal.record_report("broken", 1, 0.0)
    run.signal.record_report("broken", 1, waited_s)
    assert run.go_on() == before
    status = run.signal
    assert status.supply_per_actor == pytest.approx(100.0, rel=0.05)
    assert status.starved_fraction == pytest.approx(0.0, abs=0.01)
    assert status.blocked_fraction == pytest.approx(0.0, abs=0.02)


def test_delayed_reports_that_arrive_together_count_fully() -> None:
    clock = ManualClock()
    signal = ScalingSignal(SPI, clock)
    for ten_seconds in range(5):
        for second in range(1, 11):
            done = 10 * ten_seconds + second
            signal.record_report("actor-0", 1, 0.5 * done)
        signal.observe(samples=1_000 * ten_seconds, starved_s=0.0, stored=500 * (ten_seconds + 1), connected=1)
        clock.now += 10
    # Half of its time it waited, so that it makes twice as many as came.
    assert signal.supply_per_actor == pytest.approx(100.0, rel=0.01)


def test_an_actors_report_of_its_steps_changes_nothing() -> None:
    """An actor with false figures is one actor of all: it may wait for ever, or never."""
    for waits in (0.0, 1.0):
        run = Run(demand=1_000.0, supply=100.0, actors=10)
        honest = run.go_on()
        for second in range(120):
            run.signal.record_report("liar", 1, waits * second)
            run.go_on(1)
        assert abs(run.signal.desired_actors - honest) <= 1
