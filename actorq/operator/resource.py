"""A TrainingRun: the object that describes a run on Kubernetes, read and checked.

The schema of the same fields for the API server is k8s/operator/crd.yaml. A test compares the two.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from kubernetes.utils.quantity import parse_quantity
from pydantic import BeforeValidator, Field, JsonValue, model_validator

from actorq.cluster.objects import TRAINING_RUN, Object, part
from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.config.sections import EXPORT_URL, MAX_EXPORT_URL
from actorq.config.settings import Settings
from actorq.errors import UserError
from actorq.operator.naming import check_run_name

API_VERSION, KIND = TRAINING_RUN
GROUP, VERSION = API_VERSION.split("/")
PLURAL = "trainingruns"

QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"
_DNS_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"


def _quantity(given: object) -> object:
    return str(given) if isinstance(given, int | float) and not isinstance(given, bool) else given


Quantity = Annotated[str, Field(pattern=QUANTITY), BeforeValidator(_quantity)]
Name = Annotated[str, Field(pattern=_DNS_NAME)]
Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^\S+$")]


class Resources(Settings):
    """Requests and limits of a container."""

    requests: dict[str, Quantity] = Field({}, description="requests by name of the resource")
    limits: dict[str, Quantity] = Field({}, description="limits by name of the resource")


class Toleration(Settings):
    """A taint of nodes that pods accept, as in Kubernetes."""

    key: str | None = Field(None, description="key of the taint")
    operator: Literal["Exists", "Equal"] | None = Field(None, description="how the value is compared")
    value: str | None = Field(None, description="value of the taint")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="effect of the taint"
    )
    tolerationSeconds: int | None = Field(None, description="seconds until a pod leaves the node")


class Reference(Settings):
    """An object of the same namespace."""

    name: Name = Field(description="name of the object")


class ImagesSpec(Settings):
    """Images of the services. The default ones are of the operator's version."""

    learner: Image | None = Field(None, description="image of the learner")
    quantizer: Image | None = Field(None, description="image of the quantizer and the relays")
    actor: Image | None = Field(None, description="image of the actors and the evaluator")


class ActorsSpec(Settings):
    """The actors. `kubectl scale` changes their number."""

    replicas: int = Field(2, ge=0, le=10_000, description="number of actors")
    resources: Resources = Field(Resources(), description="changes of an actor's requests and limits")
    tolerations: tuple[Toleration, ...] = Field((), description="taints of nodes that actors accept")
    nodeSelector: dict[str, str] = Field({}, description="labels of nodes for actors")
    spot: bool = Field(False, description="prefer spot nodes and accept their taints")
    priorityClassName: Name | None = Field(None, description="PriorityClass of the actors")


class LearnerSpec(Settings):
    """The learner."""

    resources: Resources = Field(Resources(), description="changes of the learner's requests and limits")
    gpu: int = Field(0, ge=0, le=8, description="number of NVIDIA GPUs")
    storage: Quantity = Field("10Gi", description="size of the volume with replay and checkpoints")
    storageClassName: Name | None = Field(None, description="StorageClass of the volume")
    nodeSelector: dict[str, str] = Field({}, description="labels of nodes for the learner")
    tolerations: tuple[Toleration, ...] = Field((), description="taints of nodes that the learner accepts")


class QuantizerSpec(Settings):
    """The quantizer."""

    resources: Resources = Field(Resources(), description="changes of the quantizer's requests and limits")
    storage: Quantity = Field("2Gi", description="size of the volume with policies")
    storageClassName: Name | None = Field(None, description="StorageClass of the volume")


class RelaysSpec(Settings):
    """Relays of policies, for hundreds of actors."""

    replicas: int = Field(0, ge=0, le=100, description="number of relays; with 0 actors use the quantizer itself")


class EvaluatorSpec(Settings):
    """The evaluator. Without it no return ends the run."""

    replicas: int = Field(1, ge=0, le=1, description="number of evaluators")
    resources: Resources = Field(Resources(), description="changes of the evaluator's requests and limits")


class IssuerSpec(Settings):
    """An issuer of cert-manager."""

    name: Name = Field(description="name of the issuer")
    kind: Literal["Issuer", "ClusterIssuer"] = Field("Issuer", description="kind of the issuer")


