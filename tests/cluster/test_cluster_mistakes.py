"""A user's mistake on a real cluster ends with one line, and leaves only objects that `down` removes."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes import client

from actorq_apps.cluster.manifests import render
from actorq_apps.cluster.objects import RUN_LABEL, Object
from tests.cluster.cluster_run import HERE, ClusterRun, failing_actorq, on_cluster
from tests.cluster.older_kubernetes import Offered, Overlays

pytestmark = on_cluster(300)

PAGE = HERE.parents[1] / "docs" / "how-to" / "cluster-command.md"
ROLE = PAGE.read_text("utf-8").partition("```yaml\n")[2].partition("```")[0]
KINDS = {
    "ConfigMap": "v1",
    "Service": "v1",
    "ServiceAccount": "v1",
    "PersistentVolumeClaim": "v1",
    "StatefulSet": "apps/v1",
    "Deployment": "apps/v1",
}


@pytest.fixture(scope="module")
def run(new_namespace: Callable[[], str], overlays: Overlays) -> Iterator[ClusterRun]:
    run = ClusterRun.in_namespace(new_namespace(), overlays.path("overlay"))
    yield run
    if run.volumes():
        run.down("--delete-volume")


def objects(run: ClusterRun) -> set[tuple[str, str]]:
    """Kind and name of all objects in the namespace that have a run's name, and of its pods."""
    kinds = {**KINDS, "PodDisruptionBudget": Offered.by(run.cluster).budgets}
    found = {
        (kind, each["metadata"]["name"])
        for kind, version in kinds.items()
        for each in run.cluster.list(version, kind, RUN_LABEL)
    }
    return found | {("Pod", pod.name) for pod in run.pods()}


def changed_overlay(run: ClusterRun, folder: Path, change: Callable[[Object], None]) -> str:
    """A file with the overlay's name and its objects, with changed containers."""
    rendered = render(run.overlay)
    for each in rendered:
        if each["kind"] in ("StatefulSet", "Deployment"):
            change(each["spec"]["template"]["spec"]["containers"][0])
    path = folder / "overlay.yaml"
    path.write_text(yaml.safe_dump_all(rendered))
    return str(path)


def only(name: str, change: Callable[[Object], None]) -> Callable[[Object], None]:
    """The change, applied to only one of the containers."""
    return lambda container: change(container) if container["name"] == name else None


def without_image(container: Object) -> None:
    """Set an image that does not exist."""
    container["image"] = f"{container['image'].rpartition(':')[0]}:none"


def test_a_missing_image_is_named_and_down_removes_all_objects(run: ClusterRun, tmp_path: Path) -> None:
    fault = run.failing("up", changed_overlay(run, tmp_path, only("learner", without_image)))
    assert re.match(r"error: pod learner-0 .*image \S*actorq-learner:none \(.+\)", fault)
    assert objects(run)
    run.down("--delete-volume")
    assert objects(run) == set()


def test_a_pod_that_fits_no_node_is_reported(run: ClusterRun, tmp_path: Path) -> None:
    def grow(container: Object) -> None:
        container["resources"] = {"requests": {"cpu": "1000"}, "limits": {"cpu": "1000"}}

    fault = run.failing("up", changed_overlay(run, tmp_path, only("learner", grow)))
    assert re.match("error: pod learner-0 .*scheduled: 0/.*Insufficient cpu", fault)


def test_an_unknown_setting_is_reported_with_the_error_of_the_learner(run: ClusterRun, tmp_path: Path) -> None:
    def misspell(container: Object) -> None:
        container["args"].append("--dqn.bach-size=3")

    fault = run.failing("up", changed_overlay(run, tmp_path, only("learner", misspell)))
    assert re.match("error: pod learner-0 .*exit code 2.*bach-size", fault)


def test_another_up_repairs_a_failed_one(run: ClusterRun) -> None:
    # On a fast cluster, the run is solved before its steps are seen to grow.
    assert re.search(r"run overlay (makes progress|is over: solved)", run.up())


def test_a_second_run_is_refused(run: ClusterRun, overlays: Overlays) -> None:
    before = objects(run)
    fault = run.failing("up", overlays.path("endless"))
    assert re.match(rf"error: namespace {run.cluster.namespace} .*another run \(StatefulSet learner\)", fault)
    assert objects(run) == before


def test_a_failed_upgrade_does_not_count_as_progress(run: ClusterRun, tmp_path: Path) -> None:
    fault = run.failing("up", changed_overlay(run, tmp_path, only("actor", without_image)))
    assert re.match(r"error: pod actor-\S+ .*image \S*actorq-actor:none", fault)


def test_the_volume_of_another_run_is_refused(run: ClusterRun, overlays: Overlays) -> None:
    assert "down --delete-volume" in run.down()
    before = objects(run)
    assert {kind for kind, _ in before} == {"PersistentVolumeClaim"}
    fault = run.failing("up", overlays.path("endless"))
    assert re.match(r"error: PersistentVolumeClaim \S+ .*run endless", fault)
    assert objects(run) == before
    run.down("--delete-volume")
    assert objects(run) == set()


def test_a_missing_namespace_is_reported_with_the_command_that_makes_it(overlays: Overlays) -> None:
    fault = failing_actorq("cluster", "up", overlays.path("overlay"), "-n", "actorq-nowhere")
    assert re.match("error: namespace actorq-nowhere .*`kubectl create namespace actorq-nowhere`", fault)


@pytest.fixture(scope="module")
def somebody(run: ClusterRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kubeconfig of an account without rights."""
    core, namespace = run.cluster.core(), run.cluster.namespace
    core.create_namespaced_service_account(
        namespace, client.V1ServiceAccount(metadata=client.V1ObjectMeta(name="somebody"))
    )
    asked = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[]))
    answer = core.create_namespaced_service_account_token("somebody", namespace, asked)
    assert answer.status
    kubeconfig = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text("utf-8"))
    kubeconfig["users"] = [
        {"name": each["name"], "user": {"token": answer.status.token}} for each in kubeconfig["users"]
    ]
    path = tmp_path_factory.mktemp("somebody") / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    return path


def test_without_a_permission_no_object_is_made(
    run: ClusterRun, somebody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(somebody))
    fault = run.failing("up", run.overlay)
    who = f"system:serviceaccount:{run.cluster.namespace}:somebody"
    assert re.match(rf"error: .*{who} .*list statefulsets\.apps .*{run.cluster.namespace};", fault)
    assert objects(run) == set()


def test_the_documented_role_is_enough(run: ClusterRun, somebody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = {"kind": "ServiceAccount", "name": "somebody", "namespace": run.cluster.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "actorq-runs"}
    run.cluster.create(yaml.safe_load(ROLE))
    run.cluster.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "actorq-runs"},
            "subjects": [subject],
            "roleRef": reference,
        }
    )
    monkeypatch.setenv("KUBECONFIG", str(somebody))
    run.up()
    assert "learner-0" in run.status_command()
    run.command("scale", "actors", "1")
    assert run.command("logs", "learner", "--tail", "1")
    run.down("--delete-volume")
    assert objects(run) == set()


def test_an_overlay_that_cannot_be_rendered_ends_with_one_line(run: ClusterRun, tmp_path: Path) -> None:
    shutil.copytree(HERE / "overlay", tmp_path / "overlay")
    fault = run.failing("up", str(tmp_path / "overlay"))
    assert re.match(f"error: overlay {tmp_path}/overlay .*rendered", fault)
