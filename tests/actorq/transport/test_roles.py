"""Roles: every role times every RPC of every service, over real connections with TLS."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from actorq.externalscaler import externalscaler_pb2, externalscaler_pb2_grpc
from actorq.transport.channels import open_channel
from actorq.transport.options import Certificates
from actorq.transport.security.identity import identity_uri
from actorq.transport.security.roles import ROLES, allowed_roles
from actorq.v1 import (
    access_pb2,
    actor_pb2,
    actor_pb2_grpc,
    external_pb2,
    external_pb2_grpc,
    learner_pb2,
    learner_pb2_grpc,
    quantizer_pb2,
    quantizer_pb2_grpc,
)
from tests.actorq.transport.certificate_authority import Authority
from tests.actorq.transport.staged_servicer import Stage, serving

OURS: dict[ServiceDescriptor, Callable[[Any, Any], None]] = {
    learner_pb2.DESCRIPTOR.services_by_name["LearnerService"]: learner_pb2_grpc.add_LearnerServiceServicer_to_server,
    quantizer_pb2.DESCRIPTOR.services_by_name[
        "QuantizerService"
    ]: quantizer_pb2_grpc.add_QuantizerServiceServicer_to_server,
    actor_pb2.DESCRIPTOR.services_by_name["ActorService"]: actor_pb2_grpc.add_ActorServiceServicer_to_server,
    external_pb2.DESCRIPTOR.services_by_name[
        "ExternalEnvironmentService"
    ]: external_pb2_grpc.add_ExternalEnvironmentServiceServicer_to_server,
    externalscaler_pb2.DESCRIPTOR.services_by_name[
        "ExternalScaler"
    ]: externalscaler_pb2_grpc.add_ExternalScalerServicer_to_server,
}
THEIRS = (
    health_pb2.DESCRIPTOR.services_by_name["Health"],
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)
METHODS = {f"/{service.full_name}/{rpc.name}": rpc for service in (*OURS, *THEIRS) for rpc in service.methods}
OURS_ONLY = {f"/{service.full_name}/{rpc.name}" for service in OURS for rpc in service.methods}
UNKNOWN = "/actorq.v1.LearnerService/FormatDisk"


class Answers:
    """Answers every RPC of a service with one empty message, and records the called RPCs."""

    def __init__(self, service: ServiceDescriptor, called: list[str]) -> None:
        for rpc in service.methods:
            setattr(self, rpc.name, self._answer(f"/{service.full_name}/{rpc.name}", rpc, called))

    def _answer(self, path: str, rpc: MethodDescriptor, called: list[str]) -> Callable[..., Any]:
        response = GetMessageClass(rpc.output_type)

        async def unary(request: object, context: object) -> Any:
            called.append(path)
            return response()

        async def stream(request: Any, context: object) -> Any:
            called.append(path)
            if rpc.client_streaming:
                await anext(request)
            yield response()

        return stream if rpc.server_streaming else unary


def answer_nothing(called: list[str]) -> Callable[[Any, Any], None]:
    """Adds all services of the project, and an RPC that is missing in the table."""

    async def format_disk(request: object, context: object) -> bytes:
        called.append(UNKNOWN)
        return b""

    def add(_: object, server: grpc.aio.Server) -> None:
        for service, register in OURS.items():
            register(Answers(service, called), server)
        unknown = {"FormatDisk": grpc.unary_unary_rpc_method_handler(format_disk)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("actorq.v1.LearnerService", unknown),))

    return add


@pytest.fixture(scope="module")
def called() -> list[str]:
    """The RPCs that a servicer has seen."""
    return []


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def stage(called: list[str], authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    mine = Certificates.load(authority.issue(tmp_path_factory.mktemp("server"), "server"))
    with serving(None, mine, answer_nothing(called)) as stage:
        yield stage


def status_of(channel: grpc.Channel, path: str) -> tuple[grpc.StatusCode, str]:
    """Call an RPC with an empty request until its first response or its end."""
    rpc = METHODS.get(path)
    if rpc is not None and rpc.client_streaming:
        call = channel.stream_stream(path)(iter([b""]), timeout=20.0)
    elif rpc is not None and rpc.server_streaming:
        call = channel.unary_stream(path)(b"", timeout=20.0)
    else:
        call = iter([channel.unary_unary(path)(b"", timeout=20.0)])
    next(call)
    return grpc.StatusCode.OK, ""


def outcome(channel: grpc.Channel, path: str) -> tuple[grpc.StatusCode, str]:
    try:
        return status_of(channel, path)
    except grpc.RpcError as error:
        return error.code(), error.details()


@pytest.mark.parametrize("role", ROLES)
def test_each_role_may_call_the_rpcs_that_the_contract_allows_and_no_others(
    role: str, stage: Stage, called: list[str], authority: Authority, tmp_path: Path
) -> None:
    mine = Certificates.load(authority.issue(tmp_path, role, uris=(identity_uri(role, "actorq"),)))
    called.clear()
    with open_channel(stage.address, mine) as channel, ThreadPoolExecutor(4) as threads:
        outcomes = dict(zip(METHODS, threads.map(lambda path: outcome(channel, path), METHODS), strict=True))
    allowed = {path for path in METHODS if role in allowed_roles(path)}
    refused = {path: details for path, (code, details) in outcomes.items() if code is grpc.StatusCode.PERMISSION_DENIED}
    assert refused.keys() == METHODS.keys() - allowed
    for path, details in refused.items():
        service, _, rpc = path.rpartition("/")
        name = f"{service.rpartition('.')[2]}.{rpc}"
        assert re.search(f"{role} .*{name}.* {', '.join(sorted(allowed_roles(path)))} ", details)
    assert sorted(called) == sorted(OURS_ONLY & allowed), (
        "a refused call reached its servicer, or an allowed one did not"
    )


def test_each_rpc_names_its_callers() -> None:
    assert all(map(allowed_roles, METHODS))
    for path in METHODS:
        if path.startswith("/actorq."):
            named = METHODS[path].GetOptions().Extensions[access_pb2.callers].split()
            assert sorted(named) == sorted(allowed_roles(path)), "a role that does not exist"


@pytest.mark.parametrize(
    ("rpc", "roles"),
    [
        ("LearnerService/StopRun", {"operator"}),
        ("LearnerService/PauseTraining", {"operator"}),
        ("LearnerService/SaveCheckpoint", {"operator"}),
        ("LearnerService/Join", {"actor", "evaluator"}),
        ("LearnerService/StreamTrajectories", {"actor", "evaluator"}),
        ("LearnerService/GetStatus", {"operator", "monitor"}),
        ("LearnerService/ReportEnergy", {"meter"}),
        ("QuantizerService/PublishCheckpoints", {"learner"}),
        ("ActorService/Evaluate", {"operator"}),
        ("ActorService/Drain", {"operator"}),
        ("ExternalEnvironmentService/Play", {"simulator"}),
    ],
)
def test_an_rpc_that_changes_a_run_may_be_called_by_few_roles(rpc: str, roles: set[str]) -> None:
    assert allowed_roles(f"/actorq.v1.{rpc}") == roles


def test_a_simulator_may_only_play() -> None:
    free = {path for path in METHODS if path.startswith("/grpc.health")}
    allowed = {path for path in METHODS if "simulator" in allowed_roles(path)}
    assert allowed == {"/actorq.v1.ExternalEnvironmentService/Play"} | free


@pytest.mark.parametrize("role", ROLES)
def test_an_rpc_that_names_no_callers_is_refused(
    role: str, stage: Stage, called: list[str], authority: Authority, tmp_path: Path
) -> None:
    mine = Certificates.load(authority.issue(tmp_path, role, uris=(identity_uri(role, "actorq"),)))
    with open_channel(stage.address, mine) as channel:
        code, details = outcome(channel, UNKNOWN)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert re.search(f"{role} .*LearnerService.FormatDisk.*nobody", details)
    assert UNKNOWN not in called


def test_without_tls_everybody_may_call_everything() -> None:
    called: list[str] = []
    with serving(None, None, answer_nothing(called)) as stage, open_channel(stage.address) as channel:
        assert {outcome(channel, path)[0] for path in OURS_ONLY} == {grpc.StatusCode.OK}
    assert sorted(called) == sorted(OURS_ONLY)
