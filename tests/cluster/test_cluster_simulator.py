"""A TrainingRun whose environment is a simulator in the pods of its actors, on a real cluster."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from actorq_apps.cluster.objects import items, part
from tests.cluster.cluster_run import Timings, on_cluster
from tests.cluster.older_kubernetes import Overlays
from tests.cluster.operator_install import Runs, allow, installed

pytestmark = on_cluster(240)

EXAMPLE = Path(__file__).parents[2] / "examples" / "trainingrun" / "simulator.yaml"


@pytest.fixture(scope="module")
def runs(
    overlays: Overlays, new_namespace: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    with installed(overlays.offered, tmp_path_factory.mktemp("operator")):
        found = Runs(new_namespace())
        allow(found.cluster)
        yield found


def test_the_cart_pole_beside_each_actor_trains_to_its_target(runs: Runs, timings: Timings) -> None:
    manifest = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    manifest["spec"] |= {"checkpoint": {"retain": False}, "ttlSecondsAfterFinished": 5}
    begin = time.monotonic()
    name = runs.apply(manifest)
    runs.await_condition(name, "Training")
    while runs.status(name).get("environmentSteps", 0) < 300:
        runs.wait()
    timings.record("TrainingRun with simulators, 300 environment steps", time.monotonic() - begin)
    pods = runs.cluster.list("v1", "Pod", f"actorq/run={name}")
    roles = {part(each, "metadata", "labels")["app.kubernetes.io/component"] for each in pods}
    assert roles == {"learner", "quantizer", "actor"}
    for pod in pods:
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "actor":
            statuses = items(part(pod, "status"), "containerStatuses")
            assert {each["name"] for each in statuses} == {"actor", "simulator"}
    runs.await_condition(name, "Solved")
    timings.record("TrainingRun with simulators solved", time.monotonic() - begin)
    assert runs.status(name)["return"] >= 475
    restarts: dict[str, int] = {}
    while "Pod" in runs.left(name):
        restarts |= runs.restarts(name)
        runs.wait()
    # A simulator that ends with the run may start again until its pod ends. The services do not.
    assert not any(count for pod, count in restarts.items() if "-actor-" not in pod)
    runs.delete(name)
    while runs.left(name):
        runs.wait()
