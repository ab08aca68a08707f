"""A version is retained during its evaluation, for any number of newer versions."""

import queue
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from actorq import wire
from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.contract import CONTRACT
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import Exploration, Membership, RunSpec
from actorq.domain.trajectory import Evaluation
from actorq.errors import NotFoundError
from actorq.rundirectory import RunDirectory
from actorq.statefiles.documents import write_document
from actorq.transport.payload.checksums import SealedCall
from actorq.v1 import learner_pb2, learner_pb2_grpc, quantizer_pb2
from benchmarks.scale.watchers import Source
from tests.builders.service_process import service_process
from tests.integration.training_run import actorq

SPEC = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), sizes=(2,))
# Tens of thousands of steps, so that more versions are published during the evaluation than are retained.
EPISODES = 2_000
MANY = 100_000
# Settings of the source's publisher.
RUN_ID = "benchmark"


class OneEvaluation(learner_pb2_grpc.LearnerServiceServicer):
    """Lets an evaluator join and evaluate one version, and records its evaluation."""

    def __init__(self) -> None:
        self.evaluations: queue.Queue[Evaluation] = queue.Queue()

    def Join(self, request: learner_pb2.JoinRequest, context: Any) -> learner_pb2.JoinResponse:  # noqa: N802
        """Answer with a run whose second evaluation is after a million updates."""
        run = RunSpec(RUN_ID, SPEC.environment_id, 1, 8, 2**20, 2, "int8", EPISODES, 10**6, 1_000.0, 0)
        return wire.membership_to_proto(
            Membership(run, 0, Exploration((), ()), resume_after_sequence=0, seed=7, incarnation=9)
        )

    def StreamTrajectories(  # noqa: N802
        self, request_iterator: Iterator[learner_pb2.StreamTrajectoriesRequest], context: Any
    ) -> Iterator[learner_pb2.StreamTrajectoriesResponse]:
        """Acknowledge evaluations."""
        for request in request_iterator:
            if request.WhichOneof("payload") == "evaluation":
                yield learner_pb2.StreamTrajectoriesResponse(acknowledged_sequence=request.evaluation.sequence)
                self.evaluations.put(wire.evaluation_from_proto(request.evaluation))


class Sealing(grpc.ServerInterceptor):
    """Opens and seals messages like the project's own server."""

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        call = SealedCall(handler_call_details, handler.request_deserializer, handler.response_serializer)
        return handler._replace(request_deserializer=call.deserialize, response_serializer=call.serialize)


@contextmanager
def serving(learner: OneEvaluation) -> Iterator[str]:
    """Serve the service, and return its address."""
    server = grpc.server(ThreadPoolExecutor(4), interceptors=[Sealing()])
    learner_pb2_grpc.add_LearnerServiceServicer_to_server(learner, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def pass_on(client: QuantizerClient, evaluation: Evaluation) -> None:
    """Forward evaluations to the quantizer, like the learner."""
    opening = quantizer_pb2.PublishOpen(run_id=RUN_ID, scheme="int8", contract=CONTRACT)
    requests = (
        quantizer_pb2.PublishCheckpointsRequest(open=opening),
        quantizer_pb2.PublishCheckpointsRequest(evaluation=wire.evaluation_to_proto(evaluation)),
    )
    assert [response.WhichOneof("payload") for response in client.stub.PublishCheckpoints(iter(requests))] == ["ready"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, Evaluation]:
    """A finished run that published versions during its only evaluation, and that evaluation."""
    directory = RunDirectory(tmp_path_factory.mktemp("runs") / "run")
    directory.create(RunConfig(scheme="int8"))
    learner = OneEvaluation()
    retention = ("--quantizer.retain-newest", "4", "--quantizer.retain-best", "1")
    with ExitStack() as stack:
        address = stack.enter_context(serving(learner))
        quantizer = stack.enter_context(service_process("quantizer", "--store", str(directory.policies), *retention))
        peers = ("--learner", address, "--quantizer", quantizer.address)
        stack.enter_context(service_process("actor", "--role", "evaluator", *peers))
        client = stack.enter_context(QuantizerClient(quantizer.address))
        with closing(Source(quantizer.address, (32, 32), SPEC)) as source:
            for _ in range(MANY):
                newest = source.publish().version
                if not learner.evaluations.empty():
                    break
            evaluation = learner.evaluations.get_nowait()
            # Enough versions to drop the evaluated one, even after a quick evaluation.
            while newest - evaluation.policy_version < 20:
                newest = source.publish().version
        retained = [policy.version for policy in client.list()]
        assert retained == [*range(newest, newest - 4, -1), evaluation.policy_version]
        # The source has ended. Otherwise it would reopen its stream, and the quantizer accepts only the newest stream.
        pass_on(client, evaluation)
        with closing(Source(quantizer.address, (32, 32), SPEC)) as source:
            # This makes the quantizer choose the retained versions, because no version is held any more.
            source.publish()
    return directory, evaluation


def test_the_evaluated_version_is_the_best_retained_one(run: tuple[RunDirectory, Evaluation]) -> None:
    directory, evaluation = run
    with (
        service_process("quantizer", "--store", str(directory.policies), "--read-only") as quantizer,
        QuantizerClient(quantizer.address) as client,
    ):
        *newer, evaluated = client.list()
        assert evaluated.version == evaluation.policy_version
        assert evaluated.mean_return == pytest.approx(evaluation.mean_return)
        assert [policy.mean_return for policy in newer] == [None] * 4
        assert client.get("int8", evaluated.version).descriptor.version == evaluated.version
        with pytest.raises(NotFoundError):
            client.get("int8", evaluated.version + 1)


def test_evaluate_uses_the_best_retained_version_if_the_last_evaluated_one_is_deleted(
    run: tuple[RunDirectory, Evaluation],
) -> None:
    directory, evaluation = run
    best, gone = evaluation.policy_version, evaluation.policy_version + 1
    write_document(directory.summary, {"evaluation": {"policy_version": gone}})

    fallen_back = actorq("evaluate", str(directory.root), "--episodes", "2")

    assert fallen_back.returncode == 0, fallen_back.stderr
    first, *lines = fallen_back.stdout.splitlines()
    assert re.fullmatch(f"version {gone}, .* {best}, .*best .*{evaluation.mean_return:,.1f}", first)
    # A warning follows if the processor may compute int8 wrongly.
    beginnings = ("episode 1/2  ", "episode 2/2  ", "return mean ", f"policy v{best} int8")
    for line, beginning in zip(lines[:4], beginnings, strict=True):
        assert line.startswith(beginning)
    named = actorq("evaluate", str(directory.root), "--version", str(gone))
    assert (named.returncode, named.stdout) == (2, "")
    assert re.match(f"error: version {gone} .*{directory.root}", named.stderr)


def test_evaluate_uses_the_newest_version_if_no_retained_version_was_evaluated(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    directory.create(RunConfig(scheme="int8"))
    with service_process(
        "quantizer", "--store", str(directory.policies), "--quantizer.retain-newest", "1"
    ) as quantizer:
        source = Source(quantizer.address, (32, 32), SPEC)
        versions = [source.publish().version for _ in range(3)]
        source.close()
    write_document(directory.summary, {"evaluation": {"policy_version": versions[0]}})

    result = actorq("evaluate", str(directory.root), "--episodes", "1")

    assert result.returncode == 0, result.stderr
    assert re.fullmatch(f"version {versions[0]}, .* {versions[-1]}, .*newest", result.stdout.splitlines()[0])
