"""The wire contract: its stubs are fresh, its style holds, and it has the services that the design promises."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from actorq.externalscaler import externalscaler_pb2
from actorq.v1 import actor_pb2, external_pb2, learner_pb2, quantizer_pb2

ROOT = Path(__file__).parents[1]
BUF = Path(sys.executable).parent / "buf"

# RPC: whether the caller streams, whether the service does.
UNARY, WATCH, BIDIRECTIONAL = (False, False), (False, True), (True, True)
SERVICES: dict[str, tuple[ServiceDescriptor, dict[str, tuple[bool, bool]]]] = {
    "learner": (
        learner_pb2.DESCRIPTOR.services_by_name["LearnerService"],
        {
            "Join": UNARY,
            "StreamTrajectories": BIDIRECTIONAL,
            "GetStatus": UNARY,
            "WatchStatus": WATCH,
            "PauseTraining": UNARY,
            "ResumeTraining": UNARY,
            "SaveCheckpoint": UNARY,
            "ResetEnvironment": UNARY,
            "StopRun": UNARY,
            "ReportEnergy": UNARY,
        },
    ),
    "quantizer": (
        quantizer_pb2.DESCRIPTOR.services_by_name["QuantizerService"],
        {
            "PublishCheckpoints": BIDIRECTIONAL,
            "WatchPolicies": WATCH,
            "GetPolicy": WATCH,
            "ListPolicies": UNARY,
            "GetFidelityReport": UNARY,
            "HoldPolicy": UNARY,
        },
    ),
    "actor": (
        actor_pb2.DESCRIPTOR.services_by_name["ActorService"],
        {"GetActorStatus": UNARY, "Evaluate": WATCH, "Drain": UNARY},
    ),
    "external": (
        external_pb2.DESCRIPTOR.services_by_name["ExternalEnvironmentService"],
        {"Play": BIDIRECTIONAL},
    ),
}


def test_the_stubs_are_those_of_the_protos(tmp_path: Path) -> None:
    files = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "protos/actorq/v1").glob("*.proto"))
    paths = [f"--proto_path={path}" for path in ("actorq/externalscaler=protos/externalscaler", "protos")]
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", *paths, *outputs, *files]
    subprocess.run([*command, "actorq/externalscaler/externalscaler.proto"], cwd=ROOT, check=True)
    for package in ("v1", "externalscaler"):
        fresh, stubs = tmp_path / "actorq" / package, ROOT / "actorq" / package
        names = {file.name for file in fresh.iterdir()}
        assert {file.name for file in stubs.iterdir() if file.is_file()} == names | {"__init__.py"}
        stale = [name for name in sorted(names) if (fresh / name).read_bytes() != (stubs / name).read_bytes()]
        assert not stale, "run `make protos`"


@pytest.mark.parametrize(
    "arguments", [("lint",), ("format", "--diff", "--exit-code", "protos")], ids=["lint", "format"]
)
def test_buf_finds_no_fault_in_the_protos(arguments: tuple[str, ...]) -> None:
    completed = subprocess.run([BUF, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_the_rpcs_of_the_design(name: str) -> None:
    service, promised = SERVICES[name]
    assert {rpc.name: (rpc.client_streaming, rpc.server_streaming) for rpc in service.methods} == promised


def test_the_scaler_is_the_one_that_keda_calls() -> None:
    service = externalscaler_pb2.DESCRIPTOR.services_by_name["ExternalScaler"]
    assert service.full_name == "externalscaler.ExternalScaler"
    rpcs = {rpc.name: (rpc.client_streaming, rpc.server_streaming) for rpc in service.methods}
    assert rpcs == {"IsActive": UNARY, "StreamIsActive": WATCH, "GetMetricSpec": UNARY, "GetMetrics": UNARY}
    fields = {
        (message.name, field.name, field.number)
        for message in externalscaler_pb2.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
    }
    assert fields == {
        ("ScaledObjectRef", "name", 1),
        ("ScaledObjectRef", "namespace", 2),
        ("ScaledObjectRef", "scalerMetadata", 3),
        ("IsActiveResponse", "result", 1),
        ("GetMetricSpecResponse", "metricSpecs", 1),
        ("MetricSpec", "metricName", 1),
        ("MetricSpec", "targetSize", 2),
        ("MetricSpec", "targetSizeFloat", 3),
        ("GetMetricsRequest", "scaledObjectRef", 1),
        ("GetMetricsRequest", "metricName", 2),
        ("GetMetricsResponse", "metricValues", 1),
        ("MetricValue", "metricName", 1),
        ("MetricValue", "metricValue", 2),
        ("MetricValue", "metricValueFloat", 3),
    }


@pytest.mark.parametrize("name", SERVICES)
def test_every_rpc_has_a_request_and_a_response_of_its_own(name: str) -> None:
    service, _ = SERVICES[name]
    for rpc in service.methods:
        assert rpc.input_type.full_name == f"actorq.v1.{rpc.name}Request"
        assert rpc.output_type.full_name == f"actorq.v1.{rpc.name}Response"


def test_every_enum_begins_with_unspecified() -> None:
    for module in (actor_pb2, external_pb2, learner_pb2, quantizer_pb2):
        for file in (module.DESCRIPTOR, *module.DESCRIPTOR.dependencies):
            for enum in file.enum_types_by_name.values():
                assert enum.values_by_number[0].name.endswith("_UNSPECIFIED")
