"""The kind TrainingRun: its schema has the fields, bounds and defaults of the models that read it."""

import re
from copy import deepcopy
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from actorq.domain.status import RunState
from actorq.operator.render import MANIFESTS
from actorq.operator.resource import GROUP, KIND, PLURAL, VERSION, TrainingRun, TrainingRunSpec
from actorq.operator.status.conditions import new_status
from actorq.operator.status.look import Look
from tests.actorq.operator.crd_schema import of_spec
from tests.actorq.operator.training_runs import SPECS, Object, manifest
from tests.builders.run_status import run_status
from tests.k8s.rendered_manifests import ROOT

CRD = yaml.safe_load((MANIFESTS / "operator" / "crd.yaml").read_text())
(SERVED,) = CRD["spec"]["versions"]
SCHEMA: Object = SERVED["schema"]["openAPIV3Schema"]
RULES = "x-kubernetes-validations"
EXAMPLES = sorted((ROOT / "examples" / "trainingrun").glob("*.yaml"))


def sections(schema: Object) -> list[Object]:
    """A schema and all schemas in it."""
    inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    return [schema, *(found for each in inner if each for found in sections(each))]


def without_rules(schema: Object) -> Object:
    copy = deepcopy(schema)
    for each in sections(copy):
        each.pop(RULES, None)
    return copy


def defaulted(tree: Any, schema: Object) -> Any:
    """What the API server stores: missing fields have their defaults."""
    if isinstance(tree, list) and "items" in schema:
        return [defaulted(each, schema["items"]) for each in tree]
    if not isinstance(tree, dict) or "properties" not in schema:
        return tree
    missing = {name: deepcopy(each["default"]) for name, each in schema["properties"].items() if "default" in each}
    return {name: defaulted(value, schema["properties"][name]) for name, value in {**missing, **tree}.items()}


def is_accepted(tree: Object) -> bool:
    """Whether the schema takes an object, as a server without rules does that refuses unknown fields."""
    strict = deepcopy(SCHEMA)
    for each in sections(strict):
        if "properties" in each and each is not strict["properties"]["metadata"]:
            each["additionalProperties"] = False
        if each.get("x-kubernetes-int-or-string"):
            # A pattern is for strings alone.
            each.pop("type", None)
    return not list(jsonschema.Draft202012Validator(strict).iter_errors(tree))


def test_the_definition_is_valid_and_of_the_kind_that_the_operator_reads() -> None:
    kubernetes_validate.validate(CRD, "1.32", strict=True)
    names = CRD["spec"]["names"]
    assert (CRD["spec"]["group"], SERVED["name"], names["plural"], names["kind"]) == (GROUP, VERSION, PLURAL, KIND)
    assert CRD["metadata"]["name"] == f"{PLURAL}.{GROUP}"
    assert names["shortNames"] == ["tr"]


def test_the_schema_has_the_fields_bounds_and_defaults_of_the_models() -> None:
    assert without_rules(SCHEMA["properties"]["spec"]) == of_spec()


def test_only_the_run_settings_may_have_fields_that_the_schema_does_not_know() -> None:
    assert [each for each in sections(SCHEMA) if each.get("x-kubernetes-preserve-unknown-fields")] == [
        SCHEMA["properties"]["spec"]["properties"]["config"]
    ]


@pytest.mark.parametrize("name", SPECS)
def test_what_the_server_stores_means_the_same(name: str) -> None:
    given = manifest(**SPECS[name])
    assert is_accepted(given)
    stored = defaulted(given, SCHEMA)
    assert TrainingRun.of(stored) == TrainingRun.of(given)
    everything = TrainingRunSpec.model_validate(stored["spec"]).model_dump(exclude_none=True)
    assert defaulted({"spec": everything}, SCHEMA)["spec"] == everything


def test_the_server_keeps_all_that_the_operator_writes_into_a_status() -> None:
    live = run_status(state=RunState.SOLVED, exported_policy="s3://policies/alpha/policy.onnx")
    status = new_status(Look(manifest(), 0.0, live=live), None)
    assert {"elapsedSeconds", "finishedAt", "policy"} <= status.keys()
    assert is_accepted({**manifest(), "status": status})


@pytest.mark.parametrize(
    "spec",
    [
        {"environment": ""},
        {"actor": {}},
        {"actors": {"replica": 1}},
        {"actors": {"replicas": -1}},
        {"actors": {"replicas": "2"}},
        {"actors": {"resources": {"limits": {"cpu": "much"}}}},
        {"learner": {"gpu": 9}},
        {"learner": {"storage": "many"}},
        {"evaluator": {"replicas": 2}},
        {"tls": {"mode": "some"}},
        {"tls": {"issuer": {"kind": "Issuer"}}},
        {"ttlSecondsAfterFinished": -1},
        {"imagePullSecrets": ["registry"]},
        {"policyExport": {}},
        {"policyExport": {"url": "https://bucket/run"}},
    ],
)
def test_the_schema_refuses_what_the_operator_would_refuse(spec: Object) -> None:
    assert not is_accepted(manifest(**spec))


def test_what_may_not_change_has_a_rule() -> None:
    spec = SCHEMA["properties"]["spec"]["properties"]
    kept = [spec["environment"], spec["algorithm"], spec["tls"]["properties"]["mode"]]
    for service in ("learner", "quantizer"):
        kept += [spec[service]["properties"][name] for name in ("storage", "storageClassName")]
    assert all(each[RULES][0]["rule"] == "self == oldSelf" for each in kept)


def test_rules_name_fields_that_there_are_and_say_what_to_do() -> None:
    rules = [(each, rule) for each in sections(SCHEMA) for rule in each.get(RULES, ())]
    assert len(rules) == 12
    for schema, rule in rules:
        for field in re.findall(r"\b(?:self|oldSelf)\.(\w+)", rule["rule"]):
            assert field in schema["properties"]
        assert rule["message"]


def test_the_rule_for_names_is_that_of_the_operator() -> None:
    (rule,) = SCHEMA[RULES]
    pattern = re.search(r"matches\('(.*)'\)", rule["rule"])
    assert pattern
    assert all(re.search(pattern[1], name) for name in ("a", "a-1", "a" * 44))
    assert not any(re.search(pattern[1], name) for name in ("a" * 45, "a-", "1", "a.b", "A"))


def test_kubectl_scales_actors_and_shows_what_people_look_for() -> None:
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
    assert is_accepted(tree)
    assert TrainingRun.of(tree).name == path.stem
