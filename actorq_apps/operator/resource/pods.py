"""A TrainingRun's settings for the pods of a role, as in Kubernetes, but without settings that open the node."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, JsonValue, model_validator

from actorq.config.messages.expected import Expected
from actorq.config.settings import Settings
from actorq_apps.operator.resource.amounts import Name, Quantity, Size, Value

# Kubernetes allows this many bytes for all annotations together, and for an environment variable.
_LONG = 32_768
# Labels that the operator and services use to find pods.
_OWN = ("app.kubernetes.io/", "actorq.dev/")
Text = Annotated[str, Field(max_length=_LONG)]
Variable = Annotated[
    str,
    Field(min_length=1, max_length=256, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$"),
    Expected("a name of letters, digits, dots, hyphens and underscores, without a digit in front"),
]
Path = Annotated[
    str,
    Field(min_length=1, max_length=1024, pattern=r"^[^:]+$"),
    Expected("a path of 1 to 1,024 characters without a colon"),
]
DnsLabel = Annotated[
    str,
    Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
    Expected("at most 63 lower-case letters, digits and inner hyphens"),
]


class _OneOf(Settings):
    """Settings of which exactly one must be given, besides a name."""

    _what: ClassVar[str]

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [name for name in type(self).model_fields if name != "name"]
        if (count := sum(getattr(self, name) is not None for name in names)) != 1:
            what = f"{self._what} {getattr(self, 'name', '')}".rstrip()
            raise ValueError(f"{what}: expected one of {', '.join(names)}, got {count}")
        return self


class Named(Settings):
    """An object of the same namespace."""

    name: Name = Field(description="name of the object")


class KeyReference(Named):
    """A key of a ConfigMap or Secret of the same namespace."""

    key: Annotated[str, Field(min_length=1, max_length=253)] = Field(description="key in it")


class FieldReference(Settings):
    """A field of the pod itself."""

    fieldPath: Annotated[str, Field(min_length=1, max_length=256)] = Field(description="such as spec.nodeName")


class ValueSource(_OneOf):
    """The source of an environment variable's value: exactly one of these."""

    _what = "valueFrom"
    secretKeyRef: KeyReference | None = Field(None, description="a Secret with the label of credentials")
    configMapKeyRef: KeyReference | None = Field(None, description="a ConfigMap")
    fieldRef: FieldReference | None = Field(None, description="the pod")


class EnvironmentVariable(_OneOf):
    """An environment variable."""

    _what = "env"
    name: Variable = Field(description="name of the variable")
    value: Text | None = Field(None, description="value")
    valueFrom: ValueSource | None = Field(None, description="source of the value")


class EnvironmentSource(_OneOf):
    """All keys of one object as environment variables."""

    _what = "envFrom"
    secretRef: Named | None = Field(None, description="a Secret with the label of credentials")
    configMapRef: Named | None = Field(None, description="a ConfigMap")


class ClaimVolume(Settings):
    """A PersistentVolumeClaim."""

    claimName: Name = Field(description="name of the claim")
    readOnly: bool = Field(False, description="mount it read-only")


class EmptyVolume(Settings):
    """A folder that lives as long as the pod."""

    medium: Literal["Memory"] | None = Field(None, description="Memory for a folder in memory")
    sizeLimit: Size | None = Field(None, description="most bytes")


class Volume(_OneOf):
    """A volume: exactly one of these. Volumes of the node are not allowed."""

    _what = "volume"
    name: DnsLabel = Field(description="name of the volume")
    persistentVolumeClaim: ClaimVolume | None = Field(None, description="a claim")
    configMap: Named | None = Field(None, description="a ConfigMap")
    emptyDir: EmptyVolume | None = Field(None, description="an empty folder")


class Mount(Settings):
    """The mount point of a volume."""

    name: Annotated[str, Field(min_length=1, max_length=63)] = Field(description="name of the volume")
    mountPath: Path = Field(description="folder in the container")
    subPath: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="folder in the volume"
    )
    readOnly: bool = Field(False, description="mount it read-only")


class Resources(Settings):
    """Requests and limits of a container."""

    requests: dict[str, Quantity] = Field({}, max_length=32, description="requests by name of the resource")
    limits: dict[str, Quantity] = Field({}, max_length=32, description="limits by name of the resource")


class PodSettings(Settings):
    """Changes of the pods of a role."""

    labels: dict[str, Value] = Field({}, max_length=64, description="further labels")
    annotations: dict[str, Text] = Field({}, max_length=64, description="further annotations")
    env: tuple[EnvironmentVariable, ...] = Field((), max_length=64, description="environment variables")
    envFrom: tuple[EnvironmentSource, ...] = Field((), max_length=16, description="objects with environment variables")
    volumes: tuple[Volume, ...] = Field((), max_length=16, description="further volumes, such as data")
    volumeMounts: tuple[Mount, ...] = Field((), max_length=16, description="mount points of the volumes")
    affinity: dict[str, JsonValue] = Field({}, max_length=3, description="affinity, as in Kubernetes")
    topologySpreadConstraints: tuple[Annotated[dict[str, JsonValue], Field(max_length=16)], ...] = Field(
        (), max_length=8, description="spread over nodes or zones, as in Kubernetes"
    )
    serviceAccountName: Name | None = Field(None, description="service account that replaces the run's own")

    @model_validator(mode="after")
    def _check(self) -> "PodSettings":
        known = {volume.name for volume in self.volumes}
        for mount in self.volumeMounts:
            if mount.name not in known:
                raise ValueError(f"volumeMounts: {mount.name} is none of the volumes here")
        for key in self.labels:
            if key.startswith(_OWN):
                raise ValueError(f"labels: {key} is the operator's own")
        return self

    @property
    def secrets(self) -> list[str]:
        """The names of the Secrets that these pods read."""
        return [*secrets_of(self.env), *(each.secretRef.name for each in self.envFrom if each.secretRef)]


def secrets_of(variables: Iterable[EnvironmentVariable]) -> list[str]:
    """The names of the Secrets that give environment variables their values."""
    found = [each.valueFrom.secretKeyRef for each in variables if each.valueFrom and each.valueFrom.secretKeyRef]
    return [each.name for each in found]
