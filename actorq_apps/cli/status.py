"""`actorq status`: prints the status of a run, as reported by its learner."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field
from rich.console import Console

from actorq.client import LearnerClient
from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.config.sections import CERTIFICATES_HELP
from actorq.config.settings import DefaultText, Settings
from actorq.errors import UnavailableError, UserError
from actorq.process import Sources, argument_parser
from actorq.rundirectory import RunDirectory, newest_run
from actorq.transport.options import Certificates
from actorq_apps.cli.display.display import display_of
from actorq_apps.cli.display.output import with_queued_output
from actorq_apps.cli.display.panel import render
from actorq_apps.cli.display.report import print_result
from actorq_apps.cli.display.view import RunView
from actorq_apps.local.watching import StatusWatch

_DESCRIPTION = """Show the status of the newest active run under runs/, of the run in RUN_DIR, or of the run of
--learner. A run in RUN_DIR that has ended shows its result."""


class LearnerSettings(Settings):
    """The address of the learner."""

    learner: Annotated[str | None, DefaultText("that of the newest run here")] = Field(
        None, description="HOST:PORT of the learner"
    )
    certificates: Annotated[Path | None, DefaultText("those of the newest run, else none")] = Field(
        None, description=CERTIFICATES_HELP
    )


class StatusSettings(LearnerSettings):
    """The run, and how to show its status."""

    watch: bool = Field(False, description="show the status until the run is over or Ctrl-C")


@dataclass(frozen=True)
class Asked:
    """A learner's address, and the view before the learner answers. A local run also has a folder and certificates."""

    address: str
    view: RunView
    run: RunDirectory | None = None
    certificates: Path | None = None


def run(arguments: Sequence[str]) -> int:
    """Show the status once, or until the run is over."""
    parser = argument_parser("actorq status", _DESCRIPTION, (StatusSettings,))
    parser.usage = "actorq status [RUN_DIR] [flags]"
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN_DIR", help="folder of the run")
    namespace = parser.parse_args(arguments)
    how = Sources.read((StatusSettings,), namespace).resolve(StatusSettings)
    directory = RunDirectory(namespace.run) if namespace.run else None
    if directory is not None and how.learner:
        raise UserError("expected RUN_DIR or --learner, got both; give one of them")
    if directory is not None and not directory.is_in_use:
        directory.config_tree()
        print_result(directory, is_new=directory.summary.exists())
        return 0
    found = asked(how.learner, directory)
    certificates = Certificates.of(how.certificates or found.certificates, "monitor")
    try:
        with asking("--learner", certificates), LearnerClient(found.address, certificates) as client:
            status = client.status()
        found.view.update_status(status)
        elapsed_s = status.elapsed_s
    except UserError as error:
        # A starting run has processes, but its learner does not answer yet. A learner that refuses certificates does
        # answer.
        if found.run is None or not found.run.is_in_use or "TLS" in str(error) or "certificate" in str(error):
            raise
        elapsed_s = max(0.0, time.time() - found.run.config.stat().st_mtime)
    if not how.watch:
        console = Console(highlight=False)
        console.print(render(found.view, elapsed_s, console.width, console.height if console.is_terminal else None))
        return 0
    return with_queued_output(lambda: _watch(found, certificates))


def _watch(found: Asked, certificates: Certificates | None) -> int:
    with (
        display_of(found.view) as display,
        closing(StatusWatch(found.address, certificates, display.status, period_s=1.0)) as watch,
    ):
        watch.wait()
    return 0


@contextmanager
def asking(flag: str, certificates: Certificates | None) -> Iterator[None]:
    """Add a remedy to the error of a service that does not answer. `flag` is the flag with its address."""
    try:
        yield
    except UserError as error:
        # The client does not know which flag set its address.
        raise UserError(str(error).replace("address:", f"{flag}:", 1)) from None
    except UnavailableError as error:
        hint = f": start it, or name one that runs with {flag} HOST:PORT" if "Connection refused" in str(error) else ""
        if "TLS handshake failed" in str(error) or (certificates is None and "it closed the connection" in str(error)):
            hint = ": give the certificates of its run with --certificates DIR"
        raise UserError(f"{error}{hint}") from None


def asked(learner: str | None, directory: RunDirectory | None = None) -> Asked:
    """The learner at this address, the learner of the run in this folder, or the learner of the newest active run here.

    Raises UserError when there is no such learner.
    """
    if learner:
        return Asked(learner, RunView(f"learner at {learner}", "", ""))
    run = directory or newest_run()
    config = settings.build(RunConfig, run.config_tree())
    title = str(run.root) if directory else f"newest run: {run.root}"
    view = RunView.of(title, config)
    return Asked(run.read_addresses().learner, view, run, config.transport.certificates)
