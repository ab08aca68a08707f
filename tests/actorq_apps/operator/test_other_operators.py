"""Two operators never manage one run: the operator of its namespace does, and the other reports this."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from actorq_apps.operator.leader import LEASE, Times
from actorq_apps.operator.reconcile import LEFT_PERIOD_S
from tests.actorq_apps.operator.operator_world import World, operator_world

HELD_S = Times().duration_s


@pytest.fixture
def world() -> Iterator[World]:
    """A world whose operator is in another namespace than the runs."""
    with operator_world() as found:
        found.operator.close()
        found.operator = found.another(found.api.cluster("actorq-system"))
        yield found


def renew(world: World, holder: str = "pod-of-lab") -> None:
    """The actions of the operator in the runs' own namespace."""
    at = datetime.fromtimestamp(world.at, UTC).isoformat()
    spec = {"holderIdentity": holder, "renewTime": at, "leaseDurationSeconds": 15}
    world.api.put({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}, "spec": spec})


def test_the_runs_of_a_namespace_with_an_operator_of_its_own_are_left_to_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.run()
    for _ in range(10):
        renew(world)
        assert world.reconcile() == LEFT_PERIOD_S
        world.at += LEFT_PERIOD_S
    assert {kind for kind, _ in world.api.there} == {"TrainingRun", "Event", "Lease"}
    assert "status" not in world.api.get("TrainingRun", "tiny")
    assert world.api.reasons() == ["OtherOperator"]
    (told,) = [each for each in caplog.messages if "manages this run" in each]
    assert re.match("lab/tiny: .*namespace lab .*namespace actorq-system", told)


@pytest.mark.parametrize("released", [True, False])
def test_takes_over_runs_when_the_operator_of_their_namespace_is_gone(world: World, released: bool) -> None:
    renew(world)
    world.run()
    world.reconcile()
    if released:
        renew(world, holder="")
    for _ in range(1 if released else 2):
        world.at += HELD_S
        world.reconcile()
    assert world.api.names("StatefulSet") == {"tiny-learner"}
    assert world.api.status("tiny")["state"] == "Pending"


def test_a_run_is_left_as_soon_as_its_namespace_has_an_operator(world: World) -> None:
    world.start()
    world.settle()
    renew(world)
    world.at += HELD_S
    writes = len(world.api.writes)
    assert world.reconcile() == LEFT_PERIOD_S
    assert world.api.writes[writes:] == [("create", "Event", world.api.writes[-1][2])]
    assert world.operator.known() == []


def test_an_operator_that_may_not_see_leases_works_as_before(world: World) -> None:
    world.api.forbidden = {("get", "leases")}
    renew(world)
    world.run()
    world.reconcile()
    assert world.api.names("StatefulSet") == {"tiny-learner"}
