"""The operator with an API server that refuses requests, and with changes and crashes at any time."""

import itertools
import re
from collections.abc import Callable, Iterator

import pytest

from actorq.domain.status import RunState
from actorq.errors import ActorQError
from actorq_apps.cluster.connection import UnreachableError
from actorq_apps.operator.controller import Controller, DueQueue
from actorq_apps.operator.reconcile import PERIOD_S, Key
from tests.actorq_apps.cluster.hanging import hanging
from tests.actorq_apps.operator.kube_api import NAMESPACE, Object
from tests.actorq_apps.operator.operator_world import KEY, World, operator_world, training_run


@pytest.fixture
def world() -> Iterator[World]:
    with operator_world() as found:
        yield found


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"environment": ""}, "environment"),
        ({"config": {"no_such_setting": 1}}, "no_such_setting"),
        ({"config": {"environment": "Pendulum-v1"}}, "spec.config.environment"),
    ],
)
def test_an_impossible_setting_is_refused_before_any_object(world: World, spec: Object, text: str) -> None:
    world.run(**spec)
    world.reconcile()
    failed = world.api.condition("tiny", "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "InvalidConfiguration")
    assert text in failed["message"]
    assert "\n" not in failed["message"]
    assert {kind for kind, _ in world.api.there} == {"TrainingRun", "Event"}
    assert world.api.reasons() == ["InvalidConfiguration"]


def test_a_specification_that_is_nested_too_deeply_is_a_condition_of_this_run_alone(world: World) -> None:
    world.api.replaced = {b'"deep"': b"[" * 3000 + b"]" * 3000}
    world.run(config={"environment_args": {"x": "deep"}})
    world.api.put(training_run("good"))
    due: DueQueue[Key] = DueQueue()
    controller = Controller(world.api.cluster(), (NAMESPACE,), due, world.operator)
    controller.list_runs()
    keys = [due.get(0), due.get(0)]
    assert sorted(key.name for key in keys if key) == ["good", "tiny"]
    for key in keys:
        assert key is not None
        controller.reconcile(key)
    assert controller.reconciles == {"done": 2, "conflict": 0, "failed": 0}
    failed = world.api.condition("tiny", "Failed")
    assert failed["reason"] == "InvalidConfiguration"
    assert re.match("spec .* 32 levels", failed["message"])
    assert world.api.condition("good", "Failed")["status"] == "False"
    assert world.api.names("StatefulSet") == {"good-learner"}


def test_reports_a_name_in_use_and_keeps_its_object(world: World) -> None:
    taken = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "tiny-learner"}, "spec": {"mine": True}}
    world.api.put(taken)
    world.run()
    world.reconcile()
    assert world.api.condition("tiny", "Failed")["reason"] == "NameInUse"
    assert "Service tiny-learner" in world.api.condition("tiny", "Failed")["message"]
    assert world.api.get("Service", "tiny-learner")["spec"] == {"mine": True}
    assert not world.api.names("Deployment")
    world.api.delete("Service", "tiny-learner")
    world.reconcile()
    assert world.api.condition("tiny", "Failed")["status"] == "False"
    assert world.api.names("Deployment")


def test_a_secret_of_somebody_else_is_neither_replaced_nor_deleted(world: World) -> None:
    data = {"tls.crt": "bWluZQ==", "tls.key": "bWluZQ=="}
    world.api.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tiny-learner-tls"}, "data": data})
    world.run(tls={"mode": "generated"})
    world.reconcile()
    assert world.api.condition("tiny", "Failed")["reason"] == "NameInUse"
    assert "Secret tiny-learner-tls" in world.api.condition("tiny", "Failed")["message"]
    assert world.api.get("Secret", "tiny-learner-tls")["data"] == data
    world.api.delete("TrainingRun", "tiny")
    assert "tiny-learner-tls" in world.api.names("Secret")


def test_a_run_with_progress_keeps_its_settings(world: World) -> None:
    world.start()
    world.run(config={"replay": {"capacity": 12_345}})
    world.at += 5
    world.reconcile()
    ready = world.api.condition("tiny", "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Immutable")
    assert "replay.capacity" in ready["message"]
    assert "12345" not in world.api.get("ConfigMap", "tiny-run-config")["data"]["config.yaml"]
    assert world.api.condition("tiny", "Failed")["status"] == "False"
    assert world.api.status("tiny")["state"] == "Training"


