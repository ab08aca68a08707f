"""The rules of the policy that limits authors of TrainingRuns, evaluated like in an API server."""

import re

import kubernetes_validate
import pytest
import yaml
from cel_expr_python import cel  # type: ignore[import-untyped]

from actorq_apps.operator.render import MANIFESTS
from actorq_apps.operator.resource.training_run import GROUP, PLURAL, VERSION
from tests.actorq_apps.operator.test_crd import SCHEMA
from tests.actorq_apps.operator.training_runs import SPECS, manifest
from tests.k8s.custom_resources import stored
from tests.k8s.rendered_manifests import K8S, Object, render

POLICY, BINDING = yaml.safe_load_all((MANIFESTS / "admission" / "policy.yaml").read_text())
ENVIRONMENT = cel.NewEnv(variables={"object": cel.Type.DYN})


def refusals(spec: Object, **replaced: str) -> list[str]:
    """The fields that the policy refuses. replaced: expressions of replaced variables."""
    tree = stored({**manifest(), "spec": {"environment": "CartPole-v1", **spec}}, SCHEMA)
    variables = {each["name"]: each["expression"] for each in POLICY["spec"]["variables"]} | replaced
    refused = []
    for rule in POLICY["spec"]["validations"]:
        # Replace each variable by its expression.
        expression = re.sub(r"variables\.(\w+)", lambda found: f"({variables[found[1]]})", rule["expression"])
        found = ENVIRONMENT.compile(expression).eval(data={"object": tree})
        assert found.type() == cel.Type.BOOL, found.value()
        if not found.value():
            refused.append(rule["message"].partition(":")[0])
    return refused


def test_the_objects_are_valid_and_bound_to_the_kind() -> None:
    for each in render(K8S / "admission"):
        kubernetes_validate.validate(each, "1.32", strict=True)
    (rule,) = POLICY["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["apiVersions"], rule["resources"]) == ([GROUP], [VERSION], [PLURAL])
    assert set(rule["operations"]) == {"CREATE", "UPDATE"}
    assert BINDING["spec"] == {"policyName": POLICY["metadata"]["name"], "validationActions": ["Deny"]}
    assert all("\n" not in each["message"] for each in POLICY["spec"]["validations"])


@pytest.mark.parametrize("name", SPECS)
def test_usual_runs_are_allowed(name: str) -> None:
    assert refusals(SPECS[name]) == []


@pytest.mark.parametrize("role", ["actors", "learner"])
@pytest.mark.parametrize("toleration", [{"operator": "Exists"}, {"key": "", "operator": "Exists"}])
def test_a_toleration_of_every_taint_is_refused(role: str, toleration: Object) -> None:
    named = {"key": "batch", "operator": "Exists"}
    assert refusals({role: {"tolerations": [named, toleration]}}) == ["spec"]
    assert refusals({role: {"tolerations": [named]}}) == []


def test_priority_classes_of_the_system_are_refused() -> None:
    assert refusals({"actors": {"priorityClassName": "system-node-critical"}}) == ["spec.actors.priorityClassName"]
    assert refusals({"actors": {"priorityClassName": "low"}}) == []


@pytest.mark.parametrize("service", ["learner", "quantizer", "actor"])
def test_images_of_other_registries_are_refused(service: str) -> None:
    registries = "['registry.example/rl/', 'registry.example/base/']"
    assert refusals({"images": {service: "evil.example/a:1"}}, registries=registries) == ["spec.images"]
    assert refusals({"images": {service: "registry.example/base/a:1"}}, registries=registries) == []
    assert refusals({}, registries=registries) == []


def test_an_image_of_a_simulator_from_another_registry_is_refused() -> None:
    registries = "['registry.example/rl/']"

    def run(image: str) -> Object:
        return {"environment": "external/robot", "actors": {"external": {"image": image}}}

    assert refusals(run("evil.example/robot:1"), registries=registries) == ["spec.actors.external.image"]
    assert refusals(run("registry.example/rl/robot:1"), registries=registries) == []
    assert refusals(run("robot:1")) == []


def test_secrets_with_other_names_are_refused() -> None:
    secrets = "['object-storage', 'actorq-']"
    assert refusals({"checkpoint": {"secret": "payroll"}}, secrets=secrets) == ["spec.checkpoint.secret"]
    assert refusals({"checkpoint": {"secret": "actorq-bucket"}}, secrets=secrets) == []
    # The default.
    assert refusals({}, secrets=secrets) == []
