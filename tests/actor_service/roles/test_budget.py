"""The CPU time that evaluations may take."""

import random

from actor_service.roles.evaluator import CpuBudget


class Machine:
    """Two clocks that a test moves."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    def budget(self, share: float, processors: int) -> CpuBudget:
        return CpuBudget(share, processors, lambda: self.seconds, lambda: self.cpu_seconds)


def test_the_first_half_second_is_given_at_once() -> None:
    machine = Machine()
    budget = machine.budget(0.03, processors=2)
    for _ in range(5):
        assert budget.has_some()
        machine.seconds += 0.1
        machine.cpu_seconds += 0.12
    assert not budget.has_some()


def test_what_was_taken_beyond_it_is_waited_for() -> None:
    machine = Machine()
    budget = machine.budget(0.05, processors=4)
    machine.cpu_seconds = 2.5
    assert not budget.has_some()
    machine.seconds = 9.9
    assert not budget.has_some()
    machine.seconds = 10.1
    assert budget.has_some()


def test_in_the_long_run_it_is_the_share_whatever_an_evaluation_costs() -> None:
    rng, machine = random.Random(3), Machine()
    budget = machine.budget(0.03, processors=8)
    while machine.seconds < 20_000:
        machine.seconds += rng.uniform(0, 2)
        if budget.has_some():
            cost = rng.uniform(0, 10)
            machine.seconds += cost
            machine.cpu_seconds += cost
    assert 0.028 <= machine.cpu_seconds / (8 * machine.seconds) <= 0.031


def test_waiting_saves_five_seconds_at_most() -> None:
    machine = Machine()
    budget = machine.budget(0.5, processors=2)
    machine.seconds = 1_000.0
    assert budget.has_some()
    machine.cpu_seconds = 5.1
    assert not budget.has_some()
