"""The clients of the quantizer and of an actor, with services whose answers the test chooses."""

import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from actorq import wire
from actorq.client import ActorClient, LearnerClient, QuantizerClient
from actorq.domain.policy import (
    FIDELITY_GATE,
    FLOAT32,
    FidelityReport,
    LayerReport,
    PolicyDescriptor,
    RetainedPolicy,
    Variant,
)
from actorq.domain.trajectory import Episode, Evaluation
from actorq.errors import CorruptedError, NotFoundError, UnavailableError, UserError
from actorq.transport.payload.blobs import split_blob
from actorq.v1 import actor_pb2, actor_pb2_grpc, quantizer_pb2, quantizer_pb2_grpc, tensor_pb2
from actorq_apps.local.services import reserved_addresses
from tests.actorq.transport.staged_servicer import TIMEOUT_S, StagedLearner, serving

MODEL = bytes(range(256)) * 4_096
PAGE = 2
RETAINED = [RetainedPolicy(version, version * 50, (Variant("int8"),), None) for version in (5, 4, 3, 2, 1)]


def descriptor(version: int, model: bytes = MODEL) -> PolicyDescriptor:
    report = FidelityReport(256, 0.002, 0.01, 0.001, 0.004, 0.992, ())
    return PolicyDescriptor(
        "run", version, version * 50, "int8", hashlib.sha256(model).digest(), len(model), len(model) * 4, 1.7e9, report
    )


def policy(version: int, model: bytes = MODEL) -> list[dict[str, Any]]:
    """The payloads of one policy."""
    opening = {"policy": wire.descriptor_to_proto(descriptor(version, model))}
    return [opening, *({"part": part} for part in split_blob(model, version))]


LONGER = {"policy": wire.descriptor_to_proto(replace(descriptor(1), size_bytes=len(MODEL) + 1))}
CRUMB = {"part": tensor_pb2.BlobPart(chunk=b"1")}


class StagedQuantizer(quantizer_pb2_grpc.QuantizerServiceServicer):
    """Streams the given payloads. Knows versions 1 to 5."""

    def __init__(self, payloads: Sequence[dict[str, Any]] = ()) -> None:
        self._payloads = payloads

    async def WatchPolicies(  # noqa: N802
        self, request: quantizer_pb2.WatchPoliciesRequest, context: object
    ) -> AsyncIterator[quantizer_pb2.WatchPoliciesResponse]:
        for payload in self._payloads:
            yield quantizer_pb2.WatchPoliciesResponse(**payload)

    async def GetPolicy(  # noqa: N802
        self, request: quantizer_pb2.GetPolicyRequest, context: object
    ) -> AsyncIterator[quantizer_pb2.GetPolicyResponse]:
        if request.version > 5:
            raise NotFoundError(f"version {request.version} is not retained")
        for payload in self._payloads:
            yield quantizer_pb2.GetPolicyResponse(**payload)

    async def ListPolicies(  # noqa: N802
        self, request: quantizer_pb2.ListPoliciesRequest, context: object
    ) -> quantizer_pb2.ListPoliciesResponse:
        start = int(request.page_token or 0)
        page, rest = RETAINED[start : start + PAGE], RETAINED[start + PAGE :]
        return quantizer_pb2.ListPoliciesResponse(
            policies=[wire.retained_to_proto(retained) for retained in page],
            next_page_token=str(start + PAGE) if rest else "",
        )

    async def GetFidelityReport(  # noqa: N802
        self, request: quantizer_pb2.GetFidelityReportRequest, context: object
    ) -> quantizer_pb2.GetFidelityReportResponse:
        return quantizer_pb2.GetFidelityReportResponse(policy=wire.descriptor_to_proto(descriptor(request.version)))


class DroppingQuantizer(StagedQuantizer):
    """Ends its first calls as gRPC does when too many calls wait."""

    def __init__(self, drops: int) -> None:
        super().__init__()
        self.drops = drops

    async def ListPolicies(  # noqa: N802
        self, request: quantizer_pb2.ListPoliciesRequest, context: Any
    ) -> quantizer_pb2.ListPoliciesResponse:
        if self.drops:
            self.drops -= 1
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        return await super().ListPolicies(request, context)


