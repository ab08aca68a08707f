"""The policy for each step: the newest policy, with a limited wait for a newer one."""

import threading
from collections.abc import Iterator

import pytest

from actor_service.acting.turns import PolicyTurns
from actor_service.environments import describe_environment
from actor_service.policies.policy import OnnxPolicy, PolicySlot
from tests.actor_service.actor_policies import random_policy

SPEC = describe_environment("CartPole-v1")
DEADLINE_S = 30.0


def policy(version: int) -> OnnxPolicy:
    return OnnxPolicy(random_policy(4, 2, version=version), SPEC.observations, 1)


class Waited:
    """A slot's waits: notes that there was one, and has something done in it, as by the thread that puts policies."""

    def __init__(self, slot: PolicySlot, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.versions: Iterator[int] = iter(())
        wait = slot.wait

        def noted(*arguments: object) -> OnnxPolicy | None:
            self.count += 1
            for version in self.versions:
                slot.put(policy(version))
                break
            return wait(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(slot, "wait", noted)


@pytest.fixture
def slot() -> PolicySlot:
    return PolicySlot()


@pytest.fixture
def waited(slot: PolicySlot, monkeypatch: pytest.MonkeyPatch) -> Waited:
    return Waited(slot, monkeypatch)


def versions(turns: PolicyTurns, steps: int) -> list[int]:
    taken = [turns.next(threading.Event()) for _ in range(steps)]
    return [policy.descriptor.version if policy else 0 for policy in taken]


def test_without_a_limit_a_policy_acts_until_the_next_one(slot: PolicySlot, waited: Waited) -> None:
    slot.put(policy(1))
    turns = PolicyTurns(slot)
    assert versions(turns, 50) == [1] * 50
    slot.put(policy(2))
    assert versions(turns, 2) == [2, 2]
    assert waited.count == 0


@pytest.mark.parametrize("most", [1, 3])
def test_after_its_steps_the_loop_waits_for_a_newer_policy(slot: PolicySlot, waited: Waited, most: int) -> None:
    slot.put(policy(1))
    waited.versions = iter((2, 3, 4))
    assert versions(PolicyTurns(slot, most, patience_s=DEADLINE_S), 4 * most) == [
        v for v in (1, 2, 3, 4) for _ in range(most)
    ]
    assert waited.count == 3


def test_a_policy_that_comes_early_acts_at_once_for_all_its_steps(slot: PolicySlot, waited: Waited) -> None:
    slot.put(policy(1))
    turns = PolicyTurns(slot, 3, patience_s=DEADLINE_S)
    assert versions(turns, 2) == [1, 1]
    slot.put(policy(2))
    assert versions(turns, 3) == [2, 2, 2]
    assert waited.count == 0


def test_without_a_newer_policy_the_present_one_acts_further_without_waits(slot: PolicySlot, waited: Waited) -> None:
    slot.put(policy(1))
    turns = PolicyTurns(slot, 2, patience_s=0.01)
    assert versions(turns, 10) == [1] * 10
    assert waited.count == 1
    slot.put(policy(2))
    waited.versions = iter((3,))
    assert versions(turns, 3) == [2, 2, 3]
    assert waited.count == slot.counts.policy_wait_seconds.snapshot()[0][-1][1] == 2


def test_it_says_before_a_step_whether_it_waits_for_a_newer_policy(slot: PolicySlot, waited: Waited) -> None:
    turns = PolicyTurns(slot, 2, patience_s=0.0)
    assert not turns.waits
    slot.put(policy(1))
    told = []
    for _ in range(5):
        before = waited.count
        versions(turns, 1)
        told.append((turns.waits, waited.count - before))
    # It waits at the third step, and then not again.
    assert told == [(False, 0), (True, 0), (False, 1), (False, 0), (False, 0)]
    slot.put(policy(2))
    versions(turns, 2)
    assert turns.waits
    slot.put(policy(3))
    assert not turns.waits
    unlimited = PolicyTurns(slot)
    assert [unlimited.waits for _ in versions(unlimited, 3)] == [False] * 3


def test_a_policy_that_is_waited_for_arrives_on_another_thread(slot: PolicySlot) -> None:
    slot.put(policy(1))
    turns = PolicyTurns(slot, 1, patience_s=DEADLINE_S)
    assert versions(turns, 1) == [1]
    threading.Timer(0.05, lambda: slot.put(policy(2))).start()
    assert versions(turns, 1) == [2]


def test_no_policy_acts_after_the_slot_is_closed(slot: PolicySlot) -> None:
    slot.put(policy(1))
    turns, stop = PolicyTurns(slot, 1, patience_s=DEADLINE_S), threading.Event()
    assert turns.next(stop) is not None

    def close() -> None:
        stop.set()
        slot.close()

    threading.Timer(0.05, close).start()
    assert turns.next(stop) is None


def test_the_activation_of_a_policy_is_recorded_at_its_first_step(slot: PolicySlot) -> None:
    slot.put(policy(1))
    turns = PolicyTurns(slot)
    versions(turns, 5)
    assert len(slot.pop_activations()) == 1


def test_a_waiting_loop_continues_when_the_limit_rises(slot: PolicySlot) -> None:
    slot.put(policy(1))
    turns = PolicyTurns(slot, 2, patience_s=DEADLINE_S)
    assert versions(turns, 2) == [1, 1]
    threading.Timer(0.05, turns.set_most_steps, (4,)).start()
    assert versions(turns, 2) == [1, 1]
    assert turns.waits
    slot.put(policy(2))
    # As it was at first.
    turns.set_most_steps(0)
    assert versions(turns, 2) == [2, 2]
    assert turns.waits


def test_fewer_steps_than_it_has_acted_are_waited_for_with_the_next_policy(slot: PolicySlot, waited: Waited) -> None:
    slot.put(policy(1))
    turns = PolicyTurns(slot, 4, patience_s=0.0)
    versions(turns, 3)
    turns.set_most_steps(2)
    assert versions(turns, 3) == [1, 1, 1]
    assert waited.count == 0
    slot.put(policy(2))
    versions(turns, 3)
    assert waited.count == 1
