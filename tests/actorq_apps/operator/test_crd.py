"""The kind TrainingRun: an API server's checks of its definition, of objects, and of their updates."""

import re
from copy import deepcopy
from typing import Any

import kubernetes_validate
import pytest
import yaml

from actorq.domain.status import RunState
from actorq.errors import UserError
from actorq_apps.operator.render import MANIFESTS
from actorq_apps.operator.resource.training_run import GROUP, KIND, PLURAL, VERSION, TrainingRun, TrainingRunSpec
from actorq_apps.operator.status.conditions import new_status
from actorq_apps.operator.status.observed_run import ObservedRun
from sitegen.definition import text
from tests.actorq_apps.operator.training_runs import POD, SIMULATOR, SPECS, Object, manifest
from tests.builders.run_status import run_status
from tests.k8s.custom_resources import OPEN, RULES, definition_faults, faults, places, stored
from tests.k8s.rendered_manifests import ROOT

CRD = yaml.safe_load((MANIFESTS / "operator" / "crd.yaml").read_text())
(SERVED,) = CRD["spec"]["versions"]
SCHEMA: Object = SERVED["schema"]["openAPIV3Schema"]
EXAMPLES = sorted((ROOT / "examples" / "trainingrun").glob("*.yaml"))


def accepted(spec: Any, before: Any = None, name: str = "alpha") -> list[str]:
    """The server's reasons against a specification, or against an update from another one; empty if accepted."""
    old = None if before is None else stored({**manifest(name), "spec": before}, SCHEMA)
    return faults({**manifest(name), "spec": spec}, SCHEMA, old)


def test_the_definition_is_valid_and_of_the_kind_that_the_operator_reads() -> None:
    kubernetes_validate.validate(CRD, "1.32", strict=True)
    names = CRD["spec"]["names"]
    assert (CRD["spec"]["group"], SERVED["name"], names["plural"], names["kind"]) == (GROUP, VERSION, PLURAL, KIND)
    assert CRD["metadata"]["name"] == f"{PLURAL}.{GROUP}"
    assert names["shortNames"] == ["tr"]


def test_the_file_of_the_definition_is_generated_from_the_models() -> None:
    assert (MANIFESTS / "operator" / "crd.yaml").read_text() == text()


def test_a_server_accepts_the_definition() -> None:
    assert definition_faults(CRD) == []


def test_rules_are_evaluated_on_a_default_without_its_nested_defaults() -> None:
    broken = deepcopy(CRD)
    broken["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["tls"][
        "default"
    ] = {}
    (fault,) = definition_faults(broken)
    assert 'spec.tls: default: spec.tls: NOT_FOUND: Key not found in map : "mode" evaluating rule' in fault