@pytest.mark.parametrize(
    "spec",
    [
        {"config": {"no_such_setting": 1}},
        {"config": {"replay": {"capacity": 12_345}}},
        {"config": {"transport": {"drain_s": 1000}}},
    ],
    ids=["impossible", "kept", "cannot be rendered"],
)
def test_a_run_whose_specification_has_a_fault_can_be_suspended(world: World, spec: Object) -> None:
    world.start()
    world.run(**spec, suspend=True)
    world.settle()
    world.api.kubelet()
    world.settle()
    assert not world.api.names("Pod")
    assert world.api.status("tiny")["state"] == "Suspended"
    assert world.api.condition("tiny", "Ready")["reason"] in ("InvalidConfiguration", "Immutable")
    world.place()
    assert {"tiny-learner-0", "tiny-actor-0"} <= world.api.names("Pod")


def test_updates_the_status_of_a_training_run_with_an_invalid_new_specification(world: World) -> None:
    world.start()
    world.run(config={"no_such_setting": 1})
    world.settle()
    assert world.reconcile() is not None
    world.send(environment_steps=5000)
    assert world.api.status("tiny")["environmentSteps"] == 5000


def test_a_suspended_run_that_the_server_refuses_to_change_is_not_ready(world: World) -> None:
    said = 'User "operator" cannot patch resource "deployments" in API group "apps" in the namespace "lab"'
    world.start()
    world.api.refuse = lambda verb, kind, name: (
        (403, said) if kind == "Deployment" and verb in ("apply", "patch") else None
    )
    world.run(suspend=True)
    world.settle()
    assert world.api.condition("tiny", "Ready")["reason"] == "NoPermission"
    assert world.api.get("StatefulSet", "tiny-learner")["spec"]["replicas"] == 0


def test_a_quota_is_named(world: World) -> None:
    def refuse(verb: str, kind: str, name: str) -> tuple[int, str] | None:
        return (
            (403, f'persistentvolumeclaims "{name}" is forbidden: exceeded quota: small')
            if (verb == "apply" and kind == "PersistentVolumeClaim")
            else None
        )

    world.api.refuse = refuse
    world.run()
    world.reconcile()
    assert world.api.condition("tiny", "Ready")["reason"] == "Quota"
    assert "exceeded quota: small" in world.api.condition("tiny", "Ready")["message"]
    assert world.api.reasons() == ["Quota"]


def test_a_missing_permission_names_the_rule_to_add(world: World) -> None:
    said = 'User "operator" cannot patch resource "deployments" in API group "apps" in the namespace "lab"'
    world.api.refuse = lambda verb, kind, name: (403, said) if (verb, kind) == ("apply", "Deployment") else None
    world.run()
    world.reconcile()
    ready = world.api.condition("tiny", "Ready")
    assert ready["reason"] == "NoPermission"
    assert re.search("Role .*patch .*deployments.apps", ready["message"])


@pytest.mark.parametrize("secrets_too", [True, False])
def test_a_namespace_that_the_operator_is_not_allowed_in_names_the_command(world: World, secrets_too: bool) -> None:
    account = "system:serviceaccount:actorq-system:actorq-operator"

    def refuse(verb: str, kind: str, name: str) -> tuple[int, str] | None:
        plural = f"{kind.lower()}s"
        said = f'User "{account}" cannot {verb} resource "{plural}" in API group "" in the namespace "lab"'
        seen = kind in ("TrainingRun", "Event") or (kind != "Secret" and not secrets_too)
        return None if seen else (403, said)

    world.api.refuse = refuse
    world.run(tls={"mode": "generated"})
    assert world.reconcile() == PERIOD_S
    ready = world.api.condition("tiny", "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NoPermission")
    kinds = "statefulsets" if secrets_too else "secrets"
    command = (
        "`kubectl create rolebinding actorq-operator-runs -n lab "
        "--clusterrole=actorq-operator-runs --serviceaccount=actorq-system:actorq-operator`"
    )
    assert re.search(f"{account} .*list {kinds} .* lab; .*{command}", ready["message"])
    assert world.api.reasons() == ["NoPermission"]
    assert not world.api.names("Pod")
    world.api.refuse = lambda *_: None
    world.reconcile()
    assert world.api.condition("tiny", "Ready")["reason"] == "Starting"


