"""Allows several runs in a namespace: the names, labels, selectors and addresses of objects contain the run's name."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from actorq.errors import DeniedError, UserError
from actorq.transport.security.identity import identity_uri, parse_identity
from actorq.transport.security.roles import ROLES
from actorq_apps.cluster.objects import RUN_LABEL, WORKLOADS, Object, items, name_of, part

# A StatefulSet's revision is a label of its pods with at most 63 characters: RUN-learner-HASH, with a HASH of 10.
LONGEST_RUN_NAME = 63 - len("-learner") - len("-0123456789")
RUN_NAME = rf"^[a-z]([-a-z0-9]{{0,{LONGEST_RUN_NAME - 2}}}[a-z0-9])?$"
"""Pattern of names. Like the name of a Service, it begins with a letter."""
# Fields whose value is the name of another object, and fields that contain an object with `name`.
_NAMES = ("serviceAccountName", "serviceName", "secretName", "claimName")
_REFERENCES = ("configMap", "scaleTargetRef", "issuerRef", "authenticationRef", "secretTargetRef", "service")
# The same fields for ConfigMaps and Secrets. Objects from outside the overlay keep their names.
_DATA_REFERENCES = ("secretRef", "secretKeyRef", "secret", "imagePullSecrets", "configMapRef", "configMapKeyRef")
_SELECTORS = ("selector", "labelSelector", "podSelector")
_POD_NAME = "statefulset.kubernetes.io/pod-name"
# Objects that the manifests refer to, but that others create.
_MADE_LATER = {"authority-tls", "denied-certificates", *(f"{role}-tls" for role in ROLES)}
_CERTIFICATES = "ACTORQ_TRANSPORT__CERTIFICATES"
_RUN = "ACTORQ_TRANSPORT__RUN"


def check_run_name(name: str) -> str:
    """Return the name if all objects of a run can use it. Raises UserError otherwise."""
    if not re.fullmatch(RUN_NAME, name):
        raise UserError(
            f"name of the run: expected a letter and up to {LONGEST_RUN_NAME - 1} of a-z, 0-9 and inner dashes, "
            f"got {name!r}"
        )
    return name


def named(manifests: Sequence[Object], run: str, identity: str) -> list[Object]:
    """The objects of k8s/ under names that begin with the run's name, so that several runs can share a namespace.

    The run's label is added to all selectors. Addresses and the names in certificates change accordingly.
    identity: the run in certificates, the services' transport.run.
    """
    services = [re.escape(name_of(each)) for each in manifests if each["kind"] == "Service"]
    own = {name_of(each) for each in manifests} | _MADE_LATER
    data = {name_of(each) for each in manifests if each["kind"] in ("ConfigMap", "Secret")}
    names = dict.fromkeys((*_NAMES, *_REFERENCES), own) | dict.fromkeys(_DATA_REFERENCES, data)
    renaming = _Renaming(run, identity, names, services)
    return [renaming.apply(each) for each in manifests]


class _Renaming:
    def __init__(self, run: str, identity: str, names: Mapping[str, set[str]], services: Sequence[str]) -> None:
        self._run, self._identity, self._names = run, identity, names
        # A service's name before a port, before a namespace, or alone as a name in a certificate.
        self._address = re.compile(rf"(?<![\w./-])({'|'.join(services) or '(?!)'})(?=:\d+$|\.[a-z])")
        self._service = re.compile(rf"({'|'.join(services) or '(?!)'})(?=\.|$)")

    def apply(self, manifest: Object) -> Object:
        if manifest["kind"] in ("ConfigMap", "Secret"):
            renamed = dict(manifest)
        else:
            renamed = {key: self._tree(value, key) for key, value in manifest.items()}
        renamed["metadata"] = {**manifest["metadata"], "name": f"{self._run}-{name_of(manifest)}"}
        if manifest["kind"] == "Service" and (selector := part(renamed, "spec", "selector")):
            renamed["spec"]["selector"] = self._labels(selector)
        if manifest["kind"] in WORKLOADS and (pod := part(renamed, "spec", "template")):
            pod["metadata"] = {**part(pod, "metadata"), "labels": self._labels(part(pod, "metadata", "labels"))}
            for container in items(part(pod, "spec"), "containers"):
                if any(variable.get("name") == _CERTIFICATES for variable in items(container, "env")):
                    container["env"] = [*container["env"], {"name": _RUN, "value": self._identity}]
        return renamed

    def _tree(self, tree: Any, key: str) -> Any:
        if isinstance(tree, str):
            return self._text(tree, key)
        if isinstance(tree, list):
            return [self._tree(each, key) for each in tree]
        if not isinstance(tree, dict):
            return tree
        renamed = {name: self._tree(value, name) for name, value in tree.items()}
        if renamed.get("name") in self._names.get(key, ()):
            renamed["name"] = f"{self._run}-{renamed['name']}"
        if key in _SELECTORS and (key == "podSelector" or "matchLabels" in renamed):
            renamed["matchLabels"] = self._labels(part(renamed, "matchLabels"))
        return renamed

    def _labels(self, labels: Object) -> Object:
        pod = {_POD_NAME: f"{self._run}-{labels[_POD_NAME]}"} if _POD_NAME in labels else {}
        return {**labels, **pod, RUN_LABEL: self._run}

    def _text(self, text: str, key: str) -> str:
        if key in _NAMES:
            return f"{self._run}-{text}" if text in self._names[key] else text
        if key == "dnsNames":
            return f"{self._run}-{text}" if self._service.match(text) else text
        if key == "uris":
            return self._uri(text)
        return text if key == "image" else self._address.sub(rf"{self._run}-\1", text)

    def _uri(self, text: str) -> str:
        try:
            owner = parse_identity([text])
        except DeniedError:
            return text
        return identity_uri(owner.role, self._identity, owner.name and f"{self._run}-{owner.name}")