class TlsSpec(Settings):
    """Mutual TLS between the services."""

    mode: Literal["generated", "issuer", "none"] = Field(
        "generated",
        description="generated: an authority of the run's own; issuer: certificates by cert-manager; none: plain text",
    )
    issuer: IssuerSpec | None = Field(None, description="issuer of the certificates, for mode issuer")

    @model_validator(mode="after")
    def _check(self) -> "TlsSpec":
        if (self.mode == "issuer") != (self.issuer is not None):
            raise ValueError(f"tls.mode is {self.mode}: tls.issuer is for mode issuer, which needs it")
        return self


class CheckpointSpec(Settings):
    """What remains of a run."""

    retain: bool = Field(True, description="keep the volumes when the TrainingRun is deleted")
    secret: Name = Field(
        "object-storage",
        description="Secret with the credentials for config.checkpoint.object_storage and policyExport, if any",
    )


class PolicyExportSpec(Settings):
    """Where the best policy goes at the end of the run: a folder for policy.onnx and policy.json."""

    url: Annotated[str, Field(min_length=1, max_length=MAX_EXPORT_URL, pattern=EXPORT_URL)] = Field(
        description="s3://BUCKET/PREFIX, one for each run"
    )
    scheme: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None, description="number format of the policy (default: the scheme of the evaluation)"
    )


class TrainingRunSpec(Settings):
    """What a TrainingRun asks for."""

    environment: str = Field(min_length=1, max_length=128, description="environment id; cannot be changed")
    algorithm: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        None, description="algorithm (default: by the environment); cannot be changed"
    )
    config: dict[str, JsonValue] = Field(
        {}, description="further settings of the run, as `actorq train --config` takes them"
    )
    images: ImagesSpec = ImagesSpec()
    imagePullSecrets: tuple[Reference, ...] = Field((), description="secrets of image registries")
    actors: ActorsSpec = ActorsSpec()
    learner: LearnerSpec = LearnerSpec()
    quantizer: QuantizerSpec = QuantizerSpec()
    relays: RelaysSpec = RelaysSpec()
    evaluator: EvaluatorSpec = EvaluatorSpec()
    tls: TlsSpec = TlsSpec()
    networkPolicies: bool = Field(False, description="forbid all connections except those of the run")
    suspend: bool = Field(False, description="end all pods until it is false again; volumes stay")
    ttlSecondsAfterFinished: int = Field(
        3600, ge=0, le=31_536_000, description="seconds that learner and quantizer serve after the run's end"
    )
    checkpoint: CheckpointSpec = CheckpointSpec()
    policyExport: PolicyExportSpec | None = Field(None, description="export of the best policy at the end of the run")

    @property
    def has_object_storage(self) -> bool:
        """Whether the learner writes to object storage: checkpoints, or the best policy."""
        places = (("checkpoint", "object_storage"), ("policy_export", "url"))
        return self.policyExport is not None or any(part(self.config, section).get(name) for section, name in places)

    def settings(self) -> dict[str, Any]:
        """The run's settings, as --config takes them. Raises UserError for a contradiction."""
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
        learner = tree.get("learner", {})
        if self.learner.gpu and isinstance(learner, dict):
            if learner.get("device") == "cpu":
                raise UserError(f"spec.config.learner.device is cpu, but spec.learner.gpu is {self.learner.gpu}")
            # Without a usable GPU, the learner then ends with a line that says so. With auto it would use the CPU.
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

    @classmethod
    def of(cls, manifest: Object) -> "TrainingRun":
        """The run of an object from the API server. Raises UserError for anything that cannot become a run."""
        metadata = part(manifest, "metadata")
        name = check_run_name(str(metadata.get("name", "")))
        tree = manifest.get("spec")
        if not isinstance(tree, dict):
            raise UserError("spec: expected a section of settings, such as `spec: {environment: CartPole-v1}`")
        spec = settings.build(TrainingRunSpec, tree, section="spec")
        _check(spec)
        return cls(name, str(metadata.get("namespace") or "default"), str(metadata.get("uid", "")), spec)


def _check(spec: TrainingRunSpec) -> None:
    # This section of a file for --config is not part of the run's configuration.
    tree = {key: value for key, value in spec.settings().items() if key != "process"}
    try:
        config = settings.build(RunConfig, tree)
    except UserError as error:
        raise UserError(f"spec.config: {error}") from None
    if config.learner.device.startswith("cuda") and not spec.learner.gpu:
        raise UserError(f"spec.config.learner.device is {config.learner.device}, but spec.learner.gpu is 0")
    for name in ("learner", "quantizer"):
        if not parse_quantity(getattr(spec, name).storage):
            raise UserError(f"spec.{name}.storage is 0")
