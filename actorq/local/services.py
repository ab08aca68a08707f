"""Which processes a run on one machine has, and the command of each."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum

from actorq.config.run_config import RunConfig
from actorq.rundirectory import RunDirectory
from actorq.telemetry.energy import RunStart

HOST = "127.0.0.1"


class Kind(Enum):
    """What a process is for."""

    LEARNER = "learner"
    QUANTIZER = "quantizer"
    ACTOR = "actor"
    EVALUATOR = "evaluator"
    METER = "meter"


MODULES: Mapping[Kind, str] = {
    Kind.LEARNER: "learner_service",
    Kind.QUANTIZER: "quantizer_service",
    Kind.ACTOR: "actor_service",
    Kind.EVALUATOR: "actor_service",
    Kind.METER: "actorq.telemetry.energy",
}


@dataclass(frozen=True)
class Service:
    """A process to run: its name in the run, its command, and the command after its first life."""

    name: str
    kind: Kind
    command: tuple[str, ...]
    restart_command: tuple[str, ...]


def module_command(kind: Kind, *arguments: str, module: str = "") -> tuple[str, ...]:
    """The command that starts a service with this interpreter; `module` in place of the service's own."""
    return (sys.executable, "-m", module or MODULES[kind], *arguments)


def is_importable(module: str) -> bool:
    """Whether a service's interpreter finds a module; unlike this process, it has the current folder in its path."""
    script = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def services_of_run(
    run: RunDirectory,
    config: RunConfig,
    learner: str,
    quantizer: str,
    resume: bool,
    actor_module: str = "",
    begun: RunStart | None = None,
) -> tuple[Service, ...]:
    """Every process of a run, in the order in which to start them: first what takes longest to come up.

    actor_module: what runs as the actors instead of the actor service; the evaluator is always that.
    begun: from when on the run's energy counts; from the meter's start when None.
    """

    def service(name: str, kind: Kind, *arguments: str, restarted_with: tuple[str, ...] = ()) -> Service:
        command = module_command(kind, *arguments, "--lifeline", module=actor_module if kind is Kind.ACTOR else "")
        return Service(name, kind, command, command + restarted_with)

    def life(name: str, listen: str = f"{HOST}:0") -> tuple[str, ...]:
        return ("--listen", listen, "--name", name, "--announce", str(run.announcement(name)))

    given = ("--config", str(run.config))
    peers = ("--learner", learner, "--quantizer", quantizer)
    state = ("--run-directory", str(run.root), "--quantizer", quantizer)
    resumed = ("--resume",)
    services = [
        service(
            "learner",
            Kind.LEARNER,
            *(*given, *state, *life("learner", learner), *(resumed if resume else ())),
            restarted_with=() if resume else resumed,
        ),
        service("quantizer", Kind.QUANTIZER, *(*given, "--store", str(run.policies), *life("quantizer", quantizer))),
    ]
    for name in (f"actor-{index}" for index in range(config.actors)):
        services.append(service(name, Kind.ACTOR, *(*given, *peers, "--role", "actor", *life(name))))
    services.append(service("evaluator", Kind.EVALUATOR, *(*given, *peers, "--role", "evaluator", *life("evaluator"))))
    if config.energy.enabled:
        meter = service("meter", Kind.METER, "--learner", learner, *given)
        # What a meter has not seen after its own death is nobody's: only the first life counts from the start.
        since = ("--run-started", repr(begun.at), "--busy-at-start", repr(begun.busy_cpu_seconds)) if begun else ()
        services.append(replace(meter, command=meter.command + since))
    return tuple(services)


@contextmanager
def reserved_addresses(count: int) -> Iterator[tuple[str, ...]]:
    """Addresses with free ports, known before the processes that will serve there are up.

    Linux lets a process listen where another has bound but does not listen, if both set SO_REUSEADDR, as gRPC does.
    So the ports are held until the end: no one else is given them, not even while a service restarts. Elsewhere they
    are let go at once, and another program may be quicker; then the service cannot listen, and the launcher tries
    other ports.
    """
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((HOST, 0))
        addresses = tuple(f"{HOST}:{held.getsockname()[1]}" for held in sockets)
        if sys.platform != "linux":
            for held in sockets:
                held.close()
        yield addresses
    finally:
        for held in sockets:
            held.close()
