"""Runs a service process: flags, address, signals, lifeline, exit code. Services implement `Service`."""

import argparse
import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import grpc
from prometheus_client import Metric
from pydantic import Field

from actorq.config import settings
from actorq.config.messages.help import described_run, fit_help
from actorq.config.parser import OneLineParser
from actorq.config.run_config import RunConfig
from actorq.config.sections import TransportConfig
from actorq.config.settings import DefaultText, Settings
from actorq.domain.status import RunState
from actorq.errors import ActorQError, UserError, foreign_cause
from actorq.lifeline import READY, await_parents_end
from actorq.statefiles.files import DISK_FULL, replace_file
from actorq.telemetry.logs import configure_logging
from actorq.telemetry.metrics import open_metrics
from actorq.transport.addresses import is_loopback, split_address
from actorq.transport.options import Certificates
from actorq.transport.server import Server

EXIT_OK, EXIT_FAILED, EXIT_USER_ERROR = 0, 1, 2
# Exit codes of a learner and of `actorq train`: the environment steps ran out before the target return was reached,
# or an operator stopped the run (StopRun).
EXIT_BUDGET_ENDED, EXIT_STOPPED = 3, 4
# Exit code of an actor with a hanging environment, and of a quantizer with a hanging worker.
EXIT_HUNG = 5
# Exit code of a learner that got SIGTERM before its run was over. The run is saved, and the next learner continues it.
# learner_service/__main__.py repeats this number, because it imports nothing before it handles the signal.
EXIT_INTERRUPTED = 6
EXIT_OF_STATE = {
    RunState.SOLVED: EXIT_OK,
    RunState.BUDGET_ENDED: EXIT_BUDGET_ENDED,
    RunState.STOPPED: EXIT_STOPPED,
    RunState.INTERRUPTED: EXIT_INTERRUPTED,
}
# Exit code of `actorq export` and `actorq quantize` when the fidelity gate refuses the scheme. They write nothing.
EXIT_REFUSED = 7

# All settings of all processes that are not part of the run's configuration. One environment or file (a ConfigMap) may
# hold settings of several processes, so each process accepts the others' settings. Services cannot import each other's
# models. A test compares this list with the models.
PROCESS_SETTINGS = (
    *("actor_module", "allow_modules", "announce", "busy_at_start", "certificates", "days", "discard", "episodes"),
    *("external", "follow_s"),
    *("insecure", "learner", "lifeline", "linger", "linger_s", "listen", "metrics", "name", "names", "namespace"),
    *("news", "node", "open_metrics", "parent_acts", "pod", "profile", "quantizer", "read_only", "record"),
    *("resume", "role", "run", "run_directory", "run_started", "sampled", "store", "upstream", "version", "watch"),
    "weight_encoding",
)

S = TypeVar("S", bound=Settings)

_log = logging.getLogger(__name__)


class MemberSettings(Settings):
    """Settings of one process of a run. They are not part of the run's configuration."""

    name: Annotated[str, DefaultText("chosen by the service")] = Field(
        "", max_length=128, description="name of this process in the run"
    )
    node: Annotated[str, DefaultText("the host name")] = Field(
        "", max_length=128, description="machine that this process runs on, under the name that its energy meter uses"
    )
    lifeline: bool = Field(False, description="end when standard input closes; the parent process holds its other end")


class ProcessSettings(MemberSettings):
    """Settings of a process that serves."""

    listen: str = Field("127.0.0.1:0", description="HOST:PORT to serve on; port 0 lets the system choose")
    insecure: bool = Field(False, description="listen beyond loopback without certificates")
    metrics: str = Field("", description="HOST:PORT to serve Prometheus metrics on over HTTP; empty: no metrics")
    open_metrics: bool = Field(False, description="serve the metrics beyond loopback, readable by everybody (no TLS)")
    announce: Path | None = Field(None, description="file that receives the address once the service is up")


class Service(ABC):
    """A service that `run_process` runs. The event loop may call `begin_drain` at any time after `register`."""

    @abstractmethod
    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """Add the servicers and return the full names of their services."""

    async def until_ready(self) -> None:  # noqa: B027 - most services are ready at once
        """Return once the service can answer calls. Until then, health reports NOT_SERVING for its services."""

    def alive(self) -> bool:
        """Whether the service makes progress. The event loop asks every second; the answer must be quick.

        When False, health reports NOT_SERVING for the process, and Kubernetes restarts it. The default suits a service
        that ends when it cannot continue.
        """
        return True

    @abstractmethod
    async def run(self, address: str) -> int:
        """Serve from `address` until the service is done or drained. Returns the exit code."""

    @abstractmethod
    def begin_drain(self) -> None:
        """Finish current work, then let `run` return. Called at most once."""

    def lose_parent(self) -> None:  # noqa: B027 - most drains do not wait for other services
        """Do not wait for other services in the drain. The parent process is gone, and they end with it.

        Called at most once, after `begin_drain`.
        """

    @abstractmethod
    def metrics(self) -> Iterable[Metric]:
        """Prometheus metrics of this service. The event loop calls it after `register`, so it must be quick."""