@pytest.mark.parametrize(
    ("path", "change", "reason"),
    [
        ((), {"type": None}, ": type: required"),
        (("spec", "environment"), {"$ref": "#/a"}, "spec.environment: $ref: forbidden"),
        (("spec", "learner", "storage"), {"type": "string"}, "type: forbidden beside int-or-string"),
        (("spec", "actors"), {"additionalProperties": {"type": "string"}}, "forbidden beside properties"),
        (("spec", "environment"), {"default": 3}, "default: 3 is not of type 'string'"),
        (("spec", "environment"), {RULES: [{"rule": "self ==", "message": "m"}]}, "rule self ==: "),
        (("spec", "environment"), {RULES: [{"rule": "self.x", "message": "m"}]}, "undefined field x"),
        (("spec", "config"), {"allOf": [{"type": "object"}]}, "allOf: types, descriptions and defaults are forbidden"),
        (("spec", "actors"), {"required": ["replica"]}, "required: replica is no property"),
        (("metadata",), {"required": ["name"]}, "metadata: may only be an object"),
    ],
)
def test_finds_faults_for_which_a_server_refuses_a_definition(
    path: tuple[str, ...], change: Object, reason: str
) -> None:
    broken = deepcopy(CRD)
    found = broken["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in path:
        found = found["properties"][name]
    found.update(change)
    if change.get("type", "") is None:
        del found["type"]
    assert any(reason in each for each in definition_faults(broken))


def test_every_text_list_and_mapping_of_a_specification_has_a_bound() -> None:
    for place in places(SCHEMA["properties"]["spec"], "spec"):
        kind, schema = place.schema.get("type"), place.schema
        if kind == "string":
            assert "maxLength" in schema or "enum" in schema, place.path
        if kind == "array":
            assert "maxItems" in schema, place.path
        if kind == "object" and "properties" not in schema:
            assert "maxProperties" in schema, place.path


def test_no_default_is_an_empty_text() -> None:
    """A server of version 1.20 reads it as null, and refuses the definition."""
    assert [each.path for each in places(SCHEMA) if each.schema.get("default") == ""] == []


def test_only_the_run_settings_may_have_fields_that_the_schema_does_not_know() -> None:
    opened = {each.path for each in places(SCHEMA) if each.schema.get(OPEN)}
    # The API server checks these parts itself when the pods are created.
    of_pods = {path for path in opened if path.endswith((".pod.affinity", ".pod.topologySpreadConstraints[]"))}
    assert opened - of_pods == {"spec.config"}


@pytest.mark.parametrize("name", SPECS)
def test_a_specification_as_the_server_stores_it_means_the_same(name: str) -> None:
    given = manifest(**SPECS[name])
    assert faults(given, SCHEMA) == []
    kept = stored(given, SCHEMA)
    assert TrainingRun.of(kept) == TrainingRun.of(given)
    everything = TrainingRunSpec.model_validate(kept["spec"]).model_dump(exclude_none=True)
    assert stored({"spec": everything}, SCHEMA)["spec"] == everything
    # Storing it again is an update without changes.
    assert faults(kept, SCHEMA, kept) == []


def test_the_server_keeps_all_that_the_operator_writes_into_a_status() -> None:
    live = run_status(state=RunState.SOLVED, exported_policy="s3://policies/alpha/policy.onnx")
    status = new_status(ObservedRun(manifest(), 0.0, live=live), None)
    assert {"elapsedSeconds", "finishedAt", "policy"} <= status.keys()
    assert faults({**manifest(), "status": status}, SCHEMA) == []


RUN: Object = {"environment": "CartPole-v1", "algorithm": "dqn"}
DISK = {"learner": {"storage": "1Gi", "storageClassName": "fast"}, "quantizer": {"storage": "1Gi"}}
ROBOT = {"environment": "external/robot"}
TOLERATION = {"tolerations": [{"operator": "Exists"}]}
# The answers of a server of version 1.35.6, and the expected answers.
REFUSED: dict[str, Object] = {
    "environment missing": {"environment": None},
    "environment empty": {"environment": ""},
    "unknown section": {"acters": {}},
    "unknown field": {"actors": {"replica": 1}},
    "negative actors": {"actors": {"replicas": -1}},
    "too many actors": {"actors": {"replicas": 10_001}},
    "actors as text": {"actors": {"replicas": "3"}},
    "two evaluators": {"evaluator": {"replicas": 2}},
    "nine GPUs": {"learner": {"gpu": 9}},
    "size with a space": {"learner": {"storage": "10 Gi"}},
    "negative size": {"learner": {"storage": -1}},
    "no size": {"learner": {"storage": 0}},
    "no size as text": {"quantizer": {"storage": "0Gi"}},
    "negative request": {"actors": {"resources": {"requests": {"cpu": -1}}}},
    "unit of another kind": {"actors": {"resources": {"requests": {"memory": "1Gb"}}}},
    "amount in words": {"actors": {"resources": {"limits": {"cpu": "much"}}}},
    "issuer missing": {"tls": {"mode": "issuer"}},
    "issuer without its mode": {"tls": {"issuer": {"name": "ca"}}},
    "issuer without encryption": {"tls": {"mode": "none", "issuer": {"name": "ca"}}},
    "kind of issuer": {"tls": {"mode": "issuer", "issuer": {"name": "ca", "kind": "Foo"}}},
    "issuer without name": {"tls": {"mode": "issuer", "issuer": {"kind": "Issuer"}}},
    "unknown mode": {"tls": {"mode": "some"}},
    "image with a space": {"images": {"actor": "a b"}},
    "name of a secret": {"imagePullSecrets": [{"name": "Upper"}]},
    "secret without a section": {"imagePullSecrets": ["registry"]},
    "export without URL": {"policyExport": {}},
    "export to http": {"policyExport": {"url": "http://bucket/run"}},
    "negative time": {"ttlSecondsAfterFinished": -1},
    "suspend as text": {"suspend": "yes"},
    "operator Foo": {"actors": {"tolerations": [{"operator": "Foo"}]}},
    "operator Lt": {"actors": {"tolerations": [{"operator": "Lt"}]}},
    "variable without name": {"actors": {"pod": {"env": [{"value": "x"}]}}},
    "variable with a space": {"actors": {"pod": {"env": [{"name": "a b", "value": "x"}]}}},
    "volume of the node": {"actors": {"pod": {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}}},
    "volume of a secret": {"learner": {"pod": {"volumes": [{"name": "x", "secret": {"secretName": "s"}}]}}},
    "container of one's own": {"actors": {"pod": {"containers": []}}},
    "simulator without its environment": {"actors": {"external": {"image": "robot:1"}}},
    "environment without its simulator": {"environment": "external/robot"},
    "simulator without image": {**ROBOT, "actors": {"external": {"args": ["x"]}}},
    "simulator with the name of the actor's container": {
        **ROBOT,
        "actors": {"external": {"image": "robot:1", "name": "actor"}},
    },
    "simulator with a name that is no label": {
        **ROBOT,
        "actors": {"external": {"image": "robot:1", "name": "My_Robot"}},
    },
    "simulator with probes": {**ROBOT, "actors": {"external": {"image": "robot:1", "livenessProbe": {}}}},
    "too many settings": {"config": {f"s{number}": 1 for number in range(65)}},
}
ACCEPTED: dict[str, Object] = {
    "smallest": {},
    "no actors": {"actors": {"replicas": 0}},
    "size as a number": {"learner": {"storage": 1_000_000_000}},
    "size in parts": {"learner": {"storage": "0.5Gi"}},
    "no request": {"actors": {"resources": {"requests": {"cpu": 0}}}},
    "mode with default": {"tls": {}},
    # An admission policy may forbid both (k8s/components).
    "priority of the system": {"actors": {"priorityClassName": "system-cluster-critical"}},
    "all of a pod": {"actors": {"pod": POD}, "learner": {"pod": POD}, "relays": {"pod": POD}},
    "simulator": {**ROBOT, "actors": {"external": {"image": "robot:1"}}},
    "all of a simulator": {**ROBOT, "actors": {"external": SIMULATOR, "pod": POD}},
    "every taint": {"actors": TOLERATION, "learner": TOLERATION},
}
UPDATES: dict[str, tuple[Object, Object, bool]] = {
    "environment": ({}, {"environment": "Acrobot-v1"}, False),
    "algorithm": ({}, {"algorithm": "ppo"}, False),
    "algorithm removed": ({}, {"algorithm": None}, False),
    "algorithm added": ({"algorithm": None}, {}, False),
    "size grown": (DISK, {**DISK, "learner": {**DISK["learner"], "storage": "2Gi"}}, False),
    "size removed": (DISK, {**DISK, "learner": {"storageClassName": "fast"}}, False),
    "size in another unit": (DISK, {**DISK, "learner": {**DISK["learner"], "storage": "1024Mi"}}, False),
    "class of volumes": (DISK, {**DISK, "learner": {**DISK["learner"], "storageClassName": "slow"}}, False),
    "class removed": (DISK, {**DISK, "learner": {"storage": "1Gi"}}, False),
    "class added": (DISK, {**DISK, "quantizer": {"storage": "1Gi", "storageClassName": "fast"}}, False),
    "learner removed": (DISK, {"quantizer": {"storage": "1Gi"}}, False),
    "size of the quantizer's volume": (DISK, {**DISK, "quantizer": {"storage": "2Gi"}}, False),
    "plain text": ({}, {"tls": {"mode": "none"}}, False),
    "an issuer": ({}, {"tls": {"mode": "issuer", "issuer": {"name": "ca"}}}, False),
    "too many actors": ({}, {"actors": {"replicas": 20_000}}, False),
    "tls removed": ({"tls": {"mode": "generated"}}, {}, True),
    "another issuer": (
        {"tls": {"mode": "issuer", "issuer": {"name": "ca"}}},
        {"tls": {"mode": "issuer", "issuer": {"name": "new"}}},
        True,
    ),
    "number of actors": ({}, {"actors": {"replicas": 3}}, True),
    "settings": ({}, {"config": {"seed": 3}}, True),
    "suspended": ({}, {"suspend": True}, True),
    "images": ({}, {"images": {"actor": "registry/actor:2"}}, True),
    "image of the simulator": (
        {**ROBOT, "actors": {"external": {"image": "robot:1"}}},
        {**ROBOT, "actors": {"external": {"image": "robot:2"}}},
        True,
    ),
    "relays and time": (DISK, {**DISK, "relays": {"replicas": 1}, "ttlSecondsAfterFinished": 5}, True),
}


def with_changes(changes: Object) -> Object:
    return {name: value for name, value in {**RUN, **changes}.items() if value is not None}


@pytest.mark.parametrize("name", REFUSED)
def test_a_server_refuses_specifications_that_the_operator_would_refuse(name: str) -> None:
    spec = with_changes(REFUSED[name])
    assert accepted(spec)
    # The models accept texts such as "3" and "yes", which files and flags contain.
    if "as text" not in name or "size" in name:
        with pytest.raises(UserError):
            TrainingRun.of({**manifest(), "spec": spec})


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_server_accepts_specifications_that_the_operator_accepts(name: str) -> None:
    spec = with_changes(ACCEPTED[name])
    assert accepted(spec) == []
    assert TrainingRun.of({**manifest(), "spec": spec})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"actors": {"external": {"image": "robot:1"}}},
            "spec.actors.external is for environments such as external/robot, which need it",
        ),
        (ROBOT, "spec.actors.external is for environments such as external/robot, which need it"),
        (
            {**ROBOT, "actors": {"external": {"image": "robot:1", "name": "actor"}}},
            "spec.actors.external.name: actor is the name of the actor's own container",
        ),
    ],
)
def test_a_server_says_why_it_refuses_a_simulator(spec: Object, message: str) -> None:
    assert accepted(with_changes(spec)) == [message]


