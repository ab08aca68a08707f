"""`actorq serve`: serves a trained policy to simulators, without a learner."""

import asyncio
import hashlib
import logging
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import grpc
import numpy as np
from prometheus_client import Metric
from pydantic import Field

from actor_service.counts import ActorCounts
from actor_service.external.acting.evaluation import MarkedEpisodes
from actor_service.external.acting.exploration import row_exploration
from actor_service.external.acting.loop import SimulatorActing
from actor_service.external.acting.pace import PolicyPace
from actor_service.external.acting.segments import SegmentForm
from actor_service.external.acting.sizes import SizedLoader
from actor_service.external.assembly import add_service
from actor_service.external.explorer import WakingSlot
from actor_service.external.streams.door import Door, Host
from actor_service.metrics import server_metrics
from actorq.arithmetic import arithmetic
from actorq.config.parser import OneLineParser
from actorq.config.run_config import RunConfig
from actorq.config.schemes import VersionChoice
from actorq.config.settings import DefaultText, Settings
from actorq.domain.policy import FidelityReport, LayerReport, Policy, PolicyDescriptor
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Exploration
from actorq.errors import ActorQError, InvalidInputError, UnavailableError, UserError
from actorq.inference.loading import read_exported
from actorq.inference.runpolicies import RunPolicies
from actorq.process import EXIT_OK, ProcessSettings, Service, Sources, argument_parser, run_process
from actorq.rundirectory import RunDirectory
from actorq.start import run_command

_DESCRIPTION = """Serve a policy to simulators and other programs by ExternalEnvironmentService.Play: greedy actions in
batches over all streams, as in training, without a learner. PATH is an ONNX file of actorq export, or the folder of a
run. In a run's folder, the server follows newer versions unless --version is a number. Exit codes: 0 after SIGTERM, 2
for wrong input, 1 for other errors."""
_READS = (
    *("scheme", "telemetry.log_format", "transport"),
    *("external.batch_wait_ms", "external.timeout_s", "external.max_streams", "external.max_environments"),
)
_log = logging.getLogger(__name__)


class ServeSettings(Settings):
    """The version of a run's policy."""

    version: Annotated[VersionChoice | None, DefaultText("the best, or the newest if no version is evaluated")] = Field(
        None, description="version of a run's policy: best, newest or a number"
    )
    follow_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        2.0, description="seconds between two looks for a newer version in a run's folder"
    )


class PolicySource(Protocol):
    """Where the policy comes from. spec: of the environment. changes: whether a newer version may come."""

    spec: EnvironmentSpec
    changes: bool

    def read(self) -> Policy:
        """The policy now. Raises UserError when there is none."""
        ...


class ExportedFile:
    """An ONNX file of `actorq export`."""

    changes = False

    def __init__(self, path: Path) -> None:
        """Raises UserError for a missing or damaged file."""
        model, description = read_exported(path)
        self.spec = _of_one_agent(EnvironmentSpec.from_json(description["environment"]))
        float_layers = (LayerReport("policy", "float32", "exported"),)
        layers = float_layers if description.get("effective_scheme") == "fp32" else ()
        self._policy = Policy(
            PolicyDescriptor(
                run_id=str(description.get("run_id", "")),
                version=description["version"],
                learner_step=int(description.get("updates", 0)),
                scheme=description["scheme"],
                sha256=hashlib.sha256(model).digest(),
                size_bytes=len(model),
                fp32_size_bytes=len(model),
                snapshot_at=0.0,
                fidelity=FidelityReport(0, 0.0, 0.0, 0.0, 0.0, None, layers),
            ),
            model,
        )

    def read(self) -> Policy:
        """The policy in the file."""
        return self._policy


class RunFolder:
    """The policies in a run's folder, during the run or after it. scheme: "" for the scheme of the run."""

    def __init__(self, path: Path, version: str, scheme: str) -> None:
        """Raises UserError for a folder without policies."""
        self._run, self._version, self._scheme = RunDirectory(path), version, scheme
        self.changes = not version.isdecimal()
        RunPolicies(self._run)
        self.spec = _of_one_agent(self._run.read_environment().for_policy)

    def read(self) -> Policy:
        """The chosen version. Raises UserError when it is not stored in the scheme."""
        policies = RunPolicies(self._run)
        found = policies.find(self._version)
        return policies.stored(found, self._scheme or policies.scheme_of(found), arithmetic().weight_encoding)


