"""The Helm chart is made from the manifests in k8s/, and renders the same objects as `kubectl kustomize`. Helm does not
run here. A small renderer replaces it, and refuses unknown syntax.
"""

import json
import re
import textwrap
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import jsonschema
import pytest
import yaml

from actorq_apps.operator.process import parse
from sitegen import chart
from tests.k8s.rendered_manifests import K8S, Object, of_kind, render

FILES = chart.files()
TEMPLATES = {path: text for path, text in FILES.items() if path.startswith("templates/")}
DIGEST = f"sha256:{'0' * 64}"
VALUES: Object = yaml.safe_load(FILES["values.yaml"])


class Helm:
    """Renders a template with the part of Helm's language that the chart uses: if, else, range, end, not, values and
    nindent.
    """

    def __init__(self, values: Object, namespace: str) -> None:
        self._context = {"Values": values, "Release": {"Namespace": namespace}}
        # The current items of the ranges around an action.
        self._each: list[Any] = []

    def render(self, template: str) -> list[Object]:
        """The objects of a template."""
        parts = re.split(r"(\s*\{\{- [^}]* \}\}|\{\{ ?(?:`[^`]*`|[^}]*?) ?\}\})", template)
        text, rest = self._run(parts, True)
        assert not rest, "an end without its if"
        return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]

    def _run(self, parts: list[str], shown: bool) -> tuple[str, list[str]]:
        """The text up to the next `else` or `end` of this level, and the parts from there on."""
        written = ""
        while parts:
            action = re.fullmatch(r"\s*\{\{-? ?(.*?) ?\}\}", parts[0])
            words = action[1].split() if action and not action[1].startswith("`") else []
            if words[:1] in (["else"], ["end"]):
                return written, parts
            if words[:1] in (["if"], ["range"]):
                more, parts = self._block(words, parts[1:], shown)
                written += more
                continue
            if shown:
                written += self._value(action[1]) if action else parts[0]
            parts = parts[1:]
        return written, parts

    def _block(self, words: Sequence[str], parts: list[str], shown: bool) -> tuple[str, list[str]]:
        value = self._look_up(words[1:]) if shown else None
        written = ""
        if words[0] == "range":
            _, rest = self._run(parts, False)
            for each in value or ():
                self._each.append(each)
                written += self._run(parts, True)[0]
                self._each.pop()
        else:
            text, rest = self._run(parts, shown and bool(value))
            written += text
            if "else" in rest[0]:
                text, rest = self._run(rest[1:], shown and not value)
                written += text
        assert "end" in rest[0]
        return written, rest[1:]

    def _value(self, expression: str) -> str:
        if expression.startswith("`"):
            return expression.strip("`")
        if found := re.fullmatch(r"toYaml (\S+) \| nindent (\d+)", expression):
            text = yaml.safe_dump(self._look_up([found[1]])).strip()
            return "\n" + textwrap.indent(text, " " * int(found[2]))
        value = self._look_up(expression.split())
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _look_up(self, words: Sequence[str]) -> Any:
        match words:
            case ["not", path]:
                return not self._look_up([path])
            case ["."]:
                return self._each[-1]
            case [path]:
                path = path.removeprefix("$")
                assert re.fullmatch(r"(\.\w+)+", path), path
                value: Any = self._context
                for name in path.split(".")[1:]:
                    value = value[name]
                return value
        raise AssertionError(f"unknown: {words}")


def installed(namespace: str, **changes: Any) -> tuple[Object, ...]:
    """The objects of a release, without CRDs."""
    helm = Helm({**VALUES, **changes}, namespace)
    return tuple(each for template in TEMPLATES.values() for each in helm.render(template))


def by_name(objects: Sequence[Object]) -> dict[tuple[str, str], Object]:
    """Objects by name, without fields that only Helm or only a kustomization of a namespace sets."""
    found = {}
    for each in deepcopy(objects):
        if each["kind"] in ("Namespace", "CustomResourceDefinition"):
            continue
        each["metadata"]["labels"].pop("app.kubernetes.io/managed-by", None)
        pod = each.get("spec", {}).get("template", {}).get("spec", {})
        for place in (each, pod, *pod.get("containers", ())):
            for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity", "env"):
                if not place.get(name, True):
                    del place[name]
        found[each["kind"], each["metadata"]["name"]] = each
    return found


def test_the_chart_in_the_repository_is_up_to_date() -> None:
    stored = {
        str(path.relative_to(chart.CHART)): path.read_text(encoding="utf-8")
        for path in chart.CHART.rglob("*")
        if path.is_file()
    }
    assert stored == FILES, "run `python -m sitegen.chart`"


def test_the_chart_installs_the_objects_of_the_kustomization() -> None:
    kustomized = render(K8S / "operator")
    assert by_name(installed("actorq-system")) == by_name(kustomized)
    crds = [yaml.load(text, yaml.CSafeLoader) for path, text in FILES.items() if path.startswith("crds/")]
    without_labels = [
        {**each, "metadata": {"name": each["metadata"]["name"]}}
        for each in kustomized
        if each["kind"] == "CustomResourceDefinition"
    ]
    assert sorted(crds, key=str) == sorted(without_labels, key=str)


def test_for_one_namespace_the_chart_installs_the_objects_of_that_overlay() -> None:
    kustomized = by_name(render(K8S / "overlays" / "operator-namespaced"))
    assert by_name(installed("actorq", namespaced=True)) == kustomized
    assert not [kind for kind, _ in kustomized if kind.startswith("Cluster")]


