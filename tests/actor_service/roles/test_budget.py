"""The CPU time for evaluations."""

import random

from actor_service.roles.evaluator import CpuBudget


class Machine:
    """Two clocks that a test moves."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    def budget(self, share: float, processors: int) -> CpuBudget:
        return CpuBudget(share, processors, lambda: self.seconds, lambda: self.cpu_seconds)


def test_the_budget_starts_with_half_a_second() -> None:
    machine = Machine()
    budget = machine.budget(0.03, processors=2)
    for _ in range(5):
        assert budget.has_some()
        machine.seconds += 0.1
        machine.cpu_seconds += 0.12
    assert not budget.has_some()


def test_the_next_work_waits_until_the_excess_is_paid() -> None:
    machine = Machine()
    budget = machine.budget(0.05, processors=4)
    machine.cpu_seconds = 2.5
    assert not budget.has_some()
    machine.seconds = 9.9
    assert not budget.has_some()
    machine.seconds = 10.1
    assert budget.has_some()


def test_long_term_use_equals_the_share_for_any_cost_of_an_evaluation() -> None:
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


def test_excused_work_is_not_charged() -> None:
    machine = Machine()
    budget = machine.budget(0.05, processors=2)
    assert budget.has_some()
    machine.seconds, machine.cpu_seconds = 10.0, 10.0
    budget.excuse()
    assert budget.has_some()
    machine.cpu_seconds = 20.0
    assert not budget.has_some()
