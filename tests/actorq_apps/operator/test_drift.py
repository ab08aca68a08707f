"""Manual changes of a run's objects are undone or reported. The operator never fights over a field."""

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from actorq_apps.operator.differences import changes, removal
from actorq_apps.operator.reconcile import CHECK_PERIOD_S, PERIOD_S
from actorq_apps.operator.render import objects
from tests.actorq_apps.operator.kube_api import Object
from tests.actorq_apps.operator.operator_world import World, operator_world
from tests.actorq_apps.operator.training_runs import SPECS, training_run


@pytest.fixture
def world() -> Iterator[World]:
    with operator_world() as found:
        yield found


def container(workload: Object) -> Object:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return found  # type: ignore[no-any-return]


def set_image(each: Object) -> None:
    container(each)["image"] = "evil:1"


def set_limit(each: Object) -> None:
    container(each)["resources"]["limits"]["memory"] = "1Mi"


def drop_argument(each: Object) -> None:
    container(each)["args"].pop()


def drop_label(each: Object) -> None:
    del each["metadata"]["labels"]["actorq/run"]


def widen_selector(each: Object) -> None:
    each["spec"]["selector"]["extra"] = "yes"


def set_port(each: Object) -> None:
    each["spec"]["ports"][0]["port"] = 1


def set_data(each: Object) -> None:
    each["data"]["config.yaml"] = "seed: 666\n"


def add_data(each: Object) -> None:
    each["data"]["other.yaml"] = "x"


CHANGES: list[tuple[str, str, Callable[[Object], None]]] = [
    ("Deployment", "tiny-actor", set_image),
    ("StatefulSet", "tiny-learner", set_limit),
    ("Deployment", "tiny-quantizer", drop_argument),
    ("Deployment", "tiny-actor", drop_label),
    ("Service", "tiny-quantizer", widen_selector),
    ("Service", "tiny-quantizer", set_port),
    ("ConfigMap", "tiny-run-config", set_data),
    ("ConfigMap", "tiny-run-config", add_data),
]


@pytest.mark.parametrize(("kind", "name", "change"), CHANGES, ids=lambda each: getattr(each, "__name__", str(each)))
def test_a_change_by_hand_is_undone_in_ten_seconds(
    world: World, kind: str, name: str, change: Callable[[Object], None]
) -> None:
    world.start()
    world.settle()
    before = deepcopy(world.api.get(kind, name))
    changed = deepcopy(before)
    change(changed)
    world.api.put(changed)
    for _ in range(int(CHECK_PERIOD_S / PERIOD_S)):
        world.at += PERIOD_S
        world.reconcile()
    after = world.api.get(kind, name)
    for part in ("spec", "data"):
        assert after.get(part) == before.get(part)
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    # The change is repeated later.
    world.settle()
    world.api.put(changed)
    for _ in range(int(CHECK_PERIOD_S / PERIOD_S)):
        world.at += PERIOD_S
        world.reconcile()
    assert world.api.get(kind, name).get("spec") == before.get("spec")


def test_leaves_a_repeatedly_changed_field_alone_and_logs_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.start()
    world.settle()
    writes = 0
    for _ in range(20):
        changed = deepcopy(world.api.get("Deployment", "tiny-actor"))
        set_image(changed)
        world.api.put(changed)
        world.at += PERIOD_S
        before = len(world.api.writes)
        world.reconcile()
        writes += sum(verb == "apply" for verb, _, _ in world.api.writes[before:])
    assert writes == 1
    (told,) = [each for each in caplog.messages if "keep changing" in each]
    assert re.match("lab/tiny: Deployment tiny-actor: .*spec.template.spec.containers.actor.image$", told)


@pytest.mark.parametrize("name", SPECS)
def test_unchanged_objects_have_no_changes(name: str) -> None:
    for each in objects(training_run(**SPECS[name])):
        assert changes(each, each) == set()
        assert removal(each, each) == {}


def test_a_volume_may_be_mounted_at_several_places() -> None:
    mounts = [{"name": "data", "mountPath": path, "subPath": path[1:]} for path in ("/a", "/b")]

    def workload(mounted: list[Object]) -> Object:
        containers = [{"name": "actor", "volumeMounts": mounted}]
        return {"kind": "Deployment", "metadata": {}, "spec": {"template": {"spec": {"containers": containers}}}}

    assert changes(workload(mounts), workload(mounts[::-1])) == set()
    moved = [mounts[0], {**mounts[1], "subPath": "c"}]
    (path,) = changes(workload(mounts), workload(moved))
    assert path[-3:] == ("volumeMounts", "/b", "subPath")


def found_as_a_server_stores_it(wanted: Any) -> Any:
    """The object with additional fields, without empty fields, and with quantities in a server's notation."""
    if isinstance(wanted, dict):
        kept = {
            name: found_as_a_server_stores_it(value) for name, value in wanted.items() if value not in ({}, [], None)
        }
        return {name: "1" if value == "1000m" else value for name, value in kept.items()}
    return [found_as_a_server_stores_it(each) for each in wanted] if isinstance(wanted, list) else wanted


def test_fields_that_a_server_adds_or_normalizes_are_no_change() -> None:
    wanted: Object = {
        "kind": "Deployment",
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1000m"}}, "env": []}]}},
        },
    }
    found = found_as_a_server_stores_it(wanted)
    found["spec"]["progressDeadlineSeconds"] = 600
    found["metadata"]["labels"]["team"] = "rl"
    # A sidecar that a webhook adds.
    found["spec"]["template"]["spec"]["containers"].insert(0, {"name": "proxy"})
    assert changes(wanted, found) == set()
    found["spec"]["selector"]["matchLabels"]["c"] = "d"
    assert changes(wanted, found) == {("spec", "selector", "matchLabels", "c")}
    assert removal(wanted, found) == {"spec": {"selector": {"matchLabels": {"c": None}}}}
