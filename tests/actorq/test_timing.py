"""Calls are timed in turns, and noise does not decide between them."""

from collections.abc import Callable
from itertools import count

import pytest

from actorq.timing import NOISE, Clocks, fastest, time_calls

# Calls longer than a turn: two to warm up, and two turns of two calls to measure them.
BEFORE = 2 + 2 * 2


class Machine:
    """A processor whose clock advances only during a call. Real time is twice as fast."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        self.clocks = Clocks(cpu=lambda: self.now, real=lambda: 2 * self.now)

    def call(self, name: str, seconds: Callable[[int], float]) -> Callable[[], None]:
        """A call whose n-th execution takes this many seconds, counted from 0."""
        times = count()

        def compute() -> None:
            self.calls.append(name)
            self.now += seconds(next(times))

        return compute


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_each_call_gets_its_own_time(machine: Machine) -> None:
    times = {"a": 3e-6, "b": 5e-6, "c": 2e-3}
    calls = {name: machine.call(name, lambda _, seconds=seconds: seconds) for name, seconds in times.items()}  # type: ignore[misc]
    assert time_calls(calls, clocks=machine.clocks) == pytest.approx(times)


def test_ignores_disturbances_of_a_third_of_the_turns(machine: Machine) -> None:
    calls = {
        "disturbed": machine.call("disturbed", lambda i: 1e-3 if i // 40 % 3 == 2 else 4e-6),
        "steady": machine.call("steady", lambda _: 5e-6),
    }
    seconds = time_calls(calls, clocks=machine.clocks)
    assert seconds["disturbed"] == pytest.approx(4e-6)


def test_ignores_a_slow_first_call(machine: Machine) -> None:
    calls = {"a": machine.call("a", lambda i: 1.0 if i == 0 else 1e-5), "b": machine.call("b", lambda _: 1e-5)}
    seconds = time_calls(calls, clocks=machine.clocks)
    assert seconds == pytest.approx({"a": 1e-5, "b": 1e-5})


def test_time_is_bounded_and_calls_take_turns_to_begin(machine: Machine) -> None:
    calls = {name: machine.call(name, lambda _: 2e-3) for name in "abc"}
    time_calls(calls, budget_s=1.0, clocks=machine.clocks)
    a_round = 2 * 3 * 2e-3
    assert 0.5 <= machine.now <= 0.5 + a_round
    turns = machine.calls[3 * BEFORE :]
    rounds = ["".join(turns[i : i + 6 : 2]) for i in range(0, 18, 6)]
    assert rounds == ["abc", "bca", "cab"]


def test_very_slow_calls_are_measured_three_times(machine: Machine) -> None:
    calls = {"a": machine.call("a", lambda _: 1.0), "b": machine.call("b", lambda _: 2.0)}
    assert time_calls(calls, budget_s=0.2, clocks=machine.clocks) == pytest.approx({"a": 1.0, "b": 2.0})
    assert machine.calls.count("a") == BEFORE + 2 * 3


def test_a_call_that_cannot_be_the_fastest_is_left_out_after_six_rounds(machine: Machine) -> None:
    times = {"slow": 3e-3, "a": 1e-3, "b": 1.1e-3}
    calls = {name: machine.call(name, lambda _, seconds=seconds: seconds) for name, seconds in times.items()}  # type: ignore[misc]
    assert time_calls(calls, budget_s=1.0, clocks=machine.clocks, hopeless=2.0) == pytest.approx(times)
    assert machine.calls.count("slow") == BEFORE + 2 * 6
    assert machine.calls.count("a") > BEFORE + 2 * 10
    assert abs(machine.calls.count("a") - machine.calls.count("b")) <= 2


def test_the_measurement_ends_early_when_one_call_is_left(machine: Machine) -> None:
    calls = {"a": machine.call("a", lambda _: 1e-3), "b": machine.call("b", lambda _: 3e-3)}
    assert time_calls(calls, budget_s=60.0, clocks=machine.clocks, hopeless=2.0)["a"] == pytest.approx(1e-3)
    assert machine.calls.count("a") == machine.calls.count("b") == BEFORE + 2 * 6


def test_handles_a_clock_that_does_not_advance() -> None:
    assert time_calls({"a": lambda: None}, clocks=Clocks(cpu=lambda: 0.0, real=lambda: 0.0)) == {"a": 0.0}


@pytest.mark.parametrize(
    ("seconds", "preferred", "expected"),
    [
        ({"a": 2.0, "b": 1.0}, ("a", "b"), "b"),
        ({"a": 1.0 + 0.9 * NOISE, "b": 1.0}, ("a", "b"), "a"),
        ({"a": 1.0 + 1.1 * NOISE, "b": 1.0}, ("a", "b"), "b"),
        ({"a": 1.0, "b": 1.0}, ("c", "b", "a"), "b"),
        ({"a": 2.0, "b": 1.0}, (), "b"),
        ({"a": 0.0, "b": 0.0}, ("b",), "b"),
    ],
)
def test_chooses_the_preferred_of_equally_fast_calls(
    seconds: dict[str, float], preferred: tuple[str, ...], expected: str
) -> None:
    assert fastest(seconds, preferred) == expected


def test_a_processor_that_becomes_faster_changes_no_ratio(machine: Machine) -> None:
    # After six rounds, in which the slow call is measured.
    def at(seconds: float) -> Callable[[int], float]:
        return lambda _: seconds * (1.6 if machine.now < 0.16 else 1.0)

    calls = {name: machine.call(name, at(seconds)) for name, seconds in {"a": 1.1e-3, "b": 1e-3, "slow": 5e-3}.items()}
    found = time_calls(calls, budget_s=1.0, clocks=machine.clocks, hopeless=2.0)
    assert found == pytest.approx({"a": 1.1e-3, "b": 1e-3, "slow": 5e-3}, rel=0.01)
