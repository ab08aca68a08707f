"""Who gets which index, and when it is free again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorq.domain.status import ActorReport
from actorq.errors import ConflictError, ExhaustedError, InvalidInputError, NotFoundError
from actorq.telemetry.process_stats import measure_process
from learner_service.actors.members import Indexes, Members
from tests.builders.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def members(clock: ManualClock) -> Members:
    return Members(process=1, clock=clock)


def test_indexes_count_up_for_each_role_by_itself(members: Members) -> None:
    assert [members.join(name, 1, "actor").index for name in ("a", "b", "c")] == [0, 1, 2]
    assert members.join("judge", 1, "evaluator").index == 0


def test_a_name_with_a_number_gets_that_number_when_it_is_free(members: Members) -> None:
    assert members.join("actor-3", 1, "actor").index == 3
    assert members.join("pod-3", 1, "actor").index == 0
    assert members.join("actor-0", 1, "actor").index == 1
    assert members.join("actor-99999999", 1, "actor").index == 2


def test_an_index_is_reused_after_its_holder_has_left(members: Members) -> None:
    first, _ = members.join("a", 1, "actor"), members.join("b", 1, "actor")
    members.disconnect(members.connect("a", 1))
    assert members.join("c", 1, "actor").index == first.index
    # Its name is known, but another member holds its index now.
    assert members.join("a", 2, "actor").index == 2


def test_a_restarted_actor_gets_its_index_back(members: Members) -> None:
    members.join("a", 1, "actor")
    old = members.join("b", 5, "actor")
    new = members.join("b", 6, "actor")
    assert new.index == old.index == 1
    assert new.incarnation == 6


def test_joining_twice_in_one_life_is_joining_once(members: Members) -> None:
    assert members.join("a", 1, "actor") is members.join("a", 1, "actor")
    assert len(members.statuses()) == 1


def test_an_older_incarnation_is_refused(members: Members) -> None:
    members.join("a", 2, "actor")
    with pytest.raises(ConflictError, match=r"'a'.*incarnation 1"):
        members.join("a", 1, "actor")


def test_only_an_actor_that_has_joined_may_open_a_stream(members: Members) -> None:
    with pytest.raises(NotFoundError, match=r"'a'.*incarnation 1.*Join"):
        members.connect("a", 1)
    members.join("a", 1, "actor")
    with pytest.raises(NotFoundError):
        members.connect("a", 2)
    assert members.connect("a", 1).state == "connected"


def test_the_end_of_an_old_life_does_not_disconnect_the_new_one(members: Members) -> None:
    members.join("a", 1, "actor")
    old = members.connect("a", 1)
    members.join("a", 2, "actor")
    members.connect("a", 2)
    members.disconnect(old)
    assert members.connected("actor") == 1


def test_the_lives_of_an_index_count_up_for_all_holders(members: Members) -> None:
    assert members.join("a", 1, "actor").life == 1
    assert members.join("a", 1, "actor").life == 1  # the same life, joined again
    assert members.join("a", 2, "actor").life == 2
    members.disconnect(members.connect("a", 2))
    heir = members.join("b", 1, "actor")
    assert (heir.index, heir.life) == (0, 3)
    # Other indexes and roles have lives of their own.
    assert members.join("c", 1, "actor").life == 1
    assert members.join("judge", 1, "evaluator").life == 1


def test_an_actor_that_has_left_is_not_listed_until_it_is_back(members: Members) -> None:
    for name in ("a", "b"):
        members.join(name, 1, "actor")
    members.disconnect(members.connect("a", 1))
    assert [status.name for status in members.statuses()] == ["b"]
    with pytest.raises(NotFoundError, match=r"'a'.*incarnation 1"):
        members.connect("a", 1)
    members.join("a", 1, "actor")
    members.connect("a", 1)
    assert [status.name for status in members.statuses()] == ["a", "b"]


def test_statuses_list_actors_first_and_by_index(members: Members) -> None:
    members.join("judge", 1, "evaluator")
    members.join("actor-1", 1, "actor")
    member = members.join("actor-0", 1, "actor")
    members.connect("actor-0", 1)
    member.report = ActorReport(4, "int8", 10, 1.0, 0, (), measure_process("actor-0", "actor"))
    statuses = members.statuses()
    assert [status.name for status in statuses] == ["actor-0", "actor-1", "judge"]
    assert [status.connected for status in statuses] == [True, False, False]
    assert statuses[0].report is not None
    assert statuses[0].report.policy_version == 4
    assert members.connected("actor") == 1
    assert members.connected("evaluator") == 0


def test_a_full_run_forgets_actors_that_left_and_refuses_when_all_are_connected(members: Members) -> None:
    for number in range(20_000):
        members.join(f"old-{number}", 1, "actor")
        members.connect(f"old-{number}", 1)
    with pytest.raises(ExhaustedError, match="20000"):
        members.join("new", 1, "actor")
    members.disconnect(members.connect("old-7", 1))
    assert members.join("new", 1, "actor").index == 7
    with pytest.raises(ExhaustedError):
        members.join("old-7", 1, "actor")


def test_an_owner_with_too_many_streamless_members_is_refused_and_others_are_not(
    members: Members, clock: ManualClock
) -> None:
    first = [members.join(f"bad-{number}", 0, "actor", owner="1 at a") for number in range(2000)]
    with pytest.raises(ExhaustedError, match="2000 "):
        members.join("bad", 0, "actor", owner="1 at a")
    # The same ones may come again, also others of the same certificate from elsewhere.
    assert members.join("bad-7", first[7].incarnation, "actor", owner="1 at a") is first[7]
    members.join("good", 0, "actor", owner="1 at b")
    members.connect("bad-3", first[3].incarnation)
    members.join("late", 0, "actor", owner="1 at a")
    with pytest.raises(ExhaustedError):
        members.join("later", 0, "actor", owner="1 at a")
    clock.now += 61.0
    members.join("later", 0, "actor", owner="1 at a")
    members.disconnect(members.connect("bad-3", first[3].incarnation))
    assert members.join("bad-3", first[3].incarnation, "actor", owner="1 at a").state == "joined"


def test_incarnations_grow_with_each_join_and_each_learner_process(members: Members) -> None:
    first, second = members.join("a", 0, "actor"), members.join("b", 0, "actor")
    assert first.incarnation < second.incarnation < members.join("a", 0, "actor").incarnation < 2 << 32
    later = Members(process=2, clock=ManualClock())
    assert later.join("a", 0, "actor").incarnation > 2 << 32


def test_a_repeated_join_after_a_lost_answer_returns_the_same_member(members: Members) -> None:
    first = members.join("a", 0, "actor", nonce=7)
    assert members.join("a", 0, "actor", nonce=7) is first
    assert members.join("a", first.incarnation, "actor", nonce=7) is first
    assert members.join("a", 0, "actor", nonce=8).incarnation > first.incarnation


def test_the_older_of_two_processes_is_refused_after_the_newer_has_joined(members: Members) -> None:
    old = members.join("a", 0, "actor", nonce=1)
    members.connect("a", old.incarnation)
    new = members.join("a", 0, "actor", nonce=2)
    assert members.connected("actor") == 0
    with pytest.raises(ConflictError, match=f"'a'.*{old.incarnation}"):
        members.join("a", old.incarnation, "actor")
    with pytest.raises(ConflictError, match=f"'a'.*{old.incarnation}"):
        members.connect("a", old.incarnation)
    assert members.connect("a", new.incarnation) is new


def test_a_restarted_learner_admits_the_newest_incarnation_and_refuses_older_ones(clock: ManualClock) -> None:
    before = Members(1, clock)
    old, new = before.join("a", 0, "actor"), before.join("a", 0, "actor")
    assert Members(2, clock).join("a", new.incarnation, "actor").incarnation == new.incarnation
    # The newer one has not joined yet, but has stored a segment.
    with pytest.raises(ConflictError, match=f"'a'.*{old.incarnation}"):
        Members(2, clock).join("a", old.incarnation, "actor", newest_stored=new.incarnation)


@pytest.mark.parametrize("incarnation", [2 << 32, 2**63, 2**64 - 1])
def test_an_incarnation_that_the_learner_did_not_assign_is_refused(members: Members, incarnation: int) -> None:
    with pytest.raises(InvalidInputError, match=str(incarnation)):
        members.join("a", incarnation, "actor")
    assert members.statuses() == ()


def test_new_incarnations_are_above_those_in_the_replay(members: Members) -> None:
    stored = 1_700_000_000_000_000_000
    member = members.join("a", 0, "actor", newest_stored=stored)
    assert member.incarnation == stored + 1
    assert members.join("a", stored + 1, "actor", newest_stored=stored) is member


def test_a_member_without_a_stream_for_a_minute_loses_its_index(members: Members, clock: ManualClock) -> None:
    lazy = members.join("a", 0, "actor")
    clock.now = 59.0
    members.join("b", 0, "actor")
    clock.now = 61.0
    assert [status.name for status in members.statuses()] == ["b"]
    assert members.join("c", 0, "actor").index == 0
    with pytest.raises(NotFoundError, match=f"'a'.*{lazy.incarnation}"):
        members.connect("a", lazy.incarnation)
    # It is late, not out.
    assert members.join("a", lazy.incarnation, "actor").index == 2
    members.connect("a", lazy.incarnation)
    clock.now = 500.0
    assert [status.name for status in members.statuses()] == ["a"]


def test_joining_again_restarts_the_minute(members: Members, clock: ManualClock) -> None:
    member = members.join("a", 0, "actor")
    clock.now = 59.0
    members.join("a", member.incarnation, "actor")
    clock.now = 100.0
    assert members.connect("a", member.incarnation) is member


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=200))
def test_a_new_index_is_the_preferred_one_or_the_lowest_free_one(moves: list[tuple[bool, int]]) -> None:
    indexes, held = Indexes(), set[int]()
    for takes, number in moves:
        if not takes:
            indexes.release(number)
            held.discard(number)
            continue
        wishes = (number,) if number % 2 else ()
        lowest = next(index for index in range(len(held) + 1) if index not in held)
        expected = number if wishes and number not in held else lowest
        assert indexes.acquire(*wishes) == expected
        held.add(expected)


def test_a_connected_member_without_reports_is_silent_until_it_reports_again(
    members: Members, clock: ManualClock
) -> None:
    for name in ("a", "b", "c"):
        members.join(name, 1, "actor")
    one, _ = members.connect("a", 1), members.connect("b", 1)
    assert members.names("actor", 10.0) == (["a", "b"], ["c"], [])
    clock.now += 6.0
    report = ActorReport(1, "int8", 0, 0.0, 0, (), measure_process("a", "actor"))
    members.record_report(one, report)
    clock.now += 5.0
    assert members.names("actor", 10.0) == (["a"], ["c"], ["b"])
    clock.now += 20.0
    members.record_report(one, report)
    assert members.names("actor", 10.0)[0] == ["a"]