class PolicyServer(Service):
    """Answers simulators with the greedy actions of one policy at a time."""

    def __init__(self, config: RunConfig, source: PolicySource, follow_s: float) -> None:
        """Raises UserError when the policy cannot be read or run."""
        self._source, self._follow_s = source, follow_s
        self._door, self._counts = Door(config.external), ActorCounts()
        self._loader, self._slot = SizedLoader(), WakingSlot(self._counts, self._door.wake)
        self._stop, self._ended = threading.Event(), asyncio.Event()
        self._fault: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        policy = source.read()
        self._state_size = self._load(policy)
        self._door.admit(
            Host(
                source.spec.environment_id,
                policy.descriptor.run_id,
                source.spec.environment_arguments,
                spec=source.spec,
                explores=False,
            )
        )

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """Add the service for simulators."""
        return (add_service(self._door, server),)

    async def run(self, address: str) -> int:
        """Serve until the process is drained."""
        self._loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._act, name="acting", daemon=True)
        thread.start()
        follower = asyncio.create_task(self._follow())
        await self._ended.wait()
        follower.cancel()
        if self._fault is not None:
            raise self._fault
        return EXIT_OK

    def begin_drain(self) -> None:
        """End all streams."""
        self._stop.set()
        self._door.end(UnavailableError("the server ends: connect again"))

    def metrics(self) -> Iterable[Metric]:
        """The metrics of the policy and of the streams."""
        acting = self._slot.peek()
        return server_metrics(self._counts, self._door, acting.descriptor.version if acting else 0)

    def _load(self, policy: Policy) -> int:
        """Make this the newest policy. Returns the size of its state."""
        try:
            loaded = self._loader(policy, self._source.spec, 1)
        except InvalidInputError as error:
            raise UserError(str(error)) from error
        self._slot.put(loaded)
        _log.info("serving version %d in %s", policy.descriptor.version, policy.descriptor.effective_scheme)
        return loaded.state_size

    def _act(self) -> None:
        try:
            spec = self._source.spec
            form = SegmentForm(spec, (), self._state_size, 1, 2**20, 1)
            still = Exploration((0.0,), (0.0,))
            explore = row_exploration(spec, still, np.random.default_rng(0), ())
            pace, marked = PolicyPace(0, 1, 0.0), MarkedEpisodes()
            SimulatorActing(self._door, self._slot, form, explore, marked, pace, None, self._counts).run(self._stop)
        except BaseException as error:
            self._fault = error
        finally:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._ended.set)

    async def _follow(self) -> None:
        """Look for newer versions."""
        while self._source.changes:
            await asyncio.sleep(self._follow_s)
            acting = self._slot.peek()
            try:
                policy = await asyncio.to_thread(self._source.read)
                if acting is None or policy.descriptor.version != acting.descriptor.version:
                    await asyncio.to_thread(self._load, policy)
            except ActorQError as error:
                # The run may be writing, or its quantizer may have just removed the version.
                _log.warning("the acting policy stays: %s", error)


def _of_one_agent(spec: EnvironmentSpec) -> EnvironmentSpec:
    """The environment of one of the agents that share a policy. A stream may have any number of them."""
    return replace(spec, agents=())


def command() -> int:
    """Serve the policy that the command line names."""
    return run_command(lambda: run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Serve a policy until SIGTERM. Returns the exit code."""
    models = (RunConfig, ProcessSettings, ServeSettings)
    namespace = parser_of(models).parse_args(arguments)
    sources = Sources.read(models, namespace)
    config, process, serve = (sources.resolve(model) for model in models)
    assert isinstance(config, RunConfig)
    assert isinstance(process, ProcessSettings)
    assert isinstance(serve, ServeSettings)
    source = _source(namespace.path, serve, sources.given[RunConfig])
    make = partial(PolicyServer, config, source, serve.follow_s)
    return run_process(make, process, process.name or "server", config, "actor")


def parser_of(models: Sequence[type[Settings]]) -> OneLineParser:
    """The parser of the command line, with the flags of `models`."""
    parser = argument_parser("actorq serve", _DESCRIPTION, models, _READS)
    parser.usage = "actorq serve PATH [flags]"
    parser.add_argument("path", type=Path, metavar="PATH", help="file of actorq export, or folder of a run")
    return parser


def _source(path: Path, serve: ServeSettings, given: dict[str, Any]) -> PolicySource:
    if path.is_dir():
        return RunFolder(path, serve.version or "", str(given.get("scheme", "")))
    if serve.version or "scheme" in given:
        raise UserError(f"{path}: a file has one version and scheme; give the folder of a run to choose another")
    return ExportedFile(path)
