"""TrainingRuns on a real cluster, with the operator from its image and the rights that k8s/operator gives it."""

import time
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.cluster_run import Timings, on_cluster
from tests.cluster.older_kubernetes import Overlays
from tests.cluster.operator_install import API_VERSION, KIND, Operator, Runs, example, installed

pytestmark = on_cluster(240)

# Nobody reaches it.
ENDLESS = {"config": {"seed": 1, "target_return": 100_000, "max_environment_steps": 100_000_000}}
VOLUMES = {"PersistentVolumeClaim"}


@pytest.fixture(scope="module")
def operator(overlays: Overlays, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with installed(overlays.offered, tmp_path_factory.mktemp("operator")) as found:
        yield found


@pytest.fixture(scope="module")
def runs(operator: Operator, new_namespace: Callable[[], str]) -> Runs:
    return Runs(new_namespace())


def test_an_impossible_setting_is_a_condition_and_no_pod(runs: Runs) -> None:
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
    timings.note(f"TrainingRun of {algorithm} solved", time.monotonic() - begin)
    status = runs.status(name)
    assert status["state"] == "Solved"
    assert status["return"] >= 475
    assert runs.reasons(name) == ["FirstEvaluation", "FirstPolicy", "Solved"]
    while set(runs.left(name)) - VOLUMES:
        runs.wait()
    assert runs.status(name)["state"] == "Solved"
    runs.delete(name)
    while runs.left(name):
        runs.wait()


def test_a_run_is_scaled_while_it_trains_and_outlives_the_operator(
    runs: Runs, operator: Operator, timings: Timings
) -> None:
    name = runs.apply(example("endless", **ENDLESS))
    runs.await_condition(name, "Training")
    runs.await_condition(name, "Ready")
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


def test_deletion_while_the_operator_is_away_leaves_the_volumes(runs: Runs, operator: Operator) -> None:
    operator.scale(0)
    runs.delete("endless")
    while set(runs.left("endless")) - VOLUMES:
        runs.wait()
    assert runs.cluster.get(API_VERSION, KIND, "endless") is None
    assert set(runs.left("endless")) == VOLUMES
