"""A TrainingRun's simulator: a container in the pod of each actor."""

from pydantic import ConfigDict, Field, JsonValue, model_validator

from actorq.config.settings import Settings
from actorq_apps.operator.resource.amounts import RULES, Image
from actorq_apps.operator.resource.pods import DnsLabel, EnvironmentVariable, Mount, Resources, Text, secrets_of

# The container of an actor in the manifests.
_ACTOR = "actor"
_NAME_RULE: dict[str, JsonValue] = {
    "rule": f"self.name != '{_ACTOR}'",
    "message": f"spec.actors.external.name: {_ACTOR} is the name of the actor's own container",
}


class SimulatorSpec(Settings):
    """A simulator beside each actor, in the same pod. It connects to the address in the variable ACTOR_ADDRESS."""

    model_config = ConfigDict(json_schema_extra={RULES: [_NAME_RULE]})
    image: Image = Field(description="image of the simulator")
    name: DnsLabel = Field("simulator", description="name of the container")
    command: tuple[Text, ...] = Field((), max_length=64, description="program (default: of the image)")
    args: tuple[Text, ...] = Field((), max_length=256, description="arguments (default: of the image)")
    env: tuple[EnvironmentVariable, ...] = Field((), max_length=64, description="environment variables")
    resources: Resources = Field(Resources(), description="changes of the simulator's requests and limits")
    volumeMounts: tuple[Mount, ...] = Field(
        (), max_length=16, description="mount points of the volumes in actors.pod.volumes"
    )

    @model_validator(mode="after")
    def _check(self) -> "SimulatorSpec":
        if self.name == _ACTOR:
            raise ValueError(f"external.name: {_ACTOR} is the name of the actor's own container: take another one")
        return self

    @property
    def secrets(self) -> list[str]:
        """The names of the Secrets that the simulator reads."""
        return secrets_of(self.env)