def parse_arguments(
    program: str,
    description: str,
    models: Sequence[type[Settings]],
    arguments: Sequence[str] | None = None,
    reads: Collection[str] | None = None,
    ignores: Collection[str] = (),
) -> tuple[Settings, ...]:
    """Resolve each of `models` from --config, the environment and flags. Raises UserError.

    The YAML file holds the run's configuration. It may hold the process's settings under `process`. For `reads` and
    `ignores` see `argument_parser`.
    """
    parser = argument_parser(program, description, models, reads, ignores)
    sources = Sources.read(models, parser.parse_args(arguments))
    return tuple(sources.resolve(model) for model in models)


def argument_parser(
    program: str,
    description: str,
    models: Sequence[type[Settings]],
    reads: Collection[str] | None = None,
    ignores: Collection[str] = (),
) -> OneLineParser:
    """A parser with --config and the flags of `models`.

    reads, ignores: the run's settings and sections that the process reads (None for all) and ignores. The help shows
    only the settings that it reads. The parser accepts all settings, because a run's processes may share arguments.
    """
    parser = OneLineParser(prog=program, usage=f"{program} [flags]", description=description)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML file with settings, those of this process under `process` (default: none)",
    )
    flags = {model: settings.add_flags(parser, model, "run" if model is RunConfig else "process") for model in models}
    if RunConfig in models:
        parser.before_help = partial(fit_help, parser, flags[RunConfig], reads=reads, ignores=ignores)
        parser.preferred = lambda namespace: f"--{described_run(namespace).algorithm}."
    return parser


@dataclass(frozen=True)
class Sources:
    """The settings that a file, the environment and flags give, by model. Later sources override earlier ones."""

    given: dict[type[Settings], dict[str, Any]]

    @classmethod
    def read(cls, models: Sequence[type[Settings]], namespace: argparse.Namespace) -> "Sources":
        """Read the file of --config for `models`. Raises UserError for unknown settings in file or environment."""
        tree = settings.from_file(namespace.config) if namespace.config else {}
        of_process = [model for model in models if model is not RunConfig]
        shared = settings.share(tree.pop("process", {}), "process", of_process, PROCESS_SETTINGS)
        settings.check_environment((RunConfig, *models), os.environ, PROCESS_SETTINGS)
        files: dict[type[Settings], dict[str, Any]] = {RunConfig: tree, **dict(zip(of_process, shared, strict=True))}
        given = {
            model: settings.merged(
                settings.in_full(model, files[model]),
                settings.from_environment(model, os.environ),
                settings.from_flags(model, namespace),
            )
            for model in models
        }
        return cls(given)

    def resolve(self, model: type[S], *earlier: dict[str, Any]) -> S:
        """The settings of `model`. They override the trees in `earlier`. Raises UserError."""
        return settings.build(model, *earlier, self.given[model])


def main(run: Callable[[], int]) -> int:
    """Run the body of a process. A user's error becomes one line on standard error, and exit code 2."""
    try:
        return run()
    except UserError as error:
        # Commands have no log.
        if (cause := foreign_cause(error)) and logging.getLogger().handlers:
            _log.error("the traceback of the error below", exc_info=cause)
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return EXIT_USER_ERROR
    except ActorQError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130


