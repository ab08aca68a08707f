"""Creates the objects of a TrainingRun from the manifests of k8s/, which `kubectl apply -k` also uses."""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from kubernetes.utils.quantity import parse_quantity

import actorq
from actorq import __version__
from actorq.errors import UserError
from actorq_apps.cluster import configuration
from actorq_apps.cluster.manifests import component_of, prepared
from actorq_apps.cluster.objects import VOLUME, WORKLOADS, Object, name_of, part
from actorq_apps.operator.kustomization import build
from actorq_apps.operator.naming import named
from actorq_apps.operator.resource.pods import PodSettings, Resources
from actorq_apps.operator.resource.simulator import SimulatorSpec
from actorq_apps.operator.resource.training_run import (
    API_VERSION,
    KIND,
    ActorsSpec,
    LearnerSpec,
    RelaysSpec,
    TrainingRun,
    TrainingRunSpec,
)

# Locations in the checkout and in the operator's image.
_FOLDERS = (Path(actorq.__file__).parents[1] / "k8s", Path(sys.prefix) / "share" / "actorq" / "k8s")
MANIFESTS = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[-1])
"""The folder with the default manifests."""

VERSION_LABEL = "app.kubernetes.io/version"
_GPU = "nvidia.com/gpu"
# The limit of RUN_PATTERN in actorq/transport/security/identity.py.
_LONGEST_IDENTITY = 63
CORE = ("learner", "quantizer")
"""These components serve status and policies after a run's end. At its start, the others wait for these."""
WORKERS = ("relay", "actor", "evaluator")
# The container of components/external.
_SIMULATOR = "simulator"
# Keys that identify the items of a pod's lists.
_UNIQUE = {"env": "name", "volumes": "name", "volumeMounts": "mountPath"}
_CERTIFICATE_OBJECTS = ("Issuer", "Certificate")


@dataclass(frozen=True)
class Images:
    """The operator's settings for the images of runs that name none. Empty values keep the images of `k8s`.

    registry: with a folder, if any, such as registry.example/rl. tag: of all images. pull_policy: as in Kubernetes.
    pull_secrets: names of Secrets in a run's namespace, in addition to those that the run names.
    digests: by the name of an image in `k8s`, such as sha256:0123...; each replaces the tag.
    """

    registry: str = ""
    tag: str = ""
    pull_policy: str = ""
    pull_secrets: tuple[str, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)

    def named(self, image: str) -> str:
        """The full name of an image in the manifests."""
        name, _, tag = image.rpartition(":")
        digest = f"@{self.digests[name]}" if name in self.digests else ""
        return f"{self.registry}/{name}:{self.tag or tag}{digest}".removeprefix("/")


def objects(
    run: TrainingRun,
    resting: Collection[str] = (),
    manifests: Path = MANIFESTS,
    credentials: bool = True,
    images: Images = Images(),
) -> list[Object]:
    """All objects of a run in the order of application, except its secrets (certificates.py).

    resting: the components without pods. manifests: a folder with `base` and `components`, such as k8s/.
    credentials: whether the learner gets those of spec.checkpoint.secret, if the run has object storage.

    Raises UserError for settings that cannot work together, or manifests that cannot be read.
    """
    spec = run.spec
    found = build(manifests / "base", [manifests / "components" / name for name in _components(spec, credentials)])
    made = [each for each in found if _is_wanted(each, spec)]
    for manifest in made:
        _customize(manifest, run, resting, images)
    ready = prepared(named(made, run.name, identity(run)), run.name, run.namespace)
    for manifest in ready:
        metadata = manifest["metadata"]
        metadata["namespace"] = run.namespace
        metadata["labels"][VERSION_LABEL] = __version__
        if not (manifest["kind"] == VOLUME and spec.checkpoint.retain):
            metadata["ownerReferences"] = [owner(run)]
        if manifest["kind"] in WORKLOADS and component_of(manifest) == "actor" and spec.actors.external is not None:
            # After the change of names and addresses, which must not change the simulator's arguments.
            _set_simulator(manifest["spec"]["template"]["spec"], spec.actors.external, images)
        if manifest["kind"] == "Certificate" and spec.tls.issuer is not None:
            manifest["spec"]["issuerRef"] = {"group": "cert-manager.io", **spec.tls.issuer.model_dump()}
    configuration.require_time_to_end(ready)
    return ready


