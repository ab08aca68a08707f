"""A changed configuration replaces the pods that read it. Changes of settings that a run keeps are refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from actorq.errors import UnavailableError, UserError
from actorq_apps.cluster import configuration, deployment
from actorq_apps.cluster.manifests import prepared
from tests.actorq_apps.cluster.cluster_api import ClusterApi, cluster_api
from tests.actorq_apps.cluster.cluster_objects import Object, overlay, pod

SETTINGS = {"environment": "CartPole-v1", "seed": 1}


@pytest.fixture
def api() -> Iterator[ClusterApi]:
    with cluster_api() as server:
        yield server


def run_of(text: str, mounting: tuple[str, ...] = ("actor", "quantizer", "learner")) -> list[Object]:
    """The smallest run, with a configuration that some of its pods mount."""
    objects = overlay()
    for each in objects:
        if each["kind"] == "ConfigMap":
            each["data"] = {"config.yaml": text}
        elif each["metadata"]["name"] in mounting and "template" in each["spec"]:
            each["spec"]["template"]["spec"]["volumes"] = [{"name": "c", "configMap": {"name": "run-config"}}]
    return objects


def configured(**changes: Any) -> list[Object]:
    return run_of(yaml.safe_dump({**SETTINGS, **changes}))


def up(api: ClusterApi, objects: list[Object], begun: bool = False) -> None:
    deployment.apply(api.cluster(), prepared(objects, "demo", "lab"), "demo", lambda: begun)


def digests(objects: list[Object]) -> dict[str, str | None]:
    """The digest in each workload's pod template."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]
        .get("annotations", {})
        .get("actorq/configuration")
        for each in prepared(objects, "demo", "lab")
        if "template" in each.get("spec", {})
    }


def test_a_changed_setting_replaces_the_pods_that_read_it() -> None:
    before, after = digests(configured()), digests(configured(seed=2))
    assert set(before) == {"actor", "quantizer", "learner"}
    assert all(before.values())
    assert not set(before.values()) & set(after.values())


def test_pods_without_the_configuration_are_left_alone() -> None:
    digest = digests(run_of("seed: 1\n", mounting=("learner",)))
    assert digest["learner"]
    assert digest["actor"] is None


def test_comments_and_order_replace_nothing() -> None:
    one, other = "environment: CartPole-v1\nseed: 1\n", "# By hand.\nseed: 1\nenvironment: 'CartPole-v1'\n"
    assert digests(run_of(one)) == digests(run_of(other))


def test_other_annotations_of_a_pod_stay() -> None:
    objects = configured()
    learner = next(each for each in objects if each["kind"] == "StatefulSet")
    learner["spec"]["template"]["metadata"]["annotations"] = {"mine": "kept"}
    stamped = next(each for each in prepared(objects, "demo", "lab") if each["kind"] == "StatefulSet")
    assert set(stamped["spec"]["template"]["metadata"]["annotations"]) == {"mine", "actorq/configuration"}


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"environment": "MountainCar-v0"}, "environment .*'CartPole-v1' .*'MountainCar-v0'"),
        ({"replay": {"capacity": 9_000}}, r"replay\.capacity .*\d+ .* 9000\b"),
        ({"environment_args": {"g": 5}}, r"environment_args\.g .*None .* 5\b"),
        ({"environment_wrappers": ["a:B"]}, r"environment_wrappers .*\[\] .*\[\{'a:B'"),
        ({"dqn": {"hidden_sizes": [8]}}, r"dqn\.hidden_sizes .*\[.+\] .*\[8\]"),
    ],
)
def test_a_setting_that_a_run_keeps_is_not_changed_once_it_has_begun(
    api: ClusterApi, changes: dict[str, Any], fact: str
) -> None:
    up(api, configured())
    before = dict(api.objects)
    with pytest.raises(UserError, match=fact):
        up(api, configured(**changes), begun=True)
    assert api.objects == before


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"ppo": {"activation": "relu"}}, r"ppo\.activation .*'relu'"),
        ({"actor": {"segment_length": 16}}, r"actor\.segment_length .* 16\b"),
    ],
)
def test_a_run_of_an_on_policy_algorithm_keeps_more(api: ClusterApi, changes: dict[str, Any], fact: str) -> None:
    up(api, configured(algorithm="ppo"))
    with pytest.raises(UserError, match=fact):
        up(api, configured(algorithm="ppo", **changes), begun=True)


@pytest.mark.parametrize(
    ("before", "after", "fact"),
    [
        ({}, {"dynamic_capacity": {"enabled": True}}, r"dynamic_capacity\.enabled .*False .*True\b"),
        (
            {"sparsity": {"method": "rlx2"}},
            {"sparsity": {"method": "rlx2"}, "dynamic_capacity": {"enabled": False}},
            r"dynamic_capacity\.enabled .*True .*False\b",
        ),
        (
            {"sparsity": {"method": "set"}},
            {"sparsity": {"method": "set", "structured": True}},
            r"sparsity\.structured .*False .*True\b",
        ),
    ],
)
def test_a_setting_that_decides_a_column_of_the_replay_or_the_masks_is_kept(
    api: ClusterApi, before: dict[str, Any], after: dict[str, Any], fact: str
) -> None:
    up(api, configured(algorithm="td3", **before))
    with pytest.raises(UserError, match=fact):
        up(api, configured(algorithm="td3", **after), begun=True)