def test_the_chart_gives_the_operator_rights_in_the_namespaces_of_runs() -> None:
    (binding,) = render(K8S / "operator-access")
    assert "RoleBinding" not in {kind for kind, name in by_name(installed("actorq-system")) if name.endswith("-runs")}
    made = [each for each in installed("ops", namespaces=["lab", "games"]) if each["kind"] == "RoleBinding"]
    bound = {each["metadata"]["namespace"]: each for each in made if each["roleRef"] == binding["roleRef"]}
    assert set(bound) == {"lab", "games"}
    for each in bound.values():
        assert each["metadata"]["name"] == binding["metadata"]["name"]
        assert each["subjects"] == [{**binding["subjects"][0], "namespace": "ops"}]


def test_the_values_of_the_chart_change_the_deployment() -> None:
    objects = installed(
        "lab",
        replicas=1,
        image={"repository": "registry.example/operator", "tag": "mine", "digest": ""},
        imagePullSecrets=[{"name": "registry"}],
        resources={"requests": {"cpu": "1"}},
        nodeSelector={"pool": "system"},
        tolerations=[{"key": "system", "operator": "Exists"}],
        extraArgs=["--log-format=json"],
        extraEnv=[{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    )
    spec = of_kind(objects, "Deployment")["actorq-operator"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["replicas"] == 1
    pod = spec["template"]["spec"]
    assert (pod["nodeSelector"], pod["affinity"]) == ({"pool": "system"}, {})
    assert pod["tolerations"] == [{"key": "system", "operator": "Exists"}]
    assert container["image"] == "registry.example/operator:mine"
    assert container["resources"] == {"requests": {"cpu": "1"}}
    assert parse(container["args"]).log_format == "json"
    assert container["env"] == [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]
    assert of_kind(objects, "ServiceAccount")["actorq-operator"]["imagePullSecrets"] == [{"name": "registry"}]
    assert {each["metadata"].get("namespace", "lab") for each in objects} == {"lab"}


@pytest.mark.parametrize("namespaced", [False, True])
def test_with_monitoring_the_chart_monitors_the_namespaces_of_the_operator(namespaced: bool) -> None:
    plain = installed("lab", namespaced=namespaced)
    objects = installed("lab", namespaced=namespaced, monitoring={"enabled": True})
    added = objects[len(plain) :]
    assert [each["kind"] for each in added] == ["ServiceMonitor", "PodMonitor", "PrometheusRule", "PodMonitor"]
    monitored = render(K8S / "overlays" / "production")
    assert added[2]["spec"] == of_kind(monitored, "PrometheusRule")["alerts"]["spec"]
    for monitor in added[:2]:
        assert monitor["spec"].pop("namespaceSelector") == {"any": not namespaced}
        name = monitor["metadata"]["name"].removeprefix("actorq-")
        assert monitor["spec"] == of_kind(monitored, monitor["kind"])[name]["spec"]
    own = added[3]["spec"]
    pod = of_kind(plain, "Deployment")["actorq-operator"]["spec"]["template"]
    assert own["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = {each["name"] for each in pod["spec"]["containers"][0]["ports"]}
    assert {each["port"] for each in own["podMetricsEndpoints"]} <= ports
    assert "namespaceSelector" not in own


def test_the_values_of_the_chart_set_the_images_of_runs() -> None:
    digests = {"learner": DIGEST, "quantizer": "", "actor": ""}
    images: Object = {"registry": "registry.example/rl", "tag": "7", "pullPolicy": "Always", "pullSecret": "registry"}
    images["digests"] = digests
    spec = of_kind(installed("lab", runImages=images), "Deployment")["actorq-operator"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    flags = parse(container["args"])
    assert (flags.image_registry, flags.image_tag) == ("registry.example/rl", "7")
    assert (flags.image_pull_policy, flags.image_pull_secret) == ("Always", ["registry"])
    assert flags.image_digest == [f"learner={DIGEST}"]


def test_a_digest_names_the_image_of_the_operator() -> None:
    objects = installed("lab", image={"repository": "registry.example/operator", "tag": "mine", "digest": DIGEST})
    (container,) = of_kind(objects, "Deployment")["actorq-operator"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example/operator:mine@{DIGEST}"


def test_helm_refuses_unknown_values() -> None:
    schema = json.loads(FILES["values.schema.json"])
    jsonschema.Draft7Validator.check_schema(schema)
    check = jsonschema.Draft7Validator(schema)
    assert check.is_valid(VALUES)
    assert check.is_valid({**VALUES, "affinity": {"nodeAffinity": {}}, "global": {}})
    assert check.is_valid({**VALUES, "image": {"digest": DIGEST}, "extraEnv": [{"name": "A", "value": "b"}]})
    wrong: list[Object] = [
        *({"replica": 1}, {"replicas": "2"}, {"image": {"name": "x"}}, {"runImages": {"pull": "x"}}),
        *({"image": {"digest": "latest"}}, {"runImages": {"digests": {"learner": "sha256:1"}}}),
        *({"extraArgs": "--log-format=json"}, {"extraEnv": ["A=b"]}, {"namespaces": [1]}),
    ]
    for each in wrong:
        assert not check.is_valid({**VALUES, **each}), each
