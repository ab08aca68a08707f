"""The operator with an API server and a learner: objects, status, events, and the end of a run."""

import queue
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy

import pytest

from actorq.domain.status import RunState
from actorq_apps.operator.reconcile import CHECK_PERIOD_S, PERIOD_S
from tests.actorq_apps.cluster.cluster_objects import evicted_pod
from tests.actorq_apps.operator.operator_world import ACTING, World, operator_world, reconcile_requests
from tests.actorq_apps.operator.training_runs import SPECS
from tests.builders.run_status import run_status


@pytest.fixture
def world() -> Iterator[World]:
    with operator_world() as found:
        yield found


def test_a_run_becomes_objects_that_it_owns(world: World) -> None:
    uid = world.run()["metadata"]["uid"]
    world.reconcile()
    assert world.api.names("StatefulSet") == {"tiny-learner"}
    assert world.api.names("Deployment") == {"tiny-quantizer", "tiny-actor", "tiny-evaluator"}
    assert world.api.get("Deployment", "tiny-actor")["metadata"]["ownerReferences"][0]["uid"] == uid
    assert world.api.status("tiny")["state"] == "Pending"
    assert world.api.condition("tiny", "Ready")["reason"] == "Starting"


def test_a_second_reconciliation_writes_nothing(world: World) -> None:
    world.run(tls={"mode": "generated"})
    world.reconcile()
    writes = len(world.api.writes)
    world.at += 100
    world.reconcile()
    assert len(world.api.writes) == writes


def test_recreates_a_deleted_object(world: World) -> None:
    world.run()
    world.reconcile()
    world.api.delete("Deployment", "tiny-actor")
    world.reconcile()
    assert "tiny-actor" in world.api.names("Deployment")


def test_reconciling_a_healthy_run_reads_only_changing_objects(world: World) -> None:
    world.start()
    world.settle()
    # This reconciliation compares all objects.
    world.at += CHECK_PERIOD_S
    world.reconcile()
    assert reconcile_requests(world) == [
        ("get", "TrainingRun"),
        ("list", "StatefulSet"),
        ("list", "Deployment"),
        ("list", "Pod"),
    ]
    world.api.delete("Pod", "tiny-learner-0")
    assert ("list", "PersistentVolumeClaim") in reconcile_requests(world)


def test_recreates_every_deleted_object_of_a_healthy_run(world: World) -> None:
    world.start()
    world.settle()
    world.api.delete("Service", "tiny-quantizer")
    world.at += CHECK_PERIOD_S
    world.reconcile()
    assert "tiny-quantizer" in world.api.names("Service")


def test_scaling_the_run_scales_its_actors_and_nothing_else(world: World) -> None:
    world.place()
    world.api.writes.clear()
    world.api.scale("tiny", 6)
    world.reconcile()
    assert world.api.get("Deployment", "tiny-actor")["spec"]["replicas"] == 6
    assert [each for each in world.api.writes if each[0] == "apply"] == [("apply", "Deployment", "tiny-actor")]


def test_resets_actors_that_were_scaled_by_their_deployment(world: World) -> None:
    world.place()
    scaled = deepcopy(world.api.get("Deployment", "tiny-actor"))
    scaled["spec"]["replicas"] = 9
    world.api.put(scaled)
    world.reconcile()
    assert world.api.get("Deployment", "tiny-actor")["spec"]["replicas"] == 2


def test_deletes_relays_that_are_no_longer_wanted(world: World) -> None:
    world.run(relays={"replicas": 2})
    world.reconcile()
    assert "tiny-relay" in world.api.names("Deployment")
    world.run()
    world.reconcile()
    assert "tiny-relay" not in world.api.names("Deployment")
    assert "tiny-actor" in world.api.names("Deployment")


def test_deletes_network_policies_that_are_no_longer_wanted(world: World) -> None:
    world.run(networkPolicies=True)
    world.reconcile()
    metadata = {"name": "of-somebody", "labels": {"actorq/run": "tiny"}}
    world.api.put({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata})
    assert len(world.api.names("NetworkPolicy")) > 1
    world.run(networkPolicies=False)
    world.reconcile()
    assert world.api.names("NetworkPolicy") == {"of-somebody"}


@pytest.mark.parametrize("options", ["plain", "full"])
def test_deletes_all_objects_of_a_removed_option(world: World, options: str) -> None:
    world.run()
    world.reconcile()
    plain = {each for each in world.api.there if each[0] != "Event"}
    metadata = {"name": "bucket", "labels": {"actorq.dev/credentials": "true"}}
    world.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    plain.add(("Secret", "bucket"))
    world.run(**{**SPECS[options], "tls": {"mode": "none"}})
    world.reconcile()
    assert {"NetworkPolicy", "Deployment"} <= {kind for kind, _ in set(world.api.there) - plain}
    world.run()
    world.reconcile()
    assert {each for each in world.api.there if each[0] != "Event"} == plain


