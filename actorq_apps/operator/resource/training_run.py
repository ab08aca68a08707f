"""A TrainingRun: the object that describes a run on Kubernetes, parsed and checked.

sitegen/definition.py generates the schema for API servers from these models. Each text, list and mapping therefore
has a bound: an API server uses the bounds to estimate the cost of a rule.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue, model_validator

from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.config.sections import EXPORT_URL, FOLDER_URL, MAX_EXPORT_URL
from actorq.config.settings import Settings
from actorq.domain.environments import is_external
from actorq.errors import UserError
from actorq_apps.cluster.objects import TRAINING_RUN, Object, part
from actorq_apps.operator.naming import check_run_name
from actorq_apps.operator.resource.amounts import IMMUTABLE, RULES, Image, Key, Name, Size, Value
from actorq_apps.operator.resource.pods import Named, PodSettings, Resources
from actorq_apps.operator.resource.simulator import SimulatorSpec

API_VERSION, KIND = TRAINING_RUN
GROUP, VERSION = API_VERSION.split("/")
PLURAL = "trainingruns"

_FIXED: dict[str, JsonValue] = {IMMUTABLE: True}
_ISSUER_RULE: dict[str, JsonValue] = {
    "rule": "(self.mode == 'issuer') == has(self.issuer)",
    "message": "spec.tls.issuer is for mode issuer, which needs it",
}
_EXTERNAL_RULE: dict[str, JsonValue] = {
    "rule": "self.environment.startsWith('external/') == has(self.actors.external)",
    "message": "spec.actors.external is for environments such as external/robot, which need it",
}

# Prefix of labels for Kueue.
_KUEUE = "kueue.x-k8s.io/"
# Maximum nesting of lists and mappings in a specification. Parsing a deeper one could end a process.
DEEPEST = 32


class Toleration(Settings):
    """A taint of nodes that pods accept, as in Kubernetes."""

    key: Key | None = Field(None, description="key of the taint")
    operator: Literal["Exists", "Equal"] | None = Field(None, description="comparison of the value")
    value: Value | None = Field(None, description="value of the taint")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="effect of the taint"
    )
    tolerationSeconds: int | None = Field(None, description="seconds until a pod leaves the node")


class ImagesSpec(Settings):
    """Images of the services. The defaults have the operator's version."""

    learner: Image | None = Field(None, description="image of the learner")
    quantizer: Image | None = Field(None, description="image of the quantizer and the relays")
    actor: Image | None = Field(None, description="image of the actors and the evaluator")


class ActorsSpec(Settings):
    """The actors. `kubectl scale` changes their number."""

    replicas: int = Field(2, ge=0, le=10_000, description="number of actors")
    resources: Resources = Field(Resources(), description="changes of an actor's requests and limits")
    tolerations: tuple[Toleration, ...] = Field((), max_length=64, description="taints of nodes that actors accept")
    nodeSelector: dict[str, Value] = Field({}, max_length=64, description="labels of nodes for actors")
    spot: bool = Field(False, description="prefer spot nodes and accept their taints")
    priorityClassName: Name | None = Field(None, description="PriorityClass of the actors")
    external: SimulatorSpec | None = Field(
        None, description="simulator beside each actor; required by environments external/NAME, and only for them"
    )
    pod: PodSettings = Field(PodSettings(), description="changes of the pod of an actor")

    @model_validator(mode="after")
    def _check(self) -> "ActorsSpec":
        known = {volume.name for volume in self.pod.volumes}
        for mount in self.external.volumeMounts if self.external is not None else ():
            if mount.name not in known:
                raise ValueError(
                    f"actors.external.volumeMounts: {mount.name} is none of the volumes in actors.pod.volumes"
                )
        return self


