"""The limit of steps with one policy counts the steps of all simulators together."""

from actor_service.external.acting.pace import PolicyPace
from actor_service.policies.policy import load_policy
from tests.actor_service.actor_policies import constant_policy
from tests.actor_service.external.simulators import SPEC
from tests.builders.clocks import ManualClock

FIRST, SECOND = (load_policy(constant_policy([0.0, 1.0], version=version), SPEC, 1) for version in (1, 2))


def pace(most_steps: int, clock: ManualClock | None = None) -> PolicyPace:
    return PolicyPace(most_steps, environments=4, patience_s=1.0, clock=clock or ManualClock())


def test_without_a_limit_nobody_waits() -> None:
    unlimited = pace(0)
    unlimited.acted(FIRST, 1_000)
    assert unlimited.wait_s(FIRST) == 0


def test_streams_wait_for_a_newer_policy_after_the_steps_of_all_environments() -> None:
    limited = pace(5)
    limited.acted(FIRST, 19)
    assert limited.wait_s(FIRST) == 0
    limited.acted(FIRST, 1)
    assert limited.wait_s(FIRST) == 1.0
    assert limited.wait_s(SECOND) == 0
    limited.acted(SECOND, 19)
    assert limited.wait_s(SECOND) == 0


def test_after_its_patience_the_same_policy_continues() -> None:
    clock = ManualClock()
    limited = pace(1, clock)
    limited.acted(FIRST, 4)
    assert limited.wait_s(FIRST) == 1.0
    clock.now += 0.75
    assert limited.wait_s(FIRST) == 0.25
    clock.now += 0.25
    assert limited.wait_s(FIRST) == 0
    limited.acted(FIRST, 100)
    assert limited.wait_s(FIRST) == 0


def test_the_learner_changes_the_limit() -> None:
    limited = pace(5)
    limited.set_most_steps(1)
    limited.acted(FIRST, 4)
    assert limited.wait_s(FIRST) > 0
    limited.set_most_steps(0)
    assert limited.wait_s(FIRST) == 0
