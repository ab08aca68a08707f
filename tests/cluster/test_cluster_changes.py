"""Changes a training run: its configuration, its volumes, its number of learners. The tests of this module depend on
each other and run in order.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from actorq_apps.cluster.logs import last_log_line
from actorq_apps.cluster.manifests import render
from actorq_apps.cluster.objects import RUN_LABEL, Object
from tests.cluster.cluster_run import ClusterRun, Timings, on_cluster
from tests.cluster.older_kubernetes import Overlays

pytestmark = on_cluster(300)

_KUBECTL_S = 60


@pytest.fixture(scope="module")
def run(new_namespace: Callable[[], str], overlays: Overlays) -> Iterator[ClusterRun]:
    run = ClusterRun.in_namespace(new_namespace(), overlays.path("endless"))
    run.up()
    yield run
    run.down("--delete-volume")


def kubectl(run: ClusterRun, *arguments: str) -> str:
    """What kubectl prints; it must succeed."""
    completed = subprocess.run(
        ["kubectl", *arguments, "-n", run.cluster.namespace],
        capture_output=True,
        text=True,
        timeout=_KUBECTL_S,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def changed(run: ClusterRun, folder: Path, change: Callable[[Object], None]) -> str:
    """A file with the run's objects, each changed by `change`."""
    objects = render(run.overlay)
    for each in objects:
        change(each)
    path = folder / "endless.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return str(path)


def with_settings(run: ClusterRun, folder: Path, **settings: Any) -> str:
    """The run with other settings in its configuration."""

    def change(each: Object) -> None:
        if each["kind"] == "ConfigMap":
            tree = yaml.safe_load(each["data"]["config.yaml"])
            each["data"]["config.yaml"] = yaml.safe_dump({**tree, **settings})

    return changed(run, folder, change)


def uids(run: ClusterRun) -> dict[str, str]:
    """The uids of the pods, by name."""
    pods = run.cluster.list("v1", "Pod", "app.kubernetes.io/name=actorq")
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in pods}


def test_a_normal_start_leaves_few_warnings(run: ClusterRun, timings: Timings) -> None:
    events = run.cluster.list("v1", "Event")
    unhealthy = [each for each in events if each.get("reason") == "Unhealthy"]
    # The test records the number without a limit, because other work of the machine slows each start.
    timings.record("Unhealthy events of a start, not seconds", float(len(unhealthy)))
    assert not [each for each in events if each.get("reason") == "BackOff"]


def test_the_volumes_carry_the_name_of_the_run(run: ClusterRun) -> None:
    owners = {each["metadata"]["name"]: each["metadata"]["labels"][RUN_LABEL] for each in run.volumes()}
    assert owners == {"data-learner-0": "endless", "policies": "endless"}


def test_kubectl_apply_accepts_the_overlay_of_a_running_run(run: ClusterRun) -> None:
    before = uids(run)
    flag = "-k" if Path(run.overlay).is_dir() else "-f"
    kubectl(run, "apply", flag, run.overlay)
    run.up()
    assert uids(run) == before, "nothing has changed, so nothing is replaced"


def test_a_setting_that_the_run_keeps_is_refused(run: ClusterRun, tmp_path: Path) -> None:
    run.until(lambda status: status.environment_steps > 0)
    before = uids(run)
    fault = run.failing("up", with_settings(run, tmp_path, environment="MountainCar-v0"))
    assert re.match("error: environment .*'CartPole-v1' .*'MountainCar-v0'", fault)
    assert uids(run) == before


def test_another_setting_replaces_the_pods_that_read_it(run: ClusterRun, tmp_path: Path) -> None:
    before = uids(run)
    run.command("up", with_settings(run, tmp_path, target_return=2.0e6))
    assert run.until(lambda status: True).target_return == 2.0e6
    # A draining actor may exist for a while.
    while set(uids(run).values()) & set(before.values()):
        run.cluster.await_pod_change("", 1)
    assert "configuration has changed" not in run.status_command()


def test_status_reports_a_configuration_that_no_pod_has_read(run: ClusterRun) -> None:
    flag = "-k" if Path(run.overlay).is_dir() else "-f"
    kubectl(run, "apply", flag, run.overlay)
    assert re.search("configuration has changed .*learner-0, ", run.status_command())


def test_volumes_of_another_size_are_refused_in_one_line(run: ClusterRun, tmp_path: Path) -> None:
    def grow(each: Object) -> None:
        if each["kind"] == "StatefulSet":
            each["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] = "3Gi"

    def shrink(each: Object) -> None:
        if each["kind"] == "PersistentVolumeClaim":
            each["spec"]["resources"]["requests"]["storage"] = "1Gi"

    fault = run.failing("up", changed(run, tmp_path, grow))
    assert "cannot grow" in fault or "--cascade=orphan" in fault
    fault = run.failing("up", changed(run, tmp_path, shrink))
    assert re.match("error: .*PersistentVolumeClaim policies: .*can not be less than", fault)


def test_a_second_learner_refuses_and_gets_no_calls(run: ClusterRun) -> None:
    kubectl(run, "scale", "statefulset/learner", "--replicas=2")
    refusal = re.compile("--pod: .*learner-0 .*learner-1")
    run.await_pods(
        lambda pods: refusal.search(last_log_line(run.cluster, "learner-1", "learner")) is not None, "learner"
    )
    endpoints = run.cluster.get("v1", "Endpoints", "learner")
    assert endpoints
    subsets = endpoints["subsets"]
    names = {
        address["targetRef"]["name"]
        for subset in subsets
        for address in (*subset.get("addresses", ()), *subset.get("notReadyAddresses", ()))
    }
    assert names == {"learner-0"}
    now = run.until(lambda status: True)
    run.until(lambda status: status.environment_steps > now.environment_steps)
    kubectl(run, "scale", "statefulset/learner", "--replicas=1")
    run.await_pods(lambda pods: len(pods) == 1, "learner")
