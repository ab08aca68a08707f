"""Runs the Python of the client documentation against a real run, and checks its commands against the protos."""

import json
import shlex
from pathlib import Path

import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from actorq.v1 import actor_pb2, learner_pb2, quantizer_pb2
from tests.documentation.code_blocks import run_python, shell_lines
from tests.integration.training_run import TrainingRun, trained

SERVICES: dict[str, ServiceDescriptor] = {
    service.full_name: service
    for module in (learner_pb2, quantizer_pb2, actor_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
}
# Flags of grpcurl before the address, and whether a value follows.
FLAGS = {"-plaintext": False, "-d": True}


COMMANDS = [line for _, line in shell_lines() if line.startswith("grpcurl -plaintext")]


def parse(command: str) -> tuple[str, str, str]:
    """Address, method and JSON request of a grpcurl command line."""
    words = shlex.split(command)[1:]
    request = "{}"
    while words[0].startswith("-"):
        flag = words.pop(0)
        value = words.pop(0) if FLAGS[flag] else ""
        request = value if flag == "-d" else request
    address, method = words
    return address, method, request


def method_of(name: str) -> MethodDescriptor:
    """The descriptor of SERVICE/METHOD."""
    service, _, method = name.partition("/")
    return SERVICES[service].methods_by_name[method]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_line_fits_the_protos(command: str) -> None:
    address, name, request = parse(command)
    method = method_of(name)
    ports = {"LearnerService": "50051", "QuantizerService": "50052", "ActorService": "50053"}
    assert address == f"127.0.0.1:{ports[method.containing_service.name]}"
    json_format.ParseDict(json.loads(request), message_factory.GetMessageClass(method.input_type)())


def test_every_rpc_for_users_has_a_command_line() -> None:
    called = {method_of(parse(command)[1]).name for command in COMMANDS}
    of_services = {"Join", "StreamTrajectories", "ReportEnergy", "PublishCheckpoints"}
    assert called == {method.name for service in SERVICES.values() for method in service.methods} - of_services


def test_the_python_examples_run_against_a_real_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Only the last example ends the run.
    endless = ("--target-return", "1000", "--max-environment-steps", "10000000", "--quantizer.retain-newest", "5000")
    run = TrainingRun.start(tmp_path / "run", *endless, "--evaluation.episodes", "2", "--no-energy.enabled")
    try:
        run.until(lambda status: trained(100)(status) and "actor-0" in run.addresses()["actors"])
        run_python("docs/how-to/clients.md", run.addresses())
        printed = capsys.readouterr().out
        code, output = run.finish()
        assert code == 4, output
    finally:
        run.process.kill()
    for expected in (
        "policy v",
        "paused after",
        "continued after",
        "returned",
        "of actions as in float",
        "is held for 600 s",
        "saved ",
        "stopped",
    ):
        assert expected in printed
