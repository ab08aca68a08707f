"""Actors, relays and evaluator have no pods before learner and quantizer have nodes."""

import re
from collections.abc import Iterator
from copy import deepcopy

import pytest

from actorq_apps.operator.reconcile import PERIOD_S, PLACING_PERIOD_S
from actorq_apps.operator.status.observed_run import timestamp
from tests.actorq_apps.operator.operator_world import World, operator_world

WAITING = "actors wait .*learner and quantizer"


@pytest.fixture
def world() -> Iterator[World]:
    with operator_world() as found:
        yield found


def replicas(world: World) -> dict[str, int]:
    return {
        name: world.api.get(kind, name)["spec"]["replicas"]
        for kind, name in world.api.there
        if kind in ("Deployment", "StatefulSet")
    }


def displace(world: World, pod: str) -> None:
    """Remove a pod's node."""
    changed = deepcopy(world.api.get("Pod", pod))
    del changed["spec"]["nodeName"]
    since = timestamp(world.at)
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": since}
    changed["status"] = {"phase": "Pending", "conditions": [{**why, "message": "no GPU"}]}
    world.api.put(changed)


def test_actors_begin_when_learner_and_quantizer_have_nodes(world: World) -> None:
    world.run(relays={"replicas": 1})
    assert world.reconcile() == PLACING_PERIOD_S
    workers = {"tiny-actor": 0, "tiny-evaluator": 0, "tiny-relay": 0}
    assert replicas(world) == {"tiny-learner": 1, "tiny-quantizer": 1, **workers}
    ready = world.api.condition("tiny", "Ready")
    assert ready["reason"] == "Starting"
    assert re.match(WAITING, ready["message"])
    world.api.kubelet()
    displace(world, "tiny-quantizer-0")
    assert world.reconcile() == PLACING_PERIOD_S
    assert replicas(world) == {"tiny-learner": 1, "tiny-quantizer": 1, **workers}
    world.api.delete("Pod", "tiny-quantizer-0")
    world.api.kubelet()
    world.settle()
    assert replicas(world) == {
        **{"tiny-learner": 1, "tiny-quantizer": 1},
        **{"tiny-actor": 2, "tiny-evaluator": 1, "tiny-relay": 1},
    }
    # Nothing is reported about a learner whose first answer is still pending.
    world.at += 10
    world.reconcile()
    assert "learner does not answer" in world.api.condition("tiny", "Ready")["message"]


def test_reports_a_learner_without_a_node_and_starts_no_actors(world: World) -> None:
    world.run()
    world.reconcile()
    world.api.kubelet()
    displace(world, "tiny-learner-0")
    world.at += 60
    assert world.reconcile() == PERIOD_S
    ready = world.api.condition("tiny", "Ready")
    assert ready["reason"] == "Unschedulable"
    assert re.match(f"pod tiny-learner-0 .*: no GPU; {WAITING}", ready["message"])
    assert replicas(world)["tiny-actor"] == 0


def test_actors_stay_while_the_learner_moves(world: World) -> None:
    world.start()
    displace(world, "tiny-learner-0")
    world.at += 60
    world.settle()
    assert world.api.condition("tiny", "Ready")["reason"] == "Unschedulable"
    world.operator.close()
    world.operator = world.another()
    world.api.delete("Pod", "tiny-learner-0")
    world.settle()
    assert replicas(world) == {"tiny-learner": 1, "tiny-quantizer": 1, "tiny-actor": 2, "tiny-evaluator": 1}


def test_actors_wait_again_when_a_suspended_run_continues(world: World) -> None:
    world.start()
    world.run(suspend=True)
    world.settle()
    world.api.kubelet()
    world.run()
    world.reconcile()
    assert replicas(world) == {"tiny-learner": 1, "tiny-quantizer": 1, "tiny-actor": 0, "tiny-evaluator": 0}
    assert re.match(WAITING, world.api.condition("tiny", "Ready")["message"])
    world.api.kubelet()
    world.settle()
    assert replicas(world)["tiny-actor"] == 2
