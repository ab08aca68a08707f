"""A run whose learner or quantizer was restarted more often than spec.backoffLimit says has failed."""

import re
from collections.abc import Iterator
from copy import deepcopy

import pytest

from actorq.domain.status import RunState
from actorq.errors import ActorQError
from actorq_apps.cluster.training_runs import recorded_end
from actorq_apps.operator.reconcile import PERIOD_S
from actorq_apps.operator.status.observed_run import timestamp
from tests.actorq_apps.operator.kube_api import Object
from tests.actorq_apps.operator.operator_world import World, operator_world


@pytest.fixture
def world() -> Iterator[World]:
    with operator_world() as found:
        yield found


def restart(world: World, pod: str, count: int, code: int = 1) -> None:
    """Report this number of restarts of a pod's container."""
    changed = deepcopy(world.api.get("Pod", pod))
    ended = {"terminated": {"exitCode": code, "finishedAt": timestamp(world.at)}}
    (container,) = changed["status"]["containerStatuses"]
    container |= {"restartCount": count, "lastState": ended}
    world.api.put(changed)
    world.at += PERIOD_S


def pods_of(world: World) -> set[str]:
    world.api.kubelet()
    return world.api.names("Pod")


def test_a_restart_more_than_the_limit_ends_the_run(world: World) -> None:
    world.start(backoffLimit=2, ttlSecondsAfterFinished=100)
    restart(world, "tiny-learner-0", 1)
    restart(world, "tiny-quantizer-0", 1)
    world.settle()
    assert (world.api.status("tiny")["restarts"], world.api.status("tiny")["state"]) == (2, "Training")
    restart(world, "tiny-learner-0", 2, code=137)
    world.settle()
    status = world.api.status("tiny")
    said = status["reason"]
    assert status["state"] == "Failed"
    assert re.match(r"3 restarts .*spec\.backoffLimit .* 2;.* learner .*exit code 137$", said)
    for kind in ("Failed", "Stalled"):
        failed = world.api.condition("tiny", kind)
        assert (failed["status"], failed["reason"], failed["message"]) == ("True", "BackoffLimitExceeded", said)
    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    assert [conditions[each] for each in ("Ready", "Finished", "Solved", "Training")] == [
        *("False", "True", "False", "False"),
    ]  # fmt: skip
    assert world.api.reasons() == ["Started", "BackoffLimitExceeded"]
    # Only its volumes and its objects remain.
    assert pods_of(world) == set()
    with pytest.raises(ActorQError, match=r"TrainingRun tiny .* lab .*: 3 restarts"):
        recorded_end(world.api.cluster(run="tiny"))
    world.at += 100
    world.settle()
    assert {kind for kind, _ in world.api.there} == {"TrainingRun", "PersistentVolumeClaim", "Event"}
    assert world.api.status("tiny")["reason"] == said
    assert world.reconcile() is None


def test_a_failed_run_stays_failed_with_a_higher_limit(world: World) -> None:
    world.start(backoffLimit=0)
    restart(world, "tiny-quantizer-0", 1)
    world.settle()
    said = world.api.status("tiny")["reason"]
    world.run(backoffLimit=10)
    world.settle()
    assert (world.api.status("tiny")["state"], world.api.status("tiny")["reason"]) == ("Failed", said)
    assert pods_of(world) == set()


def test_a_move_to_another_node_is_no_restart_and_an_operator_that_was_killed_counts_on(world: World) -> None:
    world.start(backoffLimit=2)
    restart(world, "tiny-learner-0", 2)
    world.settle()
    world.api.delete("Pod", "tiny-learner-0")
    world.operator.close()
    world.operator = world.another()
    world.api.kubelet()
    world.settle()
    assert world.api.status("tiny")["restarts"] == 2
    assert world.api.status("tiny")["restartsOfPods"] == []
    assert world.api.status("tiny")["state"] != "Failed"
    restart(world, "tiny-learner-0", 1)
    world.settle()
    assert world.api.status("tiny")["restarts"] == 3
    assert world.api.status("tiny")["state"] == "Failed"


@pytest.mark.parametrize("spec", [{}, {"backoffLimit": 5}], ids=["no limit", "a limit"])
def test_restarts_of_actors_and_those_below_the_limit_end_no_run(world: World, spec: Object) -> None:
    world.start(**spec)
    restart(world, "tiny-actor-0", 100)
    restart(world, "tiny-learner-0", 5)
    world.settle()
    assert world.api.condition("tiny", "Failed")["status"] == "False"
    assert world.api.status("tiny")["restarts"] == 5


def test_a_run_that_cannot_begin_fails_by_its_limit(world: World) -> None:
    world.place(backoffLimit=3)
    restart(world, "tiny-learner-0", 4, code=2)
    world.settle()
    assert world.api.condition("tiny", "Failed")["reason"] == "BackoffLimitExceeded"
    assert pods_of(world) == set()


def test_a_run_that_ends_by_itself_is_not_failed_afterwards(world: World) -> None:
    world.start(backoffLimit=0)
    world.send(state=RunState.SOLVED)
    restart(world, "tiny-learner-0", 1)
    world.settle()
    assert world.api.status("tiny")["state"] == "Solved"
    assert world.api.condition("tiny", "Failed")["status"] == "False"
