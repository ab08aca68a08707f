"""One `actorq train` as a child process, for commands that make many runs."""

import sys
from collections.abc import Callable
from pathlib import Path

from actorq.errors import ActorQError, UserError
from actorq.process import EXIT_BUDGET_ENDED, EXIT_OK, EXIT_USER_ERROR
from actorq.rundirectory import RunDirectory
from actorq_apps.local.child import Child, describe_exit
from actorq_apps.local.events import ChildExited
from actorq_apps.local.forkserver import ForkServers

# Seconds beyond `transport.drain_s` that a run may take to end.
DRAIN_MARGIN_S = 20.0


def start_run(
    name: str,
    run: RunDirectory,
    config: Path,
    log: Path,
    on_exit: Callable[[ChildExited], None],
    resume: bool = False,
    actor_module: str = "",
    inherited: tuple[int, ...] = (),
    servers: ForkServers | None = None,
) -> Child:
    """Start a run, or go on with it. It ends like after SIGTERM when this process ends.

    config: file with the settings. inherited: descriptors that all processes keep open. servers: of `run_server`.
    """
    command = [sys.executable, "-m", "actorq_apps.cli.main", "train", "--lifeline", "--run-directory", str(run.root)]
    command += ["--config", str(config), *(["--resume"] if resume else [])]
    command += ["--actor-module", actor_module] if actor_module else []
    return Child(name, command, log, on_exit, inherited, servers)


def failure_of(child: Child, code: int) -> ActorQError | None:
    """The reason why a run with this exit code is not over; None when it is solved, or when its budget ended."""
    if code in (EXIT_OK, EXIT_BUDGET_ENDED):
        return None
    kind = UserError if code == EXIT_USER_ERROR else ActorQError
    return kind(child.user_error() or describe_exit(code))