@contextmanager
def quantizer(*payloads: dict[str, Any]) -> Iterator[QuantizerClient]:
    add = quantizer_pb2_grpc.add_QuantizerServiceServicer_to_server
    with (
        serving(StagedQuantizer(payloads), add=add, service_name="actorq.v1.QuantizerService") as stage,
        QuantizerClient(stage.address) as client,
    ):
        yield client


def test_watching_gives_whole_policies_one_after_the_other() -> None:
    with quantizer(*policy(1), *policy(2, b""), *policy(7)) as client:
        watch = client.watch("int8")
        policies = [next(watch) for _ in range(3)]
        with pytest.raises(UnavailableError, match=r"quantizer at .*int8"):
            next(watch)
    assert [(each.descriptor, each.model) for each in policies] == [
        (descriptor(1), MODEL),
        (descriptor(2, b""), b""),
        (descriptor(7), MODEL),
    ]


def test_gets_a_complete_policy() -> None:
    with quantizer(*policy(4)) as client:
        got = client.get("int8", 4)
    assert (got.descriptor, got.model) == (descriptor(4), MODEL)


def test_a_version_that_is_not_retained_is_not_found() -> None:
    with quantizer() as client, pytest.raises(NotFoundError, match=r"quantizer at .*: version 6 is not retained$"):
        client.get("int8", 6)


@pytest.mark.parametrize(
    ("payloads", "fact"),
    [
        (policy(1)[1:], "descriptor.* part"),
        (policy(1)[:-1], "last part"),
        ([policy(1)[0], *policy(2)[1:]], "version 1.* 2"),
        ([*policy(1)[:2], *policy(1)[3:]], "last part"),
        ([*policy(1)[:-1], *policy(2)], "version 2 .*version 1 "),
        ([LONGER, *policy(1)[1:]], " 1048577 .* 1048576"),
        ([*policy(1)[:2], *[CRUMB] * wire.MAX_POLICY_MESSAGES], " 8192 messages"),
    ],
    ids=["no descriptor", "cut short", "parts of another version", "a part is missing", "cut off", "short", "crumbs"],
)
def test_a_malformed_policy_is_refused(payloads: list[dict[str, Any]], fact: str) -> None:
    with quantizer(*payloads) as client, pytest.raises(CorruptedError, match=fact):
        client.get("int8", 1)


def test_a_policy_in_another_scheme_is_refused() -> None:
    with quantizer(*policy(4)) as client:
        with pytest.raises(CorruptedError, match=r"fp32.*int8"):
            next(client.watch("fp32"))
        with pytest.raises(CorruptedError, match=r"fp32.*int8"):
            client.get("fp32", 4)


def test_a_policy_whose_layers_are_all_in_float_is_of_the_requested_scheme() -> None:
    layers = (LayerReport("torso.0", FLOAT32, FIDELITY_GATE),)
    gated = replace(descriptor(4), fidelity=replace(descriptor(4).fidelity, layers=layers))
    assert gated.effective_scheme == "fp32"
    with quantizer({"policy": wire.descriptor_to_proto(gated)}, *policy(4)[1:]) as client:
        assert client.get("int8", 4).descriptor == gated


def test_another_version_than_the_requested_one_is_refused() -> None:
    with quantizer(*policy(4)) as client:
        assert client.get("int8").descriptor.version == 4
        with pytest.raises(CorruptedError, match=r"version 3.* 4"):
            client.get("int8", 3)


@pytest.mark.parametrize(("served", "highest"), [((5,), 6), ((6,), 6), ((7, 9, 8), 9), ((7, 7), 7)])
def test_refuses_a_watch_whose_versions_do_not_grow(served: tuple[int, ...], highest: int) -> None:
    with quantizer(*(payload for version in served for payload in policy(version))) as client:
        watch = client.watch("int8", after_version=6)
        assert [next(watch).descriptor.version for _ in served[:-1]] == list(served[:-1])
        with pytest.raises(CorruptedError, match=f"version.* {highest},.* {served[-1]}$"):
            next(watch)