class LearnerSpec(Settings):
    """The learner."""

    resources: Resources = Field(Resources(), description="changes of the learner's requests and limits")
    gpu: int = Field(0, ge=0, le=8, description="number of NVIDIA GPUs")
    storage: Size = Field(
        "10Gi", description="size of the volume with replay and checkpoints", json_schema_extra=_FIXED
    )
    storageClassName: Name | None = Field(None, description="StorageClass of the volume", json_schema_extra=_FIXED)
    nodeSelector: dict[str, Value] = Field({}, max_length=64, description="labels of nodes for the learner")
    tolerations: tuple[Toleration, ...] = Field(
        (), max_length=64, description="taints of nodes that the learner accepts"
    )
    pod: PodSettings = Field(PodSettings(), description="changes of the pod of the learner")


class QuantizerSpec(Settings):
    """The quantizer."""

    resources: Resources = Field(Resources(), description="changes of the quantizer's requests and limits")
    storage: Size = Field("2Gi", description="size of the volume with policies", json_schema_extra=_FIXED)
    storageClassName: Name | None = Field(None, description="StorageClass of the volume", json_schema_extra=_FIXED)
    pod: PodSettings = Field(PodSettings(), description="changes of the pod of the quantizer")


class RelaysSpec(Settings):
    """Relays of policies, for hundreds of actors."""

    replicas: int = Field(0, ge=0, le=100, description="number of relays; with 0 actors use the quantizer itself")
    pod: PodSettings = Field(PodSettings(), description="changes of the pod of a relay")


class EvaluatorSpec(Settings):
    """The evaluator. Without it, no return ends the run. With actors.external, the actors evaluate instead."""

    replicas: int = Field(1, ge=0, le=1, description="number of evaluators")
    resources: Resources = Field(Resources(), description="changes of the evaluator's requests and limits")
    pod: PodSettings = Field(PodSettings(), description="changes of the pod of the evaluator")


class IssuerSpec(Settings):
    """An issuer of cert-manager."""

    name: Name = Field(description="name of the issuer")
    kind: Literal["Issuer", "ClusterIssuer"] = Field("Issuer", description="kind of the issuer")


class TlsSpec(Settings):
    """Mutual TLS between the services."""

    model_config = ConfigDict(json_schema_extra={RULES: [_ISSUER_RULE]})
    mode: Literal["generated", "issuer", "none"] = Field(
        "generated",
        description="generated: an authority of the run's own; issuer: certificates by cert-manager; none: plain text",
        json_schema_extra=_FIXED,
    )
    issuer: IssuerSpec | None = Field(None, description="issuer of the certificates, for mode issuer")

    @model_validator(mode="after")
    def _check(self) -> "TlsSpec":
        if (self.mode == "issuer") != (self.issuer is not None):
            raise ValueError(f"tls.mode is {self.mode}: tls.issuer is for mode issuer, which needs it")
        return self


# If there is no Secret with this name, the learner uses its service account, as with workload identity.
DEFAULT_SECRET = "object-storage"
SECRET_LABEL = "actorq.dev/credentials"
"""Label of Secrets that runs may read. Without it, creating a run would give access to any Secret."""


class CheckpointSpec(Settings):
    """The data that remains after a run."""

    retain: bool = Field(True, description="keep the volumes when the TrainingRun is deleted")
    secret: Name = Field(
        DEFAULT_SECRET,
        description="Secret with credentials for config.checkpoint.object_storage and policyExport, if any; with the "
        f'label {SECRET_LABEL}: "true"',
    )


class PolicyExportSpec(Settings):
    """Destination of the best policy at the end of the run: a folder for policy.onnx and policy.json."""

    url: Annotated[str, Field(min_length=1, max_length=MAX_EXPORT_URL, pattern=EXPORT_URL), FOLDER_URL] = Field(
        description="s3://BUCKET/PREFIX, a separate one for each run"
    )
    scheme: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None, description="number format of the policy (default: the scheme of the evaluation)"
    )


