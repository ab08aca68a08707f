"""TrainingRuns on a real cluster, with the operator from its image and its rights of k8s/operator."""

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

import actorq
from actorq_apps.cluster.logs import last_log_line
from actorq_apps.cluster.objects import items, part
from actorq_apps.operator.resource.training_run import SECRET_LABEL
from tests.builders.s3_server import CREDENTIALS, s3_server
from tests.cluster.cluster_run import Timings, on_cluster
from tests.cluster.older_kubernetes import Overlays
from tests.cluster.operator_install import API_VERSION, KIND, Operator, Runs, allow, example, installed
from tests.cluster.small_volume import SmallVolume

pytestmark = on_cluster(240)

# An unreachable target.
ENDLESS = {"config": {"seed": 1, "target_return": 100_000, "max_environment_steps": 100_000_000}}
VOLUMES = {"PersistentVolumeClaim"}


@pytest.fixture(scope="module")
def operator(overlays: Overlays, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with installed(overlays.offered, tmp_path_factory.mktemp("operator")) as found:
        yield found


@pytest.fixture(scope="module")
def runs(operator: Operator, new_namespace: Callable[..., str]) -> Runs:
    found = Runs(new_namespace())
    allow(found.cluster)
    return found


def test_a_namespace_may_have_runs_once_an_administrator_allows_them(
    operator: Operator, new_namespace: Callable[..., str]
) -> None:
    runs = Runs(new_namespace())
    name = runs.apply(example("refused", **ENDLESS))
    while (ready := runs.condition(name, "Ready")).get("reason") != "NoPermission":
        runs.wait()
    assert not set(runs.left(name))
    command = ready["message"].partition("`")[2].removesuffix("`")
    subprocess.run(shlex.split(command), timeout=60, check=True)
    while not runs.left(name).get("Secret"):
        runs.wait()
    runs.delete(name)


def test_an_impossible_setting_sets_a_condition_and_makes_no_pod(runs: Runs) -> None:
    name = runs.apply(example("wrong", config={"no_such_setting": 1}))
    failed = runs.await_condition(name, "Failed")
    assert failed["reason"] == "InvalidConfiguration"
    assert "no_such_setting" in failed["message"]
    assert runs.left(name) == {}
    runs.delete(name)


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_one_object_trains_cartpole_to_its_target(runs: Runs, timings: Timings, algorithm: str) -> None:
    begin = time.monotonic()
    spec = {"algorithm": algorithm, "ttlSecondsAfterFinished": 5, "checkpoint": {"retain": False}}
    name = runs.apply(example(f"cartpole-{algorithm}", **spec))
    runs.await_condition(name, "Solved")
    timings.record(f"TrainingRun of {algorithm} solved", time.monotonic() - begin)
    status = runs.status(name)
    assert status["state"] == "Solved"
    assert status["return"] >= 475
    assert runs.reasons(name) == ["FirstEvaluation", "FirstPolicy", "Solved", "Started"]
    restarts: dict[str, int] = {}
    while set(runs.left(name)) - VOLUMES:
        restarts |= runs.restarts(name)
        runs.wait()
    assert not any(restarts.values())
    # The test records the number without a limit, because other work of the machine slows each start.
    timings.record(f"Unhealthy events of a TrainingRun of {algorithm}, not seconds", float(runs.unhealthy(name)))
    assert runs.status(name)["state"] == "Solved"
    runs.delete(name)
    while runs.left(name):
        runs.wait()


def test_the_checkpoints_and_the_best_policy_of_a_run_are_in_a_bucket(
    runs: Runs, tmp_path: Path, timings: Timings
) -> None:
    (node,) = runs.cluster.list("v1", "Node")
    address = next(each["address"] for each in items(part(node, "status"), "addresses") if each["type"] == "InternalIP")
    metadata = {"name": "object-storage", "labels": {SECRET_LABEL: "true"}}
    runs.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": CREDENTIALS})
    with s3_server(tmp_path, address=address) as server:
        storage = {"object_storage": "s3://bucket/run", "object_storage_endpoint": server.endpoint, "period_s": 5.0}
        spec = {
            "config": {"checkpoint": storage},
            "checkpoint": {"retain": False},
            "policyExport": {"url": "s3://bucket/policies/cartpole"},
        }
        begin = time.monotonic()
        name = runs.apply(example("exported", **spec))
        runs.await_condition(name, "Finished")
        timings.record("TrainingRun solved, its policy in a bucket", time.monotonic() - begin)
        status = runs.status(name)
        assert status["policy"] == "s3://bucket/policies/cartpole/policy.onnx"
        assert {"PolicyExported", "Solved"} <= set(runs.reasons(name))
        policy = actorq.load_policy(server.bucket / "policies" / "cartpole" / "policy.onnx")
        assert policy.predict([0.0, 0.1, 0.0, -0.1]) in (0, 1)
        assert policy.environment.environment_id == "CartPole-v1"
        assert any(path.is_file() for path in (server.bucket / "run").rglob("*"))
        runs.delete(name)
        while runs.left(name):
            runs.wait()
        # A new run must not replace the policy.
        endpoint = {"checkpoint": {"object_storage_endpoint": server.endpoint}}
        runs.apply(example("other", **{**spec, "config": endpoint}))
        while "kubectl logs" not in str(runs.status("other").get("conditions")):
            runs.wait()
        assert "policy of run" in last_log_line(runs.cluster, "other-learner-0", "learner")
        runs.delete("other")
        assert actorq.load_policy(server.bucket / "policies" / "cartpole" / "policy.onnx").version == policy.version


def test_a_sweep_over_training_runs_continues_after_a_kill(runs: Runs, tmp_path: Path) -> None:
    template = tmp_path / "template.yaml"
    template.write_text(yaml.safe_dump(example("swept", checkpoint={"retain": False})), encoding="utf-8")
    command = [
        *(sys.executable, "-m", "actorq_apps.cli.main", "sweep", "--directory", str(tmp_path / "swept")),
        *("--template", str(template)),
        *("--namespace", runs.cluster.namespace, "--trials", "3", "--jobs", "2", "--objective", "steps"),
        *("--sampler", "random", "--search", "dqn.learning_rate=log:1e-3..4e-3"),
    ]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while len(objects := runs.cluster.list(API_VERSION, KIND, "actorq.dev/sweep")) < 2:
        assert first.poll() is None
        runs.wait()
    first.kill()
    first.wait()
    subprocess.run(command, timeout=200, check=True, stdout=subprocess.DEVNULL)
    trials = json.loads((tmp_path / "swept" / "trials.json").read_text(encoding="utf-8"))
    assert len(trials["trials"]) == 3
    kept = {each["metadata"]["uid"] for each in runs.cluster.list(API_VERSION, KIND, "actorq.dev/sweep")}
    assert {each["metadata"]["uid"] for each in objects} <= kept
    assert len(kept) == 3
    for each in runs.cluster.list(API_VERSION, KIND, "actorq.dev/sweep"):
        runs.delete(each["metadata"]["name"])


def test_a_run_is_deleted_while_its_volume_is_full(runs: Runs, new_namespace: Callable[..., str]) -> None:
    node = runs.cluster.at(new_namespace("privileged"))
    volume = SmallVolume(node, f"full-{runs.cluster.namespace}", megabytes=64)
    try:
        small = {"seed": 1, "replay": {"capacity": 5000}, "checkpoint": {"period_s": 1.0}}
        run = example("full", config=ENDLESS["config"] | small)
        run["spec"]["learner"]["storageClassName"] = volume.storage_class
        name = runs.apply(run)
        runs.await_condition(name, "Training")
        volume.fill()
        runs.delete(name)
        codes: set[int] = set()
        while set(runs.left(name)) - VOLUMES:
            codes |= runs.exit_codes(name, "learner")
            runs.wait()
        # A hanging learner would be killed at the end of its grace period.
        assert 137 not in codes
        assert set(runs.left(name)) == VOLUMES
    finally:
        volume.close()


def test_a_run_is_scaled_while_it_trains_and_outlives_the_operator(
    runs: Runs, operator: Operator, timings: Timings
) -> None:
    pod = {
        "labels": {"team": "rl"},
        "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "8Mi"}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    name = runs.apply(example("endless", **ENDLESS, evaluator={"pod": pod}))
    runs.await_condition(name, "Training")
    runs.await_condition(name, "Ready")
    (evaluator,) = runs.cluster.list("v1", "Pod", "team=rl")
    assert {"name": "scratch", "mountPath": "/scratch"} in evaluator["spec"]["containers"][0]["volumeMounts"]
    with timings.measure("TrainingRun scaled from 2 to 3 actors"):
        assert runs.autoscale(name, 3) == 2
        runs.await_actors(name, 3)
    killed = operator.leader()
    operator.kill()
    with timings.measure("another operator takes over from a deleted one"):
        operator.await_leader(other_than=killed)
    steps = runs.status(name)["environmentSteps"]
    runs.scale(name, 2)
    runs.await_actors(name, 2)
    while runs.status(name)["environmentSteps"] <= steps:
        runs.wait()
    assert "Interrupted" not in runs.reasons(name)


def test_deletion_without_an_operator_keeps_the_volumes(runs: Runs, operator: Operator) -> None:
    operator.scale(0)
    runs.delete("endless")
    while set(runs.left("endless")) - VOLUMES:
        runs.wait()
    assert runs.cluster.get(API_VERSION, KIND, "endless") is None
    assert set(runs.left("endless")) == VOLUMES
