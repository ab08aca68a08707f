"""`actorq reset-environment`: makes a run forget its environment's spec, if its first actor reported a wrong spec."""

from collections.abc import Sequence

from pydantic import Field

from actorq.client import LearnerClient
from actorq.process import parse_arguments
from actorq.transport.options import Certificates
from actorq_apps.cli.status import LearnerSettings, asked, asking

_DESCRIPTION = """Make a run forget its environment's spec. The run then uses the next actor's spec. First stop the
actors with the wrong environment. The run's earlier files are moved aside, never deleted."""


class ResetSettings(LearnerSettings):
    """The run to reset, and whether to reset a run that has made progress."""

    discard: bool = Field(False, description="also reset a run that has made progress, and start it from the beginning")


def run(arguments: Sequence[str]) -> int:
    """Reset the run and print the folder of its earlier files."""
    (how,) = parse_arguments("actorq reset-environment", _DESCRIPTION, (ResetSettings,), arguments)
    assert isinstance(how, ResetSettings)
    found = asked(how.learner)
    certificates = Certificates.of(how.certificates or found.certificates, "operator")
    with asking("--learner", certificates), LearnerClient(found.address, certificates) as client:
        reset = client.reset_environment(how.discard)
    spec = reset.spec
    print(f"forgotten: {spec.environment_id}, observations {list(spec.observations.shape)}" if spec else "no spec yet")
    if reset.set_aside:
        print(f"earlier files: {reset.set_aside}, on the learner's disk")
    print("the run will use the spec of the next actor")
    return 0
