"""Puts the parts for simulators together: the door, the explorer, its evaluator, and the gRPC service."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import grpc

from actor_service.external.acting.evaluation import MarkedEpisodes
from actor_service.external.evaluator import SimulatorEvaluator
from actor_service.external.explorer import SimulatorExplorer
from actor_service.external.streams.door import Door
from actor_service.external.streams.servicer import ExternalServicer
from actor_service.roles.actor_role import Host
from actor_service.roles.participant import Participant
from actorq.client import LearnerClient, QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.processes import ProcessStats
from actorq.domain.spaces import EnvironmentSpec
from actorq.telemetry.process_stats import measure_process
from actorq.v1 import external_pb2, external_pb2_grpc


def simulator_explorer(
    config: RunConfig, host: Host, client: LearnerClient, learner: str, quantizer: str
) -> SimulatorExplorer:
    """The role of an actor for simulators. learner, quantizer: addresses, for its evaluator."""
    evaluator = partial(_evaluator, config, host, learner, quantizer) if config.external.evaluate else None
    return SimulatorExplorer(host, client, Door(config.external), evaluator)


def add_service(door: Door, server: grpc.aio.Server) -> str:
    """Add the service for simulators to a server. Returns its full name. Call it on the server's event loop."""
    external_pb2_grpc.add_ExternalEnvironmentServiceServicer_to_server(ExternalServicer(door), server)
    name: str = external_pb2.DESCRIPTOR.services_by_name["ExternalEnvironmentService"].full_name
    return name


def _evaluator(
    config: RunConfig,
    host: Host,
    learner: str,
    quantizer: str,
    spec: EnvironmentSpec,
    marked: MarkedEpisodes,
    on_end: Callable[[BaseException | None], None],
) -> Participant:
    """The evaluator of an actor for simulators. It is a member of the run with its own name and certificate."""
    certificates = config.transport.certificates_of("evaluator")
    client = LearnerClient(learner, certificates)

    def ended(fault: BaseException | None) -> None:
        client.close()
        on_end(fault)

    own = replace(
        host,
        name=f"{host.name}-evaluator",
        connect=partial(QuantizerClient, quantizer, certificates),
        on_end=ended,
        measure=_no_resources,
    )
    return SimulatorEvaluator(own, client, spec, marked, config.external.evaluation_share)


def _no_resources(name: str, role: str, node: str) -> ProcessStats:
    """The resources of an evaluator on threads of its actor. The actor reports all resources of the process."""
    return replace(measure_process(name, role, node), cpu_seconds=0.0, resident_bytes=0, peak_resident_bytes=0)