def test_the_status_of_the_learner_becomes_the_status_of_the_run(world: World) -> None:
    world.start()
    world.send(environment_steps=4000, environment_steps_per_s=812.34, policy_version=3, elapsed_s=4.92)
    status = world.api.status("tiny")
    assert (status["state"], status["environmentSteps"], status["stepsPerSecond"]) == ("Training", 4000, 812.3)
    assert (status["policyVersion"], status["actors"], status["elapsedSeconds"]) == (3, 2, 4.9)
    assert status["selector"] == "actorq/run=tiny,app.kubernetes.io/component=actor"
    assert world.api.condition("tiny", "Ready")["status"] == "True"
    assert world.api.condition("tiny", "Training")["status"] == "True"


def test_an_evicted_pod_that_was_replaced_changes_nothing(world: World) -> None:
    world.start()
    world.settle()
    before = deepcopy(world.api.status("tiny"))
    evict_an_actor(world)
    world.settle()
    assert world.api.status("tiny") == before
    assert ("list", "PersistentVolumeClaim") not in reconcile_requests(world)


def test_a_finished_run_rests_despite_an_evicted_pod(world: World) -> None:
    world.start(ttlSecondsAfterFinished=3600)
    evict_an_actor(world)
    world.send(state=RunState.SOLVED)
    world.settle()
    world.api.kubelet()
    world.settle()
    assert world.api.status("tiny")["actors"] == 0
    assert (world.reconcile() or 0) > 3000


def evict_an_actor(world: World) -> None:
    """Leave the remaining object of a replaced actor pod."""
    evicted = evicted_pod("tiny-actor-evicted", "actor")
    labels = world.api.get("Pod", "tiny-actor-0")["metadata"]["labels"]
    evicted["metadata"] |= {"labels": labels, "ownerReferences": [{"uid": "uid-of-a-replica-set"}]}
    world.api.put(evicted)


def test_figures_are_written_at_most_once_in_five_seconds_and_a_new_state_at_once(world: World) -> None:
    world.start()
    before, began = world.api.count("patch status", "TrainingRun"), world.at
    while world.at < began + 60 or world.api.status("tiny")["environmentSteps"] < 1000:
        world.learner.put(run_status(environment_steps=1000 + int(world.at - began), actors=ACTING))
        world.at += 1
        world.reconcile()
    writes = world.api.count("patch status", "TrainingRun")
    assert writes - before <= (world.at - began) / PERIOD_S
    world.learner.put(run_status(state=RunState.PAUSED, environment_steps=5000, actors=ACTING))
    while world.api.status("tiny")["state"] != "Paused":
        world.woken.get(timeout=10)
        world.reconcile()
    assert world.api.count("patch status", "TrainingRun") == writes + 1


def test_reports_each_milestone_in_one_event(world: World) -> None:
    world.start()
    world.send(state=RunState.PAUSED, policy_version=1)
    world.send(state=RunState.TRAINING, policy_version=2)
    world.send(state=RunState.INTERRUPTED)
    world.send(state=RunState.TRAINING)
    world.send(state=RunState.SOLVED)
    assert world.api.reasons() == ["Started", "FirstPolicy", "Interrupted", "Resumed", "Solved"]


def test_another_operator_keeps_the_status_until_the_learner_has_answered_it(world: World) -> None:
    world.start()
    world.settle()
    before, writes = world.api.status("tiny"), len(world.api.writes)
    world.operator.close()
    world.operator = world.another()
    for _ in range(2):
        world.reconcile()
        world.at += 1
    assert (world.api.status("tiny"), len(world.api.writes)) == (before, writes)
    while world.api.status("tiny")["environmentSteps"] != 9000:
        world.learner.put(run_status(environment_steps=9000, actors=ACTING))
        # The stream of the previous operator may take one more status before it ends.
        with suppress(queue.Empty):
            world.woken.get(timeout=1)
        world.reconcile()
    assert world.api.condition("tiny", "Training")["status"] == "True"


def test_another_operator_waits_for_the_first_answer_for_ten_seconds(world: World) -> None:
    world.start()
    world.settle()
    world.operator.close()
    world.operator = world.another()
    with never_answering() as world.learner.address:
        world.reconcile()
        world.at += 9
        world.reconcile()
        assert world.api.condition("tiny", "Ready")["status"] == "True"
        world.at += 1
        world.reconcile()
    assert world.api.condition("tiny", "Ready")["reason"] == "Starting"
    assert world.api.condition("tiny", "Training")["status"] == "False"


@contextmanager
def never_answering() -> Iterator[str]:
    """The address of a server that accepts connections and stays silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_suspended_run_has_no_pods_and_continues_afterwards(world: World) -> None:
    world.start()
    world.run(suspend=True)
    world.reconcile()
    world.api.kubelet()
    world.settle()
    assert not world.api.names("Pod")
    assert world.api.status("tiny")["state"] == "Suspended"
    assert world.api.condition("tiny", "Suspended")["status"] == "True"
    world.run()
    world.reconcile()
    world.api.kubelet()
    world.reconcile()
    assert "tiny-learner-0" in world.api.names("Pod")
    assert world.api.condition("tiny", "Suspended")["status"] == "False"