def test_an_offline_run_is_refused_because_it_makes_no_steps(api: ClusterApi) -> None:
    with pytest.raises(UserError, match=r"offline is true .*ConfigMap .*spec\.actors\.replicas 0") as caught:
        up(api, configured(algorithm="dqn", dataset={"source": "/data/set"}, offline=True))
    assert "\n" not in str(caught.value)
    assert not api.objects


def test_a_setting_that_follows_from_the_method_may_also_be_given(api: ClusterApi) -> None:
    rlx2 = {"sparsity": {"method": "rlx2"}}
    up(api, configured(algorithm="td3", **rlx2))
    up(api, configured(algorithm="td3", **rlx2, dynamic_capacity={"enabled": True}), begun=True)


def test_dense_networks_have_no_masks_to_keep(api: ClusterApi) -> None:
    up(api, configured(sparsity={"method": "dense", "actor": 0.9}))
    up(api, configured(sparsity={"method": "dense", "actor": 0.5}), begun=True)


def test_a_wrong_environment_of_a_run_that_never_began_can_be_changed(api: ClusterApi) -> None:
    up(api, configured(environment="CartPole-v7"))
    up(api, configured())
    (text,) = (each["data"]["config.yaml"] for path, each in api.objects.items() if path.endswith("/run-config"))
    assert yaml.safe_load(text) == SETTINGS


def test_other_settings_may_change_without_a_check_of_progress(api: ClusterApi) -> None:
    def refuse() -> bool:
        raise UnavailableError("nobody answers")

    up(api, configured())
    deployment.apply(api.cluster(), prepared(configured(seed=3), "demo", "lab"), "demo", refuse)
    changed = prepared(configured(environment="MountainCar-v0"), "demo", "lab")
    with pytest.raises(UnavailableError):
        deployment.apply(api.cluster(), changed, "demo", refuse)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("sed: 1", "'sed'.*'seed'"),
        ("a: [", "YAML"),
        ("seed: 2020-13-45", "YAML.*month"),
        ("hello", "settings.*hello"),
    ],
)
def test_a_wrong_configuration_is_refused_before_anything_is_made(api: ClusterApi, text: str, fact: str) -> None:
    with pytest.raises(UserError, match=rf"config\.yaml .*run-config.*{fact}"):
        up(api, run_of(text))
    assert not api.objects


def test_a_wrong_configuration_in_the_cluster_can_be_replaced(api: ClusterApi) -> None:
    up(api, configured())
    found = next(each for path, each in api.objects.items() if path.endswith("/configmaps/run-config"))
    found["data"]["config.yaml"] = "sed: 1"
    up(api, configured())
    assert found is not next(each for path, each in api.objects.items() if path.endswith("/configmaps/run-config"))


def test_settings_of_the_process_in_the_file_are_no_settings_of_the_run(api: ClusterApi) -> None:
    up(api, configured(process={"metrics": "0.0.0.0:9090"}))
    up(api, configured(process={"metrics": "0.0.0.0:9091"}), begun=True)


def test_pods_get_more_time_to_end_than_their_services_need(api: ClusterApi) -> None:
    objects = configured(transport={"drain_s": 45})
    for each in objects:
        if each["kind"] == "Deployment":
            each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 45
    with pytest.raises(UserError, match=r"transport\.drain_s .* 45 s.*Deployment actor .* 45 s"):
        up(api, objects)
    assert not api.objects
    for each in objects:
        if each["kind"] == "Deployment":
            each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 46
    up(api, objects)


def test_pods_with_an_earlier_configuration_are_named(api: ClusterApi) -> None:
    up(api, configured())
    old, own = pod("actor-1", "actor"), pod("learner-0", "learner")
    digest = digests(configured())["actor"]
    for each in (old, own):
        each["metadata"]["annotations"] = {"actorq/configuration": digest}
        each["spec"] = {"volumes": [{"name": "c", "configMap": {"name": "run-config"}}]}
    assert configuration.stale_pods(api.cluster(), [old, own, pod("by-hand", "actor")]) == []
    # Services read the deny list once it exists.
    for each in (old, own):
        each["spec"]["volumes"].append({"name": "denied", "configMap": {"name": "denied", "optional": True}})
    api.add("v1", "configmaps", {"kind": "ConfigMap", "metadata": {"name": "denied"}, "data": {"denied": "0A1B"}})
    assert configuration.stale_pods(api.cluster(), [old, own]) == []
    # As with `kubectl apply -k`, the ConfigMap changes, but no pod.
    api.add("v1", "configmaps", next(each for each in configured(seed=9) if each["kind"] == "ConfigMap"))
    own["metadata"]["annotations"] = {"actorq/configuration": digests(configured(seed=9))["learner"]}
    assert configuration.stale_pods(api.cluster(), [old, own]) == ["actor-1"]
    old["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert configuration.stale_pods(api.cluster(), [old, own]) == []