def owner(run: TrainingRun) -> Object:
    """The reference that makes Kubernetes delete an object together with its TrainingRun."""
    found = {"apiVersion": API_VERSION, "kind": KIND, "name": run.name, "uid": run.uid}
    return {**found, "controller": True, "blockOwnerDeletion": True}


def identity(run: TrainingRun) -> str:
    """The run in certificates. Runs with the same name in other namespaces have other identities. Raises UserError."""
    name = f"{run.namespace}.{run.name}"
    if len(name) > _LONGEST_IDENTITY:
        raise UserError(
            f"name of the run: with its namespace it has {len(name)} characters, expected at most {_LONGEST_IDENTITY}"
        )
    return name


def _components(spec: TrainingRunSpec, credentials: bool) -> list[str]:
    """The components of k8s/ that the run uses, in order of their application to the base."""
    secure, relays, closed = spec.tls.mode != "none", spec.relays.replicas > 0, spec.networkPolicies
    external = spec.actors.external is not None
    chosen = {
        "relays": relays,
        "mtls": secure,
        "plaintext": not secure,
        "external": external,
        "external/mtls": external and secure,
        "relays/mtls": secure and relays,
        "network-policies": closed,
        "relays/network-policies": closed and relays,
        "object-storage": spec.has_object_storage and credentials,
        "object-storage/network-policies": spec.has_object_storage and closed,
        "gpu-learner": spec.learner.gpu > 0,
        "spot-actors": spec.actors.spot,
    }
    return [name for name, is_chosen in chosen.items() if is_chosen]


def _is_wanted(manifest: Object, spec: TrainingRunSpec) -> bool:
    """Whether the run uses this object. It never uses the manifests' own cert-manager authority."""
    if manifest["kind"] not in _CERTIFICATE_OBJECTS:
        return True
    return spec.tls.mode == "issuer" and manifest["kind"] == "Certificate" and not manifest["spec"].get("isCA")


def _customize(manifest: Object, run: TrainingRun, resting: Collection[str], images: Images) -> None:
    """Change an object of the manifests, still under its original name, according to the run's specification."""
    spec, kind, body = run.spec, manifest["kind"], part(manifest, "spec")
    if kind == "ConfigMap" and name_of(manifest) == "run-config":
        manifest["data"] = {"config.yaml": yaml.safe_dump(spec.settings(), sort_keys=False)}
    secrets = dict.fromkeys((*(each.name for each in spec.imagePullSecrets), *images.pull_secrets))
    if kind == "ServiceAccount" and secrets:
        manifest["imagePullSecrets"] = [{"name": name} for name in secrets]
    if kind == "ServiceAccount" and spec.serviceAccountAnnotations:
        manifest["metadata"].setdefault("annotations", {}).update(spec.serviceAccountAnnotations)
    if kind == VOLUME:
        _set_volume(body, spec.quantizer.storage, spec.quantizer.storageClassName)
    for template in body.get("volumeClaimTemplates", ()):
        _set_volume(template["spec"], spec.learner.storage, spec.learner.storageClassName)
    if kind in WORKLOADS:
        _set_workload(component_of(manifest), body, spec, resting, images)
        for metadata in (manifest["metadata"], body["template"]["metadata"]):
            metadata.setdefault("labels", {}).update(run.queue)


def _set_volume(claim: Object, size: str, storage_class: str | None) -> None:
    claim["resources"] = {"requests": {"storage": size}}
    if storage_class is not None:
        claim["storageClassName"] = storage_class


