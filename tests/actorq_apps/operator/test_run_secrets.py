"""Which Secrets a run may read, and the operator's reports about the others."""

import re
from collections.abc import Iterator

import pytest

from tests.actorq_apps.operator.kube_api import Object
from tests.actorq_apps.operator.operator_world import World, operator_world


@pytest.fixture
def world() -> Iterator[World]:
    with operator_world() as found:
        yield found


STORED: Object = {"config": {"checkpoint": {"object_storage": "s3://bucket/run"}}}


def credentials_of(world: World) -> list[Object]:
    """The sources of the learner's environment."""
    (container,) = world.api.get("StatefulSet", "tiny-learner")["spec"]["template"]["spec"]["containers"]
    found: list[Object] = container.get("envFrom", [])
    return found


def secret(name: str = "object-storage", **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}, "data": {"a": "Yg=="}}


def test_a_run_reads_no_secret_that_its_owner_has_not_labelled_for_runs(world: World) -> None:
    world.api.put(secret("payroll"))
    world.run(**STORED, checkpoint={"secret": "payroll"})
    world.reconcile()
    failed = world.api.condition("tiny", "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "NoSecret")
    command = "`kubectl label -n lab secret payroll actorq.dev/credentials=true`"
    assert re.match(f"Secret payroll .*{command}$", failed["message"])
    assert not world.api.names("StatefulSet")
    world.api.put(secret("payroll", **{"actorq.dev/credentials": "true"}))
    world.reconcile()
    assert world.api.condition("tiny", "Failed")["status"] == "False"
    assert credentials_of(world) == [{"secretRef": {"name": "payroll", "optional": True}}]


def test_names_a_missing_secret_unless_the_learner_can_work_without_it(world: World) -> None:
    world.run(**STORED, checkpoint={"secret": "mine"})
    world.reconcile()
    assert re.search("Secret mine .*spec.checkpoint.secret .*missing", world.api.condition("tiny", "Failed")["message"])
    # With workload identity there is no Secret.
    world.run(**STORED)
    world.reconcile()
    assert world.api.condition("tiny", "Failed")["status"] == "False"
    assert not credentials_of(world)


@pytest.mark.parametrize(
    "pod",
    [
        {"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "payroll", "key": "t"}}}]},
        {"envFrom": [{"secretRef": {"name": "payroll"}}]},
    ],
    ids=["env", "envFrom"],
)
def test_the_environment_of_a_pod_reads_no_secret_without_the_label(world: World, pod: Object) -> None:
    world.run(actors={"pod": pod})
    world.reconcile()
    assert re.search("Secret payroll .* env .*missing", world.api.condition("tiny", "Failed")["message"])
    world.api.put(secret("payroll"))
    world.reconcile()
    assert world.api.condition("tiny", "Failed")["reason"] == "NoSecret"
    assert not world.api.names("Deployment")
    world.api.put(secret("payroll", **{"actorq.dev/credentials": "true"}))
    world.reconcile()
    assert world.api.condition("tiny", "Failed")["status"] == "False"
    assert world.api.names("Deployment")


def test_a_simulator_reads_no_secret_without_the_label(world: World) -> None:
    variable = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "payroll", "key": "t"}}}
    external = {"image": "robot:1", "env": [variable]}
    world.run(environment="external/robot", actors={"external": external})
    world.api.put(secret("payroll"))
    world.reconcile()
    assert world.api.condition("tiny", "Failed")["reason"] == "NoSecret"
    assert not world.api.names("Deployment")
    world.api.put(secret("payroll", **{"actorq.dev/credentials": "true"}))
    world.reconcile()
    assert world.api.names("Deployment") == {"tiny-quantizer", "tiny-actor"}


def test_a_secret_that_appears_later_is_not_read_without_its_label(world: World) -> None:
    world.run(**STORED)
    world.reconcile()
    world.api.put(secret())
    world.settle()
    # The pods of an earlier reconciliation stay, without the Secret.
    assert not credentials_of(world)
    assert world.api.condition("tiny", "Ready")["reason"] == "NoSecret"
    world.api.put(secret(**{"actorq.dev/credentials": "true"}))
    world.settle()
    assert credentials_of(world)


def test_a_missing_right_to_read_the_secret_is_a_condition(world: World) -> None:
    world.api.forbidden = {("get", "secrets")}
    world.run(**STORED)
    world.reconcile()
    assert world.api.condition("tiny", "Ready")["reason"] == "NoPermission"