def test_a_run_without_tls_needs_no_permission_for_secrets(world: World) -> None:
    world.api.forbidden = {(verb, "secrets") for verb in ("get", "list", "patch", "create", "delete")}
    world.start(ttlSecondsAfterFinished=0)
    world.settle()
    assert world.api.condition("tiny", "Ready")["status"] == "True"
    world.send(state=RunState.SOLVED)
    world.at += 60
    world.settle()
    assert {kind for kind, _ in world.api.there} == {"TrainingRun", "PersistentVolumeClaim", "Event"}


def test_a_server_that_hangs_for_one_request_leaves_the_status_as_it_is(world: World) -> None:
    world.start()
    world.settle()
    before = world.api.status("tiny")
    world.api.delete("Service", "tiny-learner")
    world.at += 60
    impatient = world.api.cluster().at(NAMESPACE, timeout_s=0.2)
    world.operator.close()
    world.operator = world.another(impatient)
    with hanging(world.api, lambda verb, kind: verb == "apply") as requests, pytest.raises(UnreachableError):
        world.reconcile()
    assert not requests.outlasted
    assert world.api.status("tiny") == before


def test_a_missing_cert_manager_is_a_condition_until_it_is_there(world: World) -> None:
    world.run(tls={"mode": "issuer", "issuer": {"name": "company"}})
    world.reconcile()
    failed = world.api.condition("tiny", "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "KindMissing")
    assert re.search("Certificate .*cert-manager.io/v1.*tls.mode generated", failed["message"])
    assert world.api.reasons() == ["KindMissing"]
    assert not world.api.names("Deployment")
    world.api.kinds["cert-manager.io/v1"] = [("Certificate", "certificates", True)]
    world.reconcile()
    assert ("apply", "Certificate", "tiny-learner") in world.api.writes
    assert world.api.condition("tiny", "Failed")["status"] == "False"


@pytest.mark.parametrize(
    ("kind", "resource"),
    [
        ("Service", "services"),
        ("StatefulSet", "statefulsets"),
        ("Deployment", "deployments"),
        ("Pod", "pods"),
    ],
)
def test_a_permission_that_is_missing_to_list_objects_is_a_condition(world: World, kind: str, resource: str) -> None:
    said = f'User "operator" cannot list resource "{resource}" in API group "" in the namespace "lab"'
    world.api.refuse = lambda verb, what, name: (403, said) if (verb, what) == ("list", kind) else None
    world.run()
    assert world.reconcile() == PERIOD_S
    ready = world.api.condition("tiny", "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NoPermission")
    assert re.search(f"Role .*list .*{resource}", ready["message"])
    world.api.refuse = lambda *_: None
    world.reconcile()
    assert world.api.condition("tiny", "Ready")["reason"] == "Starting"


def test_without_permission_to_list_pods_the_figures_stay(world: World) -> None:
    world.start()
    world.settle()
    before = world.api.status("tiny")
    said = 'User "operator" cannot list resource "pods" in API group "" in the namespace "lab"'
    world.api.refuse = lambda verb, kind, name: (403, said) if (verb, kind) == ("list", "Pod") else None
    world.settle()
    after = world.api.status("tiny")
    assert world.api.condition("tiny", "Ready")["reason"] == "NoPermission"
    figures = ("state", "actors", "environmentSteps", "stepsPerSecond", "startedAt")
    assert [after[each] for each in figures] == [before[each] for each in figures]
    assert world.api.condition("tiny", "Training")["status"] == "True"
    world.api.refuse = lambda *_: None
    world.settle()
    assert world.api.condition("tiny", "Ready")["status"] == "True"


def test_without_permission_to_list_pods_a_finished_run_is_checked_again(world: World) -> None:
    world.start(ttlSecondsAfterFinished=0)
    world.send(state=RunState.SOLVED)
    said = 'User "operator" cannot list resource "pods" in API group "" in the namespace "lab"'
    world.api.refuse = lambda verb, kind, name: (403, said) if (verb, kind) == ("list", "Pod") else None
    world.at += 60
    assert world.reconcile() == world.reconcile() == PERIOD_S
    assert world.api.status("tiny")["state"] == "Solved"
    assert re.search("Role .*list .*pods", world.api.condition("tiny", "Ready")["message"])


def test_pods_without_an_image_are_a_condition(world: World) -> None:
    world.run()
    world.reconcile()
    world.api.kubelet()
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    pod = world.api.get("Pod", "tiny-learner-0")
    pod["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"name": "c", "image": "x:1", "state": {"waiting": waiting}}],
    }
    world.reconcile()
    assert world.api.condition("tiny", "Ready")["reason"] == "ImagePull"
    assert "x:1" in world.api.status("tiny")["reason"]
    assert world.api.reasons() == ["ImagePull"]


def test_an_operator_killed_after_any_request_reaches_the_same_result(world: World) -> None:
    """Each operator makes some requests and dies. The next one continues, and reports nothing twice."""

    def live(requests: int) -> None:
        left = itertools.count(requests, -1)
        world.api.refuse = lambda verb, kind, name: (500, "killed") if next(left) <= 0 else None
        world.operator.close()
        world.operator = world.another()
        try:
            world.reconcile()
        except ActorQError:
            pass
        finally:
            world.api.refuse = lambda verb, kind, name: None

    world.run(tls={"mode": "none"})
    whole = _requests_of(world, lambda: world.operator.reconcile(Key(NAMESPACE, "other")), "other")
    for requests in range(1, whole + 2):
        live(requests)
    assert world.api.names("Deployment") >= {"tiny-actor", "tiny-quantizer", "tiny-evaluator"}
    assert {name.replace("other", "tiny") for _, name in world.api.there if name.startswith("other-")} <= {
        name for _, name in world.api.there
    }
    assert len(world.api.reasons()) == len(set(world.api.reasons()))
    applied = [each for each in world.api.writes if each[0] == "apply" and each[2].startswith("tiny")]
    assert len(applied) == len(set(applied))


def _requests_of(world: World, do: Callable[[], object], name: str) -> int:
    """The number of requests in a complete reconciliation of another run."""
    count = itertools.count(1)
    last = 0

    def counted(verb: str, kind: str, called: str) -> None:
        nonlocal last
        last = next(count)

    world.api.put(training_run(name))
    world.api.refuse = counted
    do()
    world.api.refuse = lambda verb, kind, called: None
    return last


def test_reconciles_again_after_a_conflict_with_another_client(world: World) -> None:
    world.place()
    queue_of_runs: DueQueue[Key] = DueQueue()
    controller = Controller(world.api.cluster(), (), queue_of_runs, world.operator)
    before = world.api.status("tiny")

    def scaled_meanwhile(verb: str, kind: str, name: str) -> None:
        if verb == "patch status" and world.api.get("TrainingRun", "tiny")["metadata"]["generation"] == 1:
            world.api.scale("tiny", 5)

    world.at += PERIOD_S
    world.api.refuse = scaled_meanwhile
    controller.reconcile(KEY)
    assert world.api.status("tiny") == before
    assert queue_of_runs.get(10) == KEY
    controller.reconcile(KEY)
    assert world.api.get("Deployment", "tiny-actor")["spec"]["replicas"] == 5


def test_starts_only_the_runs_that_are_not_suspended(world: World) -> None:
    names = [f"run-{index}" for index in range(20)]
    for name in names:
        world.api.put(training_run(name, suspend=True))
        world.reconcile(Key(NAMESPACE, name))
    world.api.kubelet()
    assert not world.api.names("Pod")
    for name in names[:2]:
        world.api.put(training_run(name))
        world.reconcile(Key(NAMESPACE, name))
    world.api.kubelet()
    learners = {name for name in world.api.names("Pod") if name.endswith("-learner-0")}
    assert learners == {"run-0-learner-0", "run-1-learner-0"}
    for name in names:
        world.api.delete("TrainingRun", name)
    assert {kind for kind, _ in world.api.there} <= {"PersistentVolumeClaim", "Event"}
