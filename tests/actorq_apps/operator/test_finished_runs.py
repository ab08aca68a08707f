"""The operator at the end of a run, and afterwards."""

import re
from collections.abc import Iterator
from copy import deepcopy

import pytest

from actorq.domain.status import RunState
from actorq_apps.operator.reconcile import PERIOD_S
from tests.actorq_apps.operator.operator_world import KEY, World, operator_world, reconcile_requests
from tests.builders.run_status import run_status


@pytest.fixture
def world() -> Iterator[World]:
    with operator_world() as found:
        yield found


def test_at_the_end_deletes_actors_then_all_except_volumes_and_status(world: World) -> None:
    world.start(ttlSecondsAfterFinished=100)
    world.send(state=RunState.SOLVED, environment_steps=30_000)
    assert world.api.condition("tiny", "Solved")["status"] == "True"
    world.settle()
    replicas = {name: world.api.get("Deployment", name)["spec"]["replicas"] for name in world.api.names("Deployment")}
    assert replicas == {"tiny-actor": 0, "tiny-evaluator": 0, "tiny-quantizer": 1}
    assert world.api.get("StatefulSet", "tiny-learner")["spec"]["replicas"] == 1
    world.at += 100
    world.settle()
    left = {kind for kind, _ in world.api.there}
    assert left == {"TrainingRun", "PersistentVolumeClaim", "Event"}
    assert world.api.status("tiny")["state"] == "Solved"
    assert world.api.status("tiny")["environmentSteps"] == 30_000
    assert world.reconcile() is None
    assert reconcile_requests(world) == [("get", "TrainingRun")]


def test_actors_that_end_after_their_workload_are_counted_until_they_are_gone(world: World) -> None:
    world.start(ttlSecondsAfterFinished=0)
    actor = deepcopy(world.api.get("Pod", "tiny-actor-0"))
    world.send(state=RunState.SOLVED)
    world.reconcile()
    assert "tiny-actor" not in world.api.names("Deployment")
    world.api.put(actor)
    world.at += PERIOD_S
    world.settle()
    assert world.api.status("tiny")["actors"] == 1
    assert world.reconcile() == PERIOD_S
    world.api.delete("Pod", "tiny-actor-0")
    world.settle()
    assert world.api.status("tiny")["actors"] == 0
    assert world.reconcile() is None
    assert reconcile_requests(world) == [("get", "TrainingRun")]


def test_a_finished_run_stays_finished_with_a_higher_budget_and_names_a_remedy(world: World) -> None:
    world.start(config={"max_environment_steps": 20_000})
    world.send(state=RunState.BUDGET_ENDED)
    world.settle()
    before = world.api.get("StatefulSet", "tiny-learner")["spec"]
    world.run(config={"max_environment_steps": 30_000})
    world.settle()
    assert world.api.get("StatefulSet", "tiny-learner")["spec"] == before
    assert "30000" not in world.api.get("ConfigMap", "tiny-run-config")["data"]["config.yaml"]
    assert world.api.get("Deployment", "tiny-actor")["spec"]["replicas"] == 0
    status = world.api.status("tiny")
    assert (status["state"], world.api.condition("tiny", "Finished")["status"]) == ("BudgetEnded", "True")
    assert re.search("BudgetEnded; .*max_environment_steps .* 20000 .* 30000.*delete the TrainingRun", status["reason"])
    world.run(config={"max_environment_steps": 20_000})
    world.settle()
    assert world.api.status("tiny")["reason"].endswith("BudgetEnded")


def test_a_budget_that_is_raised_as_the_run_ends_comes_too_late(world: World) -> None:
    world.start(config={"max_environment_steps": 20_000})
    while not world.woken.empty():
        world.woken.get()
    world.learner.put(run_status(state=RunState.BUDGET_ENDED))
    assert world.woken.get(timeout=10) == KEY
    world.run(config={"max_environment_steps": 30_000})
    world.settle()
    assert "30000" not in world.api.get("ConfigMap", "tiny-run-config")["data"]["config.yaml"]
    assert world.api.status("tiny")["state"] == "BudgetEnded"


def test_a_recreated_run_with_a_higher_budget_continues_from_its_volumes(world: World) -> None:
    world.start(config={"max_environment_steps": 20_000})
    world.send(state=RunState.BUDGET_ENDED)
    world.settle()
    volumes = world.api.names("PersistentVolumeClaim")
    world.api.delete("TrainingRun", "tiny")
    world.run(config={"max_environment_steps": 30_000})
    world.settle()
    world.api.kubelet()
    world.settle()
    assert world.api.names("PersistentVolumeClaim") == volumes
    assert "30000" in world.api.get("ConfigMap", "tiny-run-config")["data"]["config.yaml"]
    assert world.api.get("Deployment", "tiny-actor")["spec"]["replicas"] == 2


def test_an_operator_that_comes_after_the_end_keeps_the_status(world: World) -> None:
    world.start(ttlSecondsAfterFinished=0)
    world.send(state=RunState.BUDGET_ENDED)
    world.settle()
    before = world.api.status("tiny")
    world.operator = world.another()
    world.settle()
    assert world.api.status("tiny") == before
    assert world.api.condition("tiny", "Solved")["reason"] == "BudgetEnded"


def test_a_run_with_an_invalid_specification_ends_normally(world: World) -> None:
    world.start(ttlSecondsAfterFinished=100)
    world.run(ttlSecondsAfterFinished=100, config={"no_such_setting": 1})
    world.send(state=RunState.SOLVED)
    world.settle()
    world.api.kubelet()
    assert {each.rpartition("-")[0] for each in world.api.names("Pod")} == {"tiny-learner", "tiny-quantizer"}
    world.at += 100
    world.settle()
    assert {kind for kind, _ in world.api.there} == {"TrainingRun", "PersistentVolumeClaim", "Event"}
