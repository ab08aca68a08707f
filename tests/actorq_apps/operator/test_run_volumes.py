"""The volumes of a run: enlarged manually, or retained by an earlier run."""

from collections.abc import Iterator
from copy import deepcopy

import pytest

from actorq.errors import UserError
from actorq_apps.cluster import deployment
from tests.actorq_apps.operator.kube_api import Object
from tests.actorq_apps.operator.operator_world import World, operator_world


@pytest.fixture
def world() -> Iterator[World]:
    with operator_world() as found:
        yield found


def made(world: World) -> list[Object]:
    """The objects that the operator created."""
    return [each for each in world.api.objects.values() if each["kind"] not in ("Event", "TrainingRun", "Pod")]


def upgraded(world: World) -> None:
    """Pretend that another operator version created all objects. They are then applied again."""
    for each in made(world):
        each["metadata"].setdefault("annotations", {})["actorq/digest"] = "of another version"
    world.operator.close()
    world.operator = world.another()


def is_current(world: World) -> bool:
    """Whether the operator has applied all of them."""
    return all(each["metadata"]["annotations"]["actorq/digest"] != "of another version" for each in made(world))


@pytest.mark.parametrize("claim", ["data-tiny-learner-0", "tiny-policies"])
def test_a_volume_that_has_grown_by_hand_keeps_its_size_after_an_upgrade(world: World, claim: str) -> None:
    world.start()
    grown = deepcopy(world.api.get("PersistentVolumeClaim", claim))
    grown["spec"]["resources"]["requests"]["storage"] = "1Ti"
    world.api.put(grown)
    upgraded(world)
    world.settle()
    assert is_current(world)
    assert world.api.get("PersistentVolumeClaim", claim)["spec"]["resources"]["requests"]["storage"] == "1Ti"


def test_keeps_a_stateful_set_that_was_recreated_for_a_larger_volume(world: World) -> None:
    world.start()
    made_again = deepcopy(world.api.get("StatefulSet", "tiny-learner"))
    (template,) = made_again["spec"]["volumeClaimTemplates"]
    template["spec"]["resources"]["requests"]["storage"] = "1Ti"
    world.api.put(made_again)
    upgraded(world)
    world.settle()
    assert is_current(world)
    (template,) = world.api.get("StatefulSet", "tiny-learner")["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == "1Ti"


def test_a_retained_volume_of_another_size_is_used_as_it_is(world: World) -> None:
    world.run(learner={"storage": "50Gi"})
    world.reconcile()
    world.api.delete("TrainingRun", "tiny")
    world.run()
    world.reconcile()
    assert "tiny-learner" in world.api.names("StatefulSet")
    kept = world.api.get("PersistentVolumeClaim", "data-tiny-learner-0")["spec"]
    assert kept["resources"]["requests"]["storage"] == "50Gi"


def test_a_retained_volume_of_an_earlier_run_of_that_name_is_used_again(world: World) -> None:
    world.run()
    world.reconcile()
    world.api.delete("TrainingRun", "tiny")
    assert {kind for kind, _ in world.api.there} <= {"PersistentVolumeClaim", "Event"}
    world.run()
    world.reconcile()
    assert world.api.condition("tiny", "Failed")["status"] == "False"
    assert "tiny-learner" in world.api.names("StatefulSet")


@pytest.mark.parametrize("lives", [True, False], ids=["live", "deleted"])
@pytest.mark.parametrize("run", ["", "tiny"])
def test_down_keeps_the_volumes_of_a_training_run_and_names_the_command(world: World, run: str, lives: bool) -> None:
    world.start()
    if not lives:
        world.api.delete("TrainingRun", "tiny")
    before = dict(world.api.objects)
    commands = "`kubectl delete trainingrun tiny -n lab`.*`kubectl delete pvc -l actorq/run=tiny -n lab`"
    with pytest.raises(UserError, match=f"tiny .* lab .*TrainingRun.*{commands}"):
        deployment.delete(world.api.cluster(run=run), True, print)
    assert world.api.objects == before
