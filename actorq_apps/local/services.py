"""Lists the processes of a run on one machine, with their commands."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum

from actorq.config.run_config import RunConfig
from actorq.domain.environments import is_external
from actorq.rundirectory import RunDirectory
from actorq.transport.addresses import split_address
from actorq_apps.meter.node_meter import RunStart

HOST = "127.0.0.1"


class Kind(Enum):
    """The kind of a process."""

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
    Kind.METER: "actorq_apps.meter",
}


@dataclass(frozen=True)
class Service:
    """A process to run: its name in the run, its first command, and its command after a restart."""

    name: str
    kind: Kind
    command: tuple[str, ...]
    restart_command: tuple[str, ...]


def module_command(kind: Kind, *arguments: str, module: str = "") -> tuple[str, ...]:
    """The command that starts a service with this interpreter. `module` replaces the service's own module."""
    return (sys.executable, "-m", module or MODULES[kind], *arguments)


def is_importable(module: str) -> bool:
    """Whether a service's interpreter can find a module. Unlike this process, its path includes the current folder."""
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
    acts: bool = True,
) -> tuple[Service, ...]:
    """All processes of a run in start order: the process with the slowest start comes first.

    actor_module, begun, acts: see `run_locally`. The module never replaces the evaluator.
    """

    def service(name: str, kind: Kind, *arguments: str) -> Service:
        command = module_command(kind, *arguments, "--lifeline", module=actor_module if kind is Kind.ACTOR else "")
        return Service(name, kind, command, command)

    def life(name: str, listen: str = f"{HOST}:0") -> tuple[str, ...]:
        return ("--listen", listen, "--name", name, "--announce", str(run.announcement(name)))

    given = ("--config", str(run.config))
    peers = ("--learner", learner, "--quantizer", quantizer)
    state = ("--run-directory", str(run.root), "--quantizer", quantizer)
    first = service("learner", Kind.LEARNER, *(*given, *state, *life("learner", learner)))
    resumed = (*first.command, "--resume")
    services = [
        replace(first, command=resumed if resume else first.command, restart_command=resumed),
        service("quantizer", Kind.QUANTIZER, *(*given, "--store", str(run.policies), *life("quantizer", quantizer))),
    ]
    external = is_external(config.environment)
    # An offline run learns from a data set. Its evaluator runs as in other runs.
    for index in range(config.actors if acts and not config.offline else 0):
        name = f"actor-{index}"
        # Simulators must know the addresses of their actors.
        own = ("--external", *life(name, external_address(config, index))) if external else life(name)
        services.append(service(name, Kind.ACTOR, *(*given, *peers, "--role", "actor", *own)))
    if acts and not external:
        role = ("--role", "evaluator", *life("evaluator"))
        services.append(service("evaluator", Kind.EVALUATOR, *(*given, *peers, *role)))
    if config.energy.enabled:
        meter = service("meter", Kind.METER, "--learner", learner, *given)
        # A restarted meter has no data about the time before its start, so only the first meter counts from the run's
        # start.
        since = ("--run-started", repr(begun.at), "--busy-at-start", repr(begun.busy_cpu_seconds)) if begun else ()
        services.append(replace(meter, command=meter.command + since))
    return tuple(services)


def external_address(config: RunConfig, index: int) -> str:
    """The address at which an actor serves simulators. Each further actor has the next port."""
    _, port = split_address("external.listen", config.external.listen, lowest_port=1)
    return f"{config.external.listen.rpartition(':')[0]}:{port + index}"


@contextmanager
def reserved_addresses(count: int) -> Iterator[tuple[str, ...]]:
    """Addresses with free ports, known before the processes that use them start.

    On Linux, a process may listen on a port that another has bound, if both set SO_REUSEADDR, as gRPC does. This
    function holds the ports until the end, so no other program gets them, even while a service restarts. Other
    systems do not allow this, so the ports are released at once. If another program uses one, the launcher tries other
    ports.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for held in sockets:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((HOST, 0))
        addresses = tuple(f"{HOST}:{held.getsockname()[1]}" for held in sockets)
        if sys.platform != "linux":
            stack.close()
        yield addresses
