"""`actorq reset-environment`: have a run forget its environment's spec, when its first actor told a wrong one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from actorq.cli.status import asked
from actorq.client import LearnerClient
from actorq.config.sections import CERTIFICATES_HELP
from actorq.config.settings import DefaultText, Settings
from actorq.errors import UnavailableError, UserError
from actorq.process import parse_arguments
from actorq.transport.options import Certificates

_DESCRIPTION = """Have a run forget its environment's spec. The spec of the next actor then counts. Stop the actors with
the wrong environment first. The run's earlier files are moved aside, never deleted."""


class ResetSettings(Settings):
    """Which run to reset, and whether also one that has made progress."""

    learner: Annotated[str | None, DefaultText("that of the newest run here")] = Field(
        None, description="HOST:PORT of the learner"
    )
    discard: bool = Field(False, description="reset a run that has made progress, too, and begin it again")
    certificates: Annotated[Path | None, DefaultText("those of the newest run, else none")] = Field(
        None, description=CERTIFICATES_HELP
    )


def run(arguments: Sequence[str]) -> int:
    """Reset the run and tell where its files are."""
    (how,) = parse_arguments("actorq reset-environment", _DESCRIPTION, (ResetSettings,), arguments)
    assert isinstance(how, ResetSettings)
    found = asked(how.learner)
    try:
        with LearnerClient(
            found.address, Certificates.of(how.certificates or found.certificates, "operator")
        ) as client:
            reset = client.reset_environment(how.discard)
    except UnavailableError as error:
        raise UserError(f"{error}; name a learner that runs with --learner HOST:PORT") from None
    spec = reset.spec
    print(f"forgotten: {spec.environment_id}, observations {list(spec.observations.shape)}" if spec else "no spec yet")
    if reset.set_aside:
        print(f"earlier files: {reset.set_aside}, on the learner's disk")
    print("the spec of the next actor counts")
    return 0