def _set_workload(
    component: str, body: Object, spec: TrainingRunSpec, resting: Collection[str], images: Images
) -> None:
    role = spec.roles.get(component, spec.quantizer)
    body["replicas"] = 0 if spec.suspend or component in resting else getattr(role, "replicas", 1)
    pod = body["template"]["spec"]
    container = _container(pod, component)
    image = {"learner": spec.images.learner, "actor": spec.images.actor, "evaluator": spec.images.actor}
    container["image"] = image.get(component, spec.images.quantizer) or images.named(container["image"])
    if images.pull_policy:
        container["imagePullPolicy"] = images.pull_policy
    if component == "actor" and spec.actors.priorityClassName is not None:
        pod["priorityClassName"] = spec.actors.priorityClassName
    if component == "learner":
        for source in container.get("envFrom", ()):
            source["secretRef"]["name"] = spec.checkpoint.secret
        if spec.learner.gpu:
            container["resources"]["limits"][_GPU] = str(spec.learner.gpu)
    if not isinstance(role, RelaysSpec):
        _set_resources(container, "actors" if component == "actor" else component, role.resources)
    if isinstance(role, ActorsSpec | LearnerSpec) and role.nodeSelector:
        pod["nodeSelector"] = role.nodeSelector
    if isinstance(role, ActorsSpec | LearnerSpec) and role.tolerations:
        added = [each.model_dump(exclude_none=True) for each in role.tolerations]
        pod["tolerations"] = [*pod.get("tolerations", ()), *added]
    _set_pod(body["template"], component, role.pod)


def _container(pod: Object, name: str) -> Object:
    """A container of a pod: of the service by the name of its component, or of the simulator. Raises UserError."""
    found: dict[str, Object] = {each["name"]: each for each in pod["containers"]}
    if name not in found:
        raise UserError(f"--manifests: expected a container {name} in its pods, got {', '.join(found)}")
    return found[name]


def _set_simulator(pod: Object, simulator: SimulatorSpec, images: Images) -> None:
    """Fill the simulator's container in the pods of actors. Raises UserError if it would replace something."""
    container = _container(pod, _SIMULATOR)
    container["name"], container["image"] = simulator.name, simulator.image
    if images.pull_policy:
        container["imagePullPolicy"] = images.pull_policy
    wanted = simulator.model_dump(exclude_none=True, exclude_defaults=True)
    for kind in ("command", "args"):
        if kind in wanted:
            container[kind] = list(wanted[kind])
    for kind in ("env", "volumeMounts"):
        _extend(container, kind, wanted.get(kind, ()), "spec.actors.external")
    _set_resources(container, "actors.external", simulator.resources)


def _set_resources(container: Object, section: str, changes: Resources) -> None:
    requests, limits = ({**container["resources"][kind], **getattr(changes, kind)} for kind in ("requests", "limits"))
    for name, request in requests.items():
        if name in limits and parse_quantity(request) > parse_quantity(limits[name]):
            raise UserError(
                f"spec.{section}.resources: requests.{name} is {request}, above limits.{name}, {limits[name]}"
            )
    container["resources"] = {"requests": requests, "limits": limits}


def _set_pod(template: Object, component: str, settings: PodSettings) -> None:
    """Add a run's settings to the pods of a role. Raises UserError if they would replace something."""
    pod, metadata = template["spec"], template["metadata"]
    container = _container(pod, component)
    wanted = settings.model_dump(exclude_none=True, exclude_defaults=True)
    for kind in ("labels", "annotations"):
        if kind in wanted:
            metadata.setdefault(kind, {}).update(wanted[kind])
    for kind, place in {"env": container, "volumes": pod, "volumeMounts": container, "envFrom": container}.items():
        _extend(place, kind, wanted.get(kind, ()), f"spec.{component}.pod")
    if "affinity" in wanted:
        pod["affinity"] = {**pod.get("affinity", {}), **wanted["affinity"]}
    if "topologySpreadConstraints" in wanted:
        pod["topologySpreadConstraints"] = list(wanted["topologySpreadConstraints"])
    if settings.serviceAccountName is not None:
        pod["serviceAccountName"] = settings.serviceAccountName


def _extend(place: Object, kind: str, added: Sequence[Object], where: str) -> None:
    """Add items to a list of a pod or container. Raises UserError, with the section `where`, if one is taken."""
    there, key = place.get(kind, ()), _UNIQUE.get(kind)
    taken = {each[key] for each in there} if key else set()
    for each in added:
        if key and each[key] in taken:
            raise UserError(f"{where}.{kind}: {each[key]} is taken by the run itself: take another {key}")
    if added:
        place[kind] = [*there, *added]
