"""What the subcommands' arguments have in common."""

import os

from pydantic import Field

from actorq import settings
from actorq.config import RunConfig
from actorq.settings import Settings


class LearnerAddress(Settings):
    """Which run to ask."""

    learner: str | None = Field(None, description="HOST:PORT of the learner; that of the newest run here when none")


def check_environment(*models: type[Settings]) -> None:
    """Raise UserError for an ACTORQ_ variable that is a setting of no command; a shell may serve several commands."""
    settings.check_environment((RunConfig, LearnerAddress, *models), os.environ)