class TrainingRunSpec(Settings):
    """The specification of a TrainingRun."""

    model_config = ConfigDict(json_schema_extra={RULES: [_EXTERNAL_RULE]})
    environment: str = Field(
        min_length=1, max_length=128, description="environment id; cannot be changed", json_schema_extra=_FIXED
    )
    algorithm: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None, description="algorithm (default: by the environment); cannot be changed", json_schema_extra=_FIXED
    )
    config: dict[str, JsonValue] = Field(
        {}, max_length=64, description="further settings of the run, as in a file for `actorq train --config`"
    )
    images: ImagesSpec = ImagesSpec()
    imagePullSecrets: tuple[Named, ...] = Field((), max_length=16, description="secrets of image registries")
    actors: ActorsSpec = ActorsSpec()
    learner: LearnerSpec = LearnerSpec()
    quantizer: QuantizerSpec = QuantizerSpec()
    relays: RelaysSpec = RelaysSpec()
    evaluator: EvaluatorSpec = EvaluatorSpec()
    tls: TlsSpec = TlsSpec()
    networkPolicies: bool = Field(False, description="forbid all connections except those of the run")
    serviceAccountAnnotations: dict[str, Annotated[str, Field(max_length=4096)]] = Field(
        {}, max_length=16, description="annotations of the run's service accounts, for example for workload identity"
    )
    activeDeadlineSeconds: int | None = Field(
        None, ge=1, le=315_360_000, description="seconds of the run that end it, as max_seconds of config"
    )
    backoffLimit: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="maximum restarts of the containers of learner and quantizer, all together; with one more restart "
        "the run is Failed (default: no limit)",
    )
    suspend: bool = Field(False, description="end all pods until it is false again; volumes stay")
    ttlSecondsAfterFinished: int = Field(
        3600, ge=0, le=31_536_000, description="seconds that learner and quantizer serve after the run's end"
    )
    checkpoint: CheckpointSpec = CheckpointSpec()
    policyExport: PolicyExportSpec | None = Field(None, description="export of the best policy at the end of the run")

    @model_validator(mode="after")
    def _check(self) -> "TrainingRunSpec":
        has_simulator = self.actors.external is not None
        if has_simulator and not is_external(self.environment):
            raise ValueError(
                f"actors.external: {self.environment} has environments of its own: leave it out, or set an environment "
                "such as external/robot"
            )
        if is_external(self.environment) and not has_simulator:
            raise ValueError(f"environment: {self.environment} needs actors.external with the image of its simulator")
        return self

    @property
    def roles(self) -> dict[str, ActorsSpec | LearnerSpec | QuantizerSpec | RelaysSpec | EvaluatorSpec]:
        """The sections of the specification by the component of their pods."""
        return {
            "actor": self.actors,
            "learner": self.learner,
            "quantizer": self.quantizer,
            "relay": self.relays,
            "evaluator": self.evaluator,
        }

    @property
    def secrets(self) -> list[str]:
        """The names of the Secrets that pods read, except the checkpoints' Secret."""
        of_simulator = self.actors.external.secrets if self.actors.external is not None else []
        of_roles = (name for role in self.roles.values() for name in role.pod.secrets)
        return list(dict.fromkeys((*of_roles, *of_simulator)))

    @property
    def has_object_storage(self) -> bool:
        """Whether the learner writes to object storage: checkpoints, or the best policy."""
        places = (("checkpoint", "object_storage"), ("policy_export", "url"))
        return self.policyExport is not None or any(part(self.config, section).get(name) for section, name in places)

    def settings(self) -> dict[str, Any]:
        """The run's settings, as in a file for --config. Raises UserError for a contradiction."""
        named: dict[str, Any] = {"environment": self.environment}
        if self.algorithm is not None:
            named["algorithm"] = self.algorithm
        for name in ("environment", "algorithm"):
            if name in self.config and self.config[name] != named.get(name):
                raise UserError(
                    f"spec.config.{name} is {self.config[name]!r}, but spec.{name} is {named.get(name)!r}: leave it "
                    "out of spec.config"
                )
        tree = {**named, **self.config}
        if self.policyExport is not None:
            if "policy_export" in self.config:
                raise UserError("spec.config.policy_export: leave it out, because there is spec.policyExport")
            tree["policy_export"] = self.policyExport.model_dump(exclude_none=True)
        if self.activeDeadlineSeconds is not None:
            if "max_seconds" in self.config:
                raise UserError("spec.config.max_seconds: leave it out, because there is spec.activeDeadlineSeconds")
            tree["max_seconds"] = self.activeDeadlineSeconds
        learner = tree.get("learner", {})
        if self.learner.gpu and isinstance(learner, dict):
            if learner.get("device") == "cpu":
                raise UserError(f"spec.config.learner.device is cpu, but spec.learner.gpu is {self.learner.gpu}")
            # Without a usable GPU, the learner then ends with an error. With auto it would silently use the CPU.
            device = learner.get("device", "auto")
            tree["learner"] = {**learner, "device": "cuda" if device == "auto" else device}
        return tree


