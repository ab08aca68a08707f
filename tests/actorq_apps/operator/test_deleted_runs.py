"""A deleted TrainingRun leaves nothing, whatever its operator is doing at the time."""

import itertools
import queue
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest

from actorq.domain.status import RunState
from actorq.errors import ActorQError
from actorq_apps.operator.controller import Controller, DueQueue
from actorq_apps.operator.reconcile import PERIOD_S, Key
from tests.actorq_apps.operator.kube_api import NAMESPACE
from tests.actorq_apps.operator.operator_world import KEY, World, operator_world, reconcile_requests, training_run
from tests.builders.run_status import run_status


@pytest.fixture
def world() -> Iterator[World]:
    with operator_world() as found:
        yield found


def test_creates_nothing_again_after_deletion_during_the_start(world: World) -> None:
    world.run(checkpoint={"retain": False})
    world.reconcile()
    world.api.get("TrainingRun", "tiny")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.api.delete("Deployment", "tiny-actor")
    assert world.reconcile() is None
    assert "tiny-actor" not in world.api.names("Deployment")
    world.api.delete("TrainingRun", "tiny")
    assert world.reconcile() is None
    assert {kind for kind, _ in world.api.there} <= {"Event"}


def test_a_run_whose_deletion_was_missed_is_forgotten(world: World) -> None:
    world.run()
    world.reconcile()
    world.api.delete("TrainingRun", "tiny")
    queue_of_runs: DueQueue[Key] = DueQueue()
    controller = Controller(world.api.cluster(), (NAMESPACE,), queue_of_runs, world.operator)
    controller.list_runs()
    assert queue_of_runs.get(0) == KEY
    controller.reconcile(KEY)
    assert world.operator.known() == []


@pytest.mark.parametrize("retain", [True, False])
def test_a_run_that_is_deleted_while_its_operator_is_away_leaves_at_most_its_volumes(
    world: World, retain: bool
) -> None:
    options = {"tls": {"mode": "generated"}, "relays": {"replicas": 1}, "networkPolicies": True}
    world.run(**options, checkpoint={"retain": retain})
    world.reconcile()
    world.api.kubelet()
    assert {"Secret", "NetworkPolicy", "Pod"} <= {kind for kind, _ in world.api.there}
    world.operator.close()
    world.api.delete("TrainingRun", "tiny")
    world.operator = world.another()
    assert world.reconcile() is None
    assert {kind for kind, _ in world.api.there} - {"Event"} == ({"PersistentVolumeClaim"} if retain else set())


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
def test_a_run_that_is_deleted_between_any_two_reconcile_requests_leaves_nothing(world: World, again: bool) -> None:
    manifest = training_run(checkpoint={"retain": False})
    world.api.put(manifest)
    requests = len(reconcile_requests(world))
    for request in range(2, requests + 1):
        world.api.refuse = lambda verb, kind, name: None
        world.api.delete("TrainingRun", "tiny")
        world.reconcile()
        world.api.put(manifest)
        left = itertools.count(request - 1, -1)

        def delete(verb: str, kind: str, name: str, left: Iterator[int] = left) -> None:
            if next(left) == 0:
                world.api.delete("TrainingRun", "tiny")
                if again:
                    world.api.put(manifest)

        world.api.refuse = delete
        with suppress(ActorQError):
            world.reconcile()
        world.api.refuse = lambda verb, kind, name: None
        world.api.collect()
        if again:
            world.settle()
            uid = world.api.get("TrainingRun", "tiny")["metadata"]["uid"]
            made = [each for each in world.api.objects.values() if each["kind"] not in ("TrainingRun", "Event")]
            assert {each["metadata"]["ownerReferences"][0]["uid"] for each in made} == {uid}
            assert "tiny-actor" in world.api.names("Deployment")
        else:
            assert {kind for kind, _ in world.api.there} <= {"Event"}
            world.api.put(manifest)


def test_a_recreated_run_ignores_the_end_of_the_earlier_one(world: World) -> None:
    world.start()
    world.learner.put(run_status(state=RunState.SOLVED, environment_steps=900))
    while "finishedAt" not in world.api.status("tiny"):
        world.at += PERIOD_S
        world.reconcile()
    # Kubernetes deletes a run's dependents slightly later. Its learner still serves.
    del world.api.objects[next(path for path in world.api.objects if path.endswith("/trainingruns/tiny"))]
    world.api.put(training_run())
    while not world.woken.empty():
        world.woken.get()
    world.reconcile()
    assert world.api.status("tiny")["state"] == "Pending"
    assert world.api.condition("tiny", "Ready")["reason"] == "Starting"
    world.learner.put(run_status(state=RunState.SOLVED, environment_steps=900))
    with pytest.raises(queue.Empty):
        world.woken.get(timeout=0.2)
    world.api.collect()
    world.settle()
    assert "finishedAt" not in world.api.status("tiny")
    assert world.api.get("StatefulSet", "tiny-learner")["spec"]["replicas"] == 1
    assert "tiny-actor" in world.api.names("Deployment")


def test_a_recreated_run_waits_for_its_own_certificates(world: World) -> None:
    world.run(tls={"mode": "generated"})
    world.reconcile()
    # Kubernetes deletes the secrets of the earlier run last.
    kept = {path: each for path, each in world.api.objects.items() if each["kind"] == "Secret"}
    world.api.objects = dict(kept)
    world.api.put(training_run(tls={"mode": "generated"}))
    world.reconcile()
    assert re.match("Secret tiny-authority-tls .*deleted", world.api.condition("tiny", "Ready")["message"])
    assert world.api.names("StatefulSet") == set()
    world.api.collect()
    world.settle()
    uid = world.api.get("TrainingRun", "tiny")["metadata"]["uid"]
    made = [each for each in world.api.objects.values() if each["kind"] == "Secret"]
    assert len(made) == len(kept)
    assert {each["metadata"]["ownerReferences"][0]["uid"] for each in made} == {uid}
