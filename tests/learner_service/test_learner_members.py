"""Who gets which index, and when it is free again."""

import pytest

from actorq.errors import ConflictError, ExhaustedError, InvalidInputError, NotFoundError
from actorq.status import ActorReport
from actorq.telemetry.process_stats import measure_process
from learner_service import members as members_module
from learner_service.members import Members


@pytest.fixture
def members() -> Members:
    return Members()


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
    # Its name is known, but somebody else holds its index now.
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
    with pytest.raises(ConflictError, match="incarnation 2 has joined since, got 1"):
        members.join("a", 1, "actor")


def test_only_who_has_joined_may_open_a_stream(members: Members) -> None:
    with pytest.raises(NotFoundError, match="'a' with incarnation 1 has not joined: call Join first"):
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


def test_lives_of_an_index_count_up_whoever_holds_it(members: Members) -> None:
    assert members.join("a", 1, "actor").life == 1
    assert members.join("a", 1, "actor").life == 1  # the same life, joined again
    assert members.join("a", 2, "actor").life == 2
    members.disconnect(members.connect("a", 2))
    heir = members.join("b", 1, "actor")
    assert (heir.index, heir.life) == (0, 3)
    # Other indexes and roles have lives of their own.
    assert members.join("c", 1, "actor").life == 1
    assert members.join("judge", 1, "evaluator").life == 1


def test_who_has_left_is_not_listed_until_it_is_back(members: Members) -> None:
    for name in ("a", "b"):
        members.join(name, 1, "actor")
    members.disconnect(members.connect("a", 1))
    assert [status.name for status in members.statuses()] == ["b"]
    members.connect("a", 1)
    assert [status.name for status in members.statuses()] == ["a", "b"]


@pytest.mark.parametrize("name", ["", "x" * 129])
def test_a_name_has_1_to_128_characters(members: Members, name: str) -> None:
    with pytest.raises(InvalidInputError, match="1 to 128 characters"):
        members.join(name, 1, "actor")


def test_statuses_list_actors_first_and_by_index(members: Members) -> None:
    members.join("judge", 1, "evaluator")
    members.join("actor-1", 1, "actor")
    member = members.join("actor-0", 1, "actor")
    members.connect("actor-0", 1)
    members.report(member, ActorReport(4, "int8", 10, 1.0, 0, (), measure_process("actor-0", "actor")))
    statuses = members.statuses()
    assert [status.name for status in statuses] == ["actor-0", "actor-1", "judge"]
    assert [status.connected for status in statuses] == [True, False, False]
    assert statuses[0].report is not None
    assert statuses[0].report.policy_version == 4
    assert members.connected("actor") == 1
    assert members.connected("evaluator") == 0


def test_a_full_run_forgets_those_who_left_and_refuses_when_all_are_there(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members_module, "_MAX_MEMBERS", 2)
    for name in ("a", "b"):
        members.join(name, 1, "actor")
        members.connect(name, 1)
    with pytest.raises(ExhaustedError, match="at most 2 actors"):
        members.join("c", 1, "actor")
    members.disconnect(members.connect("a", 1))
    assert members.join("c", 1, "actor").index == 0
    assert [status.name for status in members.statuses()] == ["c", "b"]