@pytest.mark.parametrize("spec", [None, {}, [], "x"])
def test_a_server_refuses_an_object_without_a_specification(spec: Any) -> None:
    assert accepted(spec)


@pytest.mark.parametrize("name", UPDATES)
def test_a_server_accepts_only_updates_that_a_run_supports(name: str) -> None:
    before, after, taken = UPDATES[name]
    found = accepted(with_changes(after), with_changes(before))
    assert (found == []) is taken, found
    if not taken and "too many" not in name:
        assert "cannot be changed" in found[0]


@pytest.mark.parametrize("name", ["AAA", "1run", "a" * 45, "a.b", "run-", ""])
def test_a_server_refuses_names_that_a_runs_objects_cannot_have(name: str) -> None:
    (fault,) = accepted(RUN, name=name)
    assert re.match(r"metadata\.name .* 43 ", fault)


@pytest.mark.parametrize("name", ["a", "a-1", "a" * 44])
def test_a_server_accepts_other_names(name: str) -> None:
    assert accepted(RUN, name=name) == []


def test_each_field_with_a_default_means_the_same_with_and_without_it() -> None:
    kept = stored(manifest(), SCHEMA)["spec"]
    for name in kept:
        without = {key: value for key, value in kept.items() if key != name or name == "environment"}
        assert accepted(without) == []
        assert TrainingRun.of({**manifest(), "spec": without}) == TrainingRun.of({**manifest(), "spec": kept})


def test_kubectl_scales_actors_and_shows_the_columns_of_a_run() -> None:
    scale = SERVED["subresources"]["scale"]
    columns = {each["name"]: each["jsonPath"] for each in SERVED["additionalPrinterColumns"]}
    assert list(columns) == ["State", "Return", "Steps", "Steps/s", "Actors", "Age"]
    for path in (*scale.values(), *columns.values()):
        schema = SCHEMA
        for name in path.removeprefix(".").split("."):
            if name == "metadata":
                break
            schema = schema["properties"][name]
    assert scale["specReplicasPath"] == ".spec.actors.replicas"
    assert SERVED["subresources"]["status"] == {}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_becomes_a_run(path: Any) -> None:
    tree = yaml.safe_load(path.read_text())
    assert (tree["apiVersion"], tree["kind"]) == (f"{GROUP}/{VERSION}", KIND)
    assert faults(tree, SCHEMA) == []
    assert TrainingRun.of(tree).name == path.stem
