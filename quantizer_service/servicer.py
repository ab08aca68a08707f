"""The quantizer's RPCs: decode, call what serves policies (a quantizer or a relay), encode."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

import grpc

from actorq import wire
from actorq.domain.policy import Checkpoint, PolicyDescriptor, PolicyGraph, RetainedPolicy
from actorq.domain.status import Receipt
from actorq.domain.trajectory import Evaluation
from actorq.errors import UnavailableError
from actorq.tasks import may_be_left
from actorq.transport.payload.blobs import ENCODINGS
from actorq.v1 import quantizer_pb2, quantizer_pb2_grpc
from quantizer_service.serving.board import Subscription
from quantizer_service.serving.policy_stream import Messages, plain_messages
from quantizer_service.serving.publication import Publication, Submission

P = ParamSpec("P")
R = TypeVar("R")

_SERVICE = quantizer_pb2.DESCRIPTOR.services_by_name["QuantizerService"].full_name


class Intake(Protocol):
    """What takes a publisher's graphs, checkpoints and evaluations."""

    clock: Callable[[], float]

    async def work(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run CPU work off the event loop."""
        ...

    async def ready(self, run_id: str, scheme: str) -> tuple[int, tuple[bytes, ...]]:
        """Newest version and known topologies, for a run whose actors use `scheme`."""
        ...

    async def add_graph(self, graph: PolicyGraph) -> None:
        """Take a graph."""
        ...

    async def publish(self, checkpoint: Checkpoint, scheme: str, received_at: float) -> Receipt:
        """Take a checkpoint; returns when it is served and stored."""
        ...

    async def record_evaluation(self, evaluation: Evaluation) -> None:
        """Take an evaluation."""
        ...


class PolicySource(Protocol):
    """What serves policies. `draining` is set when no new work is taken any more."""

    draining: asyncio.Event

    def intake(self) -> Intake:
        """What takes checkpoints; raises ConflictError where nothing can be published."""
        ...

    async def subscribe(self, scheme: str, after_version: int) -> Subscription[Messages]:
        """Watch the newest policy of a scheme from above a version."""
        ...

    async def get(self, scheme: str, version: int = 0) -> Messages:
        """A retained policy, version 0 for the newest."""
        ...

    async def describe(self, scheme: str, version: int = 0) -> PolicyDescriptor:
        """All of a retained policy but its bytes."""
        ...

    async def list_versions(self, page_size: int, page_token: str) -> tuple[tuple[RetainedPolicy, ...], str]:
        """A page of the retained versions, newest first, and the token of the next page."""
        ...

    async def lease(self, version: int, seconds: float) -> float:
        """Retain a version until its next evaluation, for so many seconds at most; returns the seconds granted."""
        ...


class QuantizerServicer(quantizer_pb2_grpc.QuantizerServiceServicer):
    """Serves policies; the streams of policies yield messages that are bytes already."""

    def __init__(self, policies: PolicySource) -> None:
        self._policies = policies
        # Set when a newer publisher takes the place of the one that is listened to.
        self._replaced = asyncio.Event()
        # What was written plain last: of callers that take no encoding many ask for the same.
        self._plain: tuple[Messages, Messages] = ((), ())

    def register(self, server: grpc.aio.Server) -> str:
        """Add this servicer to a server; returns the full name of its service."""
        quantizer_pb2_grpc.add_QuantizerServiceServicer_to_server(self, server)
        # The generated handlers would serialize a policy again for everyone who gets it; these send bytes as they are.
        watch = grpc.unary_stream_rpc_method_handler(self.WatchPolicies, quantizer_pb2.WatchPoliciesRequest.FromString)
        get = grpc.unary_stream_rpc_method_handler(self.GetPolicy, quantizer_pb2.GetPolicyRequest.FromString)
        server.add_registered_method_handlers(_SERVICE, {"WatchPolicies": watch, "GetPolicy": get})
        return _SERVICE

    async def PublishCheckpoints(
        self,
        request_iterator: AsyncIterator[quantizer_pb2.PublishCheckpointsRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[quantizer_pb2.PublishCheckpointsResponse]:
        """Take graphs, checkpoints and evaluations of a learner, in the order in which it sends them.

        Of several publishers the newest is listened to, and what the one before it was sending is dropped.
        """
        intake = self._policies.intake()
        publication = Publication()
        scheme, replaced = "", asyncio.Event()
        ends = {
            self._policies.draining: "this service is draining; open the stream again later",
            replaced: "another publisher of the run has opened its stream; only the newest is listened to",
        }
        async for request in _until(ends, request_iterator):
            received_at = intake.clock()
            submission: Submission | None = await intake.work(publication.take, request)
            if isinstance(submission, wire.Opening):
                scheme = submission.scheme
                version, topologies = await intake.ready(submission.run_id, scheme)
                self._replaced.set()
                self._replaced = replaced
                ready = wire.ready_to_proto(wire.Ready(version, topologies, ENCODINGS))
                yield quantizer_pb2.PublishCheckpointsResponse(ready=ready)
            elif isinstance(submission, PolicyGraph):
                await intake.add_graph(submission)
            elif isinstance(submission, Checkpoint):
                receipt = await intake.publish(submission, scheme, received_at)
                yield quantizer_pb2.PublishCheckpointsResponse(receipt=wire.receipt_to_proto(receipt))
            elif submission is not None:
                await intake.record_evaluation(submission)
        publication.end()

    async def WatchPolicies(
        self, request: quantizer_pb2.WatchPoliciesRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """Send the newest policy of a scheme, and again whenever there is a newer one."""
        wanted = wire.watch_request_from_proto(request)
        with await self._policies.subscribe(wanted.scheme, wanted.version) as subscription:
            # A call that is cancelled leaves its generator to the garbage collector: count it out at once.
            context.add_done_callback(lambda _: subscription.close())
            # Tells the watcher that it watches, also when there is no policy yet.
            await context.send_initial_metadata(())
            while (messages := await subscription.next()) is not None:
                for message in self._taken(messages, wanted.encodings):
                    yield message
        # Not OK, which would say that no newer policy will ever come.
        raise UnavailableError("this service is draining or begins another run; watch again later")

    async def GetPolicy(
        self, request: quantizer_pb2.GetPolicyRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """Send one retained policy."""
        wanted = wire.policy_request_from_proto(request)
        messages = await self._policies.get(wanted.scheme, wanted.version)
        for message in self._taken(messages, wanted.encodings):
            yield message

    async def ListPolicies(
        self, request: quantizer_pb2.ListPoliciesRequest, context: grpc.aio.ServicerContext
    ) -> quantizer_pb2.ListPoliciesResponse:
        """List a page of the retained versions."""
        wanted = wire.page_request_from_proto(request)
        page, token = await self._policies.list_versions(wanted.size, wanted.token)
        return quantizer_pb2.ListPoliciesResponse(
            policies=[wire.retained_to_proto(policy) for policy in page], next_page_token=token
        )

    async def HoldPolicy(
        self, request: quantizer_pb2.HoldPolicyRequest, context: grpc.aio.ServicerContext
    ) -> quantizer_pb2.HoldPolicyResponse:
        """Hold one retained version."""
        wanted = wire.hold_request_from_proto(request)
        granted = await self._policies.lease(wanted.version, wanted.seconds)
        response = quantizer_pb2.HoldPolicyResponse()
        response.granted.FromNanoseconds(round(granted * 1e9))
        return response

    async def GetFidelityReport(
        self, request: quantizer_pb2.GetFidelityReportRequest, context: grpc.aio.ServicerContext
    ) -> quantizer_pb2.GetFidelityReportResponse:
        """Describe one retained policy."""
        wanted = wire.fidelity_request_from_proto(request)
        descriptor = await self._policies.describe(wanted.scheme, wanted.version)
        return quantizer_pb2.GetFidelityReportResponse(policy=wire.descriptor_to_proto(descriptor))

    def _taken(self, messages: Messages, encodings: Iterable[int]) -> Messages:
        """These messages, or where the caller does not take their encoding the same policy as it is."""
        if not set(ENCODINGS).issubset(encodings) and self._plain[0] is not messages:
            self._plain = (messages, plain_messages(messages))
        return messages if set(ENCODINGS).issubset(encodings) else self._plain[1]


async def _until(ends: Mapping[asyncio.Event, str], requests: AsyncIterator[R]) -> AsyncIterator[R]:
    """Pass requests on until their stream ends; raises UnavailableError between two of them when an event is set."""
    waits = {asyncio.ensure_future(event.wait()): reason for event, reason in ends.items()}
    read: asyncio.Future[Any] | None = None
    try:
        while True:
            read = may_be_left(asyncio.ensure_future(_next(requests)), "reading a publisher's stream")
            await asyncio.wait((read, *waits), return_when=asyncio.FIRST_COMPLETED)
            if over := [reason for wait, reason in waits.items() if wait.done()]:
                raise UnavailableError(over[0])
            if not (found := read.result()):
                return
            yield found[0]
    finally:
        for task in (read, *waits):
            if task is not None:
                task.cancel()


async def _next(requests: AsyncIterator[R]) -> tuple[R] | None:
    async for request in requests:
        return (request,)
    return None
