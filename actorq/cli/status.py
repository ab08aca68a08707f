"""`actorq status`: how a run goes, asked of its learner."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field
from rich.console import Console

from actorq.cli.display import LiveDisplay, PlainDisplay, is_live
from actorq.cli.panel import render
from actorq.cli.view import RunView
from actorq.client import LearnerClient
from actorq.errors import UnavailableError, UserError
from actorq.local.watching import StatusWatch
from actorq.process import parse_arguments
from actorq.rundirectory import newest_run
from actorq.settings import DefaultText, Settings
from actorq.status import RunStatus
from actorq.transport.options import Certificates


class StatusSettings(Settings):
    """Which run to ask, and how."""

    learner: Annotated[str | None, DefaultText("that of the newest run here")] = Field(
        None, description="HOST:PORT of the learner"
    )
    watch: bool = Field(False, description="go on showing until the run is over or Ctrl-C")
    certificates: Path | None = Field(
        None, description="folder with ca.crt, tls.crt and tls.key, when the run uses mutual TLS"
    )


def run(arguments: Sequence[str]) -> int:
    """Show a run once, or until it is over."""
    (how,) = parse_arguments("actorq status", "Show how a run goes.", (StatusSettings,), arguments)
    assert isinstance(how, StatusSettings)
    console = Console(highlight=False)
    address, title = (how.learner, f"learner at {how.learner}") if how.learner else _newest_run()
    certificates = Certificates.load(how.certificates) if how.certificates else None
    try:
        with LearnerClient(address, certificates) as client:
            status = client.status()
    except UnavailableError as error:
        raise UserError(f"{error}: start it, or give the address of one that runs with --learner HOST:PORT") from None
    if how.watch:
        _watch(address, certificates, _view(title, status), console)
    else:
        console.print(render(_view(title, status), status.elapsed_s, console.width, lambda _: None))
    return 0


def _view(title: str, status: RunStatus) -> RunView:
    view = RunView(title, status.environment_id, status.algorithm)
    view.take_status(status)
    return view


def _newest_run() -> tuple[str, str]:
    """Address of the newest run's learner, and what to call that run."""
    run = newest_run()
    return run.read_addresses().learner, f"newest run: {run.root}"


def _watch(address: str, certificates: Certificates | None, view: RunView, console: Console) -> None:
    display = LiveDisplay(view, console) if is_live(console) else PlainDisplay(view, console.file)
    with display:
        watch = StatusWatch(address, certificates, display.status, period_s=1.0)
        try:
            watch.wait()
        finally:
            watch.close()