def test_all_retained_versions_are_listed_however_they_are_paged() -> None:
    with quantizer() as client:
        assert client.list() == RETAINED


def test_a_call_that_was_dropped_is_repeated_until_its_deadline() -> None:
    servicer = DroppingQuantizer(drops=3)
    add = quantizer_pb2_grpc.add_QuantizerServiceServicer_to_server
    with serving(servicer, add=add, service_name="actorq.v1.QuantizerService") as stage:
        with QuantizerClient(stage.address) as client:
            assert list(client.list()) == RETAINED
        assert servicer.drops == 0
        servicer.drops = 1000
        with QuantizerClient(stage.address, deadline_s=0.5) as client, pytest.raises(UnavailableError):
            list(client.list())


def test_the_fidelity_of_a_version_comes_with_its_description() -> None:
    with quantizer() as client:
        assert client.fidelity("int8", 3) == descriptor(3)


class StagedActor(actor_pb2_grpc.ActorServiceServicer):
    """Completes requested episodes at once."""

    async def Evaluate(  # noqa: N802
        self, request: actor_pb2.EvaluateRequest, context: object
    ) -> AsyncIterator[actor_pb2.EvaluateResponse]:
        for index in range(request.episodes):
            yield actor_pb2.EvaluateResponse(episode=wire.episode_to_proto(Episode(float(index), index, 0)))
        result = Evaluation(0, request.policy_version, 50, request.scheme, (1.0,), (1,), 0.5)
        yield actor_pb2.EvaluateResponse(evaluation=wire.evaluation_to_proto(result))

    async def Drain(self, request: actor_pb2.DrainRequest, context: object) -> actor_pb2.DrainResponse:  # noqa: N802
        return actor_pb2.DrainResponse(sent_segments=3, unsent_segments=1)


def test_an_actor_gives_each_episode_and_then_the_evaluation() -> None:
    add = actor_pb2_grpc.add_ActorServiceServicer_to_server
    with (
        serving(StagedActor(), add=add, service_name="actorq.v1.ActorService") as stage,
        ActorClient(stage.address) as client,
    ):
        *episodes, evaluation = client.evaluate(2, "fp32", policy_version=9)
        assert episodes == [Episode(0.0, 0, 0), Episode(1.0, 1, 0)]
        assert evaluation == Evaluation(0, 9, 50, "fp32", (1.0,), (1,), 0.5)
        assert client.drain() == (3, 1)


@pytest.mark.parametrize("client", [LearnerClient, QuantizerClient, ActorClient])
def test_a_client_needs_a_valid_address(client: type[LearnerClient]) -> None:
    with pytest.raises(UserError, match=r"address.*HOST:PORT.*'nowhere'"):
        client("nowhere")


def test_wait_lasts_until_the_service_comes() -> None:
    with reserved_addresses(1) as (address,), LearnerClient(address) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait)
        with serving(StagedLearner(), address=address):
            waiting.result(TIMEOUT_S)


def test_a_call_of_a_closed_client_is_unavailable() -> None:
    with serving(StagedLearner()) as stage:
        client = LearnerClient(stage.address)
        client.close()
        for call in (client.status, client.wait, lambda: next(client.watch(patience_s=0.0))):
            with pytest.raises(UnavailableError, match=f"{stage.address}.*closed"):
                call()


def test_wait_ends_with_the_client(capfd: pytest.CaptureFixture[str]) -> None:
    with reserved_addresses(1) as (address,), ThreadPoolExecutor(1) as pool:
        # The progress of the call at the time of the close is random, so the test repeats this.
        for _ in range(100):
            client = LearnerClient(address)
            waiting = pool.submit(client.wait)
            client.close()
            with pytest.raises(UnavailableError):
                waiting.result(TIMEOUT_S)
    assert capfd.readouterr().err == ""
