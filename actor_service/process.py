"""The actor's process: runs one explorer, evaluator or stand-alone evaluator, in a pod or for the launcher."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import grpc
from prometheus_client import Metric
from pydantic import Field

from actor_service.metrics import actor_metrics
from actor_service.policies.policy import LoadPolicy, load_policy
from actor_service.roles.actor_role import ActorRole, Host
from actor_service.roles.evaluator import Evaluator
from actor_service.roles.explorer import Explorer
from actor_service.roles.standalone import StandaloneEvaluator
from actor_service.servicer import ActorServicer
from actor_service.uploader import Uploader
from actorq.arithmetic import Arithmetic, arithmetic
from actorq.client import LearnerClient, QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.config.settings import Settings
from actorq.domain.environments import modules_of
from actorq.domain.status import Sampling
from actorq.errors import UserError
from actorq.process import EXIT_OK, ProcessSettings, Service, parse_arguments, run_process
from actorq.v1 import actor_pb2, actor_pb2_grpc

if TYPE_CHECKING:
    from actor_service.external.streams.door import Door

# The actor's own settings from the configuration. The learner sends the settings of the run.
_READS = (
    *("environment", "environment_args", "environment_wrappers", "environment_backend", "image_layout"),
    *("critic_leaves", "agents.identity", "agents.critic", "policies", "environments_per_actor", "scheme"),
    *("algorithm", "algorithm_args", "ppo.squash", "impala.squash"),
    *("actor.allow_modules", "actor.environment_timeout_s", "telemetry.log_format", "transport"),
    *("external.batch_wait_ms", "external.timeout_s", "external.max_streams", "external.max_environments"),
    *("external.evaluate", "external.evaluation_share"),
)


class ActorSettings(Settings):
    """The actor's role and the addresses of its services. The learner sends all other settings."""

    learner: str = Field("127.0.0.1:50051", description="HOST:PORT of the learner")
    quantizer: str = Field("127.0.0.1:50052", description="HOST:PORT of the quantizer")
    role: Literal["actor", "evaluator", "standalone"] = Field(
        "actor",
        description="explore (actor), evaluate for the learner (evaluator), or evaluate on request (standalone)",
    )
    external: bool = Field(
        False, description="serve simulators that connect to this actor, instead of environments of its own"
    )
    weight_encoding: Literal["auto", "signed", "unsigned"] = Field(
        "auto",
        description="encoding of int8 weights; auto: the fastest one that this processor computes exactly, "
        "measured at the start",
    )
    linger_s: float = Field(
        0.0,
        ge=0,
        le=86_400,
        description="seconds to stay alive after the end of the run, so that a cluster can remove the pods; "
        "SIGTERM ends the wait",
    )
    record: Path | None = Field(None, description="file for a video of each evaluation; only for role standalone")
    sampled: bool = Field(
        False, description="draw actions from the policy's distribution in evaluations; only for role standalone"
    )

    @property
    def certificate_role(self) -> str:
        """The role in this process's TLS certificate."""
        return "actor" if self.role == "actor" else "evaluator"


class ActorService(Service):
    """The gRPC service around one actor. load, uploader: see Host."""

    def __init__(
        self,
        config: RunConfig,
        settings: ActorSettings,
        name: str,
        node: str = "",
        load: LoadPolicy = load_policy,
        uploader: type[Uploader] = Uploader,
    ) -> None:
        if settings.external and settings.role != "actor":
            raise UserError(f"--external: expected --role actor, got {settings.role}")
        certificates = config.transport.certificates_of(settings.certificate_role)
        connect = partial(QuantizerClient, settings.quantizer, certificates)
        self._door: Door | None = None
        self._drain_s = config.transport.drain_s
        self._linger_s = settings.linger_s
        self._told_to_end = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._fault: BaseException | None = None
        self._learner: LearnerClient | None = None
        self._role: ActorRole
        host = Host(
            name,
            connect,
            self._end,
            node,
            config.environment_backend,
            config.actor.environment_timeout_s,
            partial(_arithmetic, settings.weight_encoding),
            load,
            uploader,
        )
        if settings.role == "standalone":
            sampling = _evaluation_sampling(config) if settings.sampled else ""
            self._role = StandaloneEvaluator(host, config, settings.record, sampling)
            return
        self._learner = LearnerClient(settings.learner, certificates)
        if settings.external:
            # Imported here, because most actors have environments of their own.
            from actor_service.external.assembly import simulator_explorer

            self._role = explorer = simulator_explorer(
                config, host, self._learner, settings.learner, settings.quantizer
            )
            self._door = explorer.door
            return
        # The user configures this environment on this machine and so trusts its module.
        allowed = {*config.actor.allow_modules, *modules_of(config.environment, config.environment_arguments)}
        kind = Explorer if settings.role == "actor" else Evaluator
        self._role = kind(host, self._learner, allowed)

    def register(self, server: grpc.aio.Server) -> Sequence[str]:
        """Add ActorService, and the service for simulators."""
        actor_pb2_grpc.add_ActorServiceServicer_to_server(ActorServicer(self._role, self._drain_s * 0.8), server)
        names = [actor_pb2.DESCRIPTOR.services_by_name["ActorService"].full_name]
        if self._door is not None:
            from actor_service.external.assembly import add_service

            names.append(add_service(self._door, server))
        return names

    async def run(self, address: str) -> int:
        """Act until the run is over or the actor is drained."""
        self._loop = asyncio.get_running_loop()
        self._role.start()
        await self._ended.wait()
        if self._learner is not None:
            self._learner.close()
        if self._fault is not None:
            raise self._fault
        if self._role.run_is_over:
            # Without this wait, Kubernetes would restart the container after its end.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._linger_s):
                    await self._told_to_end.wait()
        return EXIT_OK

    def begin_drain(self) -> None:
        """On SIGTERM: stop acting and send the queued segments."""
        self._told_to_end.set()
        self._role.drain(self._drain_s * 0.8)

    def lose_parent(self) -> None:
        """Drop the queued segments, because the run's learner ends too."""
        self._role.abandon()

    def metrics(self) -> Iterable[Metric]:
        """The actor's metrics."""
        return actor_metrics(self._role, self._door)

    def _end(self, fault: BaseException | None) -> None:
        assert self._loop is not None
        self._fault = self._fault or fault
        self._loop.call_soon_threadsafe(self._ended.set)


def _arithmetic(weight_encoding: str) -> Arithmetic:
    """The instructions that this processor computes exactly with the chosen encoding.

    Raises UserError if it computes none.
    """
    return arithmetic() if weight_encoding == "auto" else arithmetic().only(weight_encoding)


def _evaluation_sampling(config: RunConfig) -> Sampling:
    """How a run draws actions. An algorithm that is not built in may have the setting `squash` too."""
    return config.sampling or ("squashed" if config.algorithm_args.get("squash") else "clipped")


def run_actor(load: LoadPolicy = load_policy, uploader: type[Uploader] = Uploader) -> int:
    """Run the actor that the command line describes, and return the exit code. load, uploader: see Host."""
    config, process, settings = parse_arguments(
        "actorq actor",
        "Act in environments with the newest policy. The learner sends the other settings of the run.",
        [RunConfig, ProcessSettings, ActorSettings],
        reads=_READS,
    )
    assert isinstance(config, RunConfig)
    assert isinstance(process, ProcessSettings)
    assert isinstance(settings, ActorSettings)
    name = process.name or f"{socket.gethostname()}-{os.getpid()}"
    service = partial(ActorService, config, settings, name, process.node, load, uploader)
    return run_process(service, process, name, config, settings.certificate_role)