@dataclass(frozen=True)
class TrainingRun:
    """A run as its object describes it."""

    name: str
    namespace: str
    uid: str
    spec: TrainingRunSpec
    queue: dict[str, str] = field(default_factory=dict)
    """The labels of the object for Kueue. The run's workloads and pods have them, too."""

    @classmethod
    def of(cls, manifest: Object) -> "TrainingRun":
        """The run of an object from the API server. Raises UserError if it does not describe a valid run."""
        metadata = part(manifest, "metadata")
        name = check_run_name(str(metadata.get("name", "")))
        tree = manifest.get("spec")
        if not isinstance(tree, dict):
            raise UserError("spec: expected a section of settings, such as `spec: {environment: CartPole-v1}`")
        if depth_above(tree, DEEPEST):
            raise UserError(f"spec: expected at most {DEEPEST} levels of lists and mappings, got more")
        spec = settings.build(TrainingRunSpec, tree, section="spec")
        _check(spec)
        queue = {key: str(value) for key, value in part(metadata, "labels").items() if key.startswith(_KUEUE)}
        return cls(name, str(metadata.get("namespace") or "default"), str(metadata.get("uid", "")), spec, queue)


def _check(spec: TrainingRunSpec) -> None:
    # This section of a --config file is not part of the run's configuration.
    tree = {key: value for key, value in spec.settings().items() if key != "process"}
    try:
        config = settings.build(RunConfig, tree)
    except UserError as error:
        raise UserError(f"spec.config: {error}") from None
    if config.learner.device.startswith("cuda") and not spec.learner.gpu:
        raise UserError(f"spec.config.learner.device is {config.learner.device}, but spec.learner.gpu is 0")
    _check_dataset(spec, config, tree)


def _check_dataset(spec: TrainingRunSpec, config: RunConfig, tree: Object) -> None:
    """Raise UserError for stored data that the learner's pod cannot find, and for pods that an offline run refuses."""
    # The run's configuration has an absolute path, which was made from the operator's working directory.
    source = str(part(settings.in_full(RunConfig, tree), "dataset").get("source") or "")
    if config.dataset and not Path(source).is_absolute():
        raise UserError(
            f"spec.config.dataset: expected the absolute path of a folder in the learner's pod, got {source!r}: mount "
            "its volume with spec.learner.pod"
        )
    if config.offline and spec.actors.replicas:
        raise UserError(
            f"spec.actors.replicas: expected 0, got {spec.actors.replicas}: spec.config.offline is true, and an "
            "offline run has no actors"
        )
    if config.offline and not spec.evaluator.replicas:
        raise UserError(
            "spec.evaluator.replicas: expected 1, got 0: spec.config.offline is true, and an offline run begins with "
            "its evaluator"
        )


def depth_above(tree: object, levels: int) -> bool:
    """Whether lists and mappings are nested in more than `levels` levels. Works at any depth."""
    if not isinstance(tree, dict | list):
        return False
    inner = tree.values() if isinstance(tree, dict) else tree
    return any(depth_above(each, levels - 1) for each in inner) if levels else bool(inner)