def leave(code: int) -> NoReturn:
    """End a process that has closed everything. Skips the interpreter's shutdown, which takes a second with torch."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def run_process(
    make: Callable[[], Service], process: ProcessSettings, name: str, config: RunConfig, member: str = ""
) -> int:
    """Serve until the service is done. The first SIGTERM or SIGINT drains it. The second ends the process at once.

    make: creates the service after the process has its address. A refused address therefore leaves no files behind.
    member: the role of the certificates to use.
    """
    configure_logging(name, member, config.transport.run, config.telemetry.log_format)
    certificates = config.transport.certificates_of(member)
    if certificates is not None:
        certificates.require_role(member, config.transport.run)
    elif not process.insecure and not _is_private("--listen", process.listen):
        raise UserError(
            f"--listen: other machines can reach {process.listen}, so give --transport.certificates DIR for mutual TLS "
            "(actorq certificates init DIR makes certificates), or --insecure to let anybody in"
        )
    if process.metrics and not (process.open_metrics or process.insecure or _is_private("--metrics", process.metrics)):
        raise UserError(
            f"--metrics: other machines can reach {process.metrics}, and metrics have no TLS: listen on 127.0.0.1, or "
            "give --open-metrics to let anybody read them"
        )
    return asyncio.run(_serve(make, process, certificates, config.transport))


def _is_private(flag: str, listen: str) -> bool:
    host, _ = split_address(flag, listen)
    return is_loopback(host)


async def _serve(
    make: Callable[[], Service], process: ProcessSettings, certificates: Certificates | None, transport: TransportConfig
) -> int:
    server = Server(process.listen, certificates, limits=transport.limits, access=transport.access)
    server.bind()
    service = make()
    names = service.register(server.grpc_server)
    loop = asyncio.get_running_loop()
    if process.metrics:
        # The server is never closed, so that the metrics stay available until the process ends.
        open_metrics(process.metrics, server.calls, service.metrics, service.alive, lambda: server.serving, loop)
    address = await server.start(names, ready=False, alive=service.alive)
    readiness = loop.create_task(_say_when_ready(service, server))
    _log.info("serving on %s", address)
    drain = _Drain(service, server, loop, transport.drain_s)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, drain.request, signal.Signals(number).name)
    try:
        if process.announce:
            _announce(process.announce, address)
        # The garbage collector runs often in a busy event loop. Frozen imported objects are skipped.
        gc.freeze()
        if process.lifeline:
            # Writing fails on a read-only lifeline, such as a pipe.
            with suppress(OSError):
                os.write(sys.stdin.fileno(), READY)
            threading.Thread(target=_hold_lifeline, args=(loop, drain), name="lifeline", daemon=True).start()
        return await service.run(address)
    finally:
        readiness.cancel()
        drain.end()
        await server.stop(grace_s=min(2.0, transport.drain_s))


async def _say_when_ready(service: Service, server: Server) -> None:
    await service.until_ready()
    await server.say_ready()


class _Drain:
    """Drains at the first signal or the parent's end. A second signal or a timeout ends the process."""

    def __init__(self, service: Service, server: Server, loop: asyncio.AbstractEventLoop, drain_s: float) -> None:
        self._service = service
        self._server = server
        self._loop = loop
        self._drain_s = drain_s
        self._draining = False
        self._signalled = False
        self._ended = False
        self._telling: asyncio.Task[None] | None = None

    def lose_parent(self) -> None:
        """The parent has ended, or has closed its end of standard input because the run is over."""
        if self._ended:
            return
        if self._draining:
            _log.info("the parent process is gone; draining continues")
        else:
            self._begin("the parent process is gone")
        self._service.lose_parent()

    def end(self) -> None:
        """The service has ended and the exit code is final: ignore signals until the process ends.

        When the event loop ends, it restores SIGTERM's default action, which kills the process. The loop also waits for
        all threads of its executor, and one of them may hang.
        """
        self._ended = True
        if not self._draining:
            self._set_deadline()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    def request(self, name: str) -> None:
        """A signal of this name arrived."""
        if self._ended:
            return
        if self._signalled:
            _log.error("%s while draining: ending at once", name)
            os._exit(EXIT_FAILED)
        self._signalled = True
        if self._draining:
            _log.info("%s: draining continues", name)
        else:
            self._begin(name)

    def _begin(self, reason: str) -> None:
        self._draining = True
        _log.info("%s: draining for at most %.0f s", reason, self._drain_s)
        self._set_deadline()
        self._telling = self._loop.create_task(self._server.say_not_serving())
        self._service.begin_drain()

    def _set_deadline(self) -> None:
        # A thread, because the event loop may hang.
        deadline = threading.Timer(self._drain_s, os._exit, args=(EXIT_FAILED,))
        deadline.daemon = True
        deadline.start()


def _hold_lifeline(loop: asyncio.AbstractEventLoop, drain: _Drain) -> None:
    await_parents_end()
    # A closed loop means that the process is about to end.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(drain.lose_parent)


def _announce(path: Path, address: str) -> None:
    try:
        replace_file(path, json.dumps({"address": address, "pid": os.getpid()}))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise UserError(f"--announce: cannot write {path}: {error.strerror}") from None
        _log.warning("the address is not announced, because %s cannot be written: %s", path, error.strerror)
