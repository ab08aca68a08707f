"""The gRPC QuantizerService: decodes requests, calls a quantizer or relay, encodes responses."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import grpc

from actorq import wire
from actorq.domain.policy import Checkpoint, PolicyDescriptor, PolicyGraph
from actorq.errors import ActorQError, UnavailableError
from actorq.tasks import may_be_left
from actorq.transport.payload.blobs import ENCODINGS
from actorq.v1 import quantizer_pb2, quantizer_pb2_grpc
from quantizer_service.serving.policy_stream import EncodedPolicy
from quantizer_service.serving.publishers import Turn, draining
from quantizer_service.serving.quantizer import Quantizer
from quantizer_service.serving.relay import Relay
from quantizer_service.serving.submissions import Submission, SubmissionAssembler

R = TypeVar("R")

_SERVICE = quantizer_pb2.DESCRIPTOR.services_by_name["QuantizerService"].full_name


class QuantizerServicer(quantizer_pb2_grpc.QuantizerServiceServicer):
    """Serves policies. Streams of policies yield serialized messages."""

    def __init__(self, policies: Quantizer | Relay) -> None:
        self._policies = policies
        # The policies that are being sent. Slow readers share the messages of one policy.
        self._sent: WeakValueDictionary[PolicyDescriptor, EncodedPolicy] = WeakValueDictionary()

    def register(self, server: grpc.aio.Server) -> str:
        """Add this servicer to a server. Returns the full name of its service."""
        # The generated handlers would serialize a policy again for each receiver. These handlers send the bytes
        # unchanged. They come first, because gRPC uses the first handler of a method.
        watch = grpc.unary_stream_rpc_method_handler(self.WatchPolicies, quantizer_pb2.WatchPoliciesRequest.FromString)
        get = grpc.unary_stream_rpc_method_handler(self.GetPolicy, quantizer_pb2.GetPolicyRequest.FromString)
        unchanged = grpc.method_handlers_generic_handler(_SERVICE, {"WatchPolicies": watch, "GetPolicy": get})
        server.add_generic_rpc_handlers((unchanged,))
        quantizer_pb2_grpc.add_QuantizerServiceServicer_to_server(self, server)
        return _SERVICE

    async def PublishCheckpoints(
        self,
        request_iterator: AsyncIterator[quantizer_pb2.PublishCheckpointsRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[quantizer_pb2.PublishCheckpointsResponse]:
        """Accept a learner's graphs, checkpoints and evaluations in the order of arrival.

        Only one publisher is served. When another publisher replaces it, its unfinished submission is dropped.
        """
        intake = self._policies.intake()
        assembler = SubmissionAssembler()
        scheme, turn = "", Turn()
        context.add_done_callback(lambda _: turn.ended.set())
        ends = {self._policies.draining: draining, turn.replaced: turn.reason}
        async for request in _until(ends, request_iterator):
            received_at = time.perf_counter()
            submission: Submission | None = await intake.worker.do(assembler.add, request)
            if isinstance(submission, wire.Opening):
                scheme, turn.learner = submission.scheme, submission.learner
                version, graph_digests = await intake.claim(submission.run_id, scheme, turn)
                ready = wire.ready_to_proto(wire.Ready(version, graph_digests, ENCODINGS))
                yield quantizer_pb2.PublishCheckpointsResponse(ready=ready)
            elif isinstance(submission, PolicyGraph):
                await intake.add_graph(submission)
            elif isinstance(submission, Checkpoint):
                receipt = await intake.publish(submission, scheme, received_at)
                yield quantizer_pb2.PublishCheckpointsResponse(receipt=wire.receipt_to_proto(receipt))
            elif submission is not None:
                await intake.record_evaluation(submission)
        assembler.end()

    async def WatchPolicies(
        self, request: quantizer_pb2.WatchPoliciesRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """Send the newest policy of a variant, and every newer policy after it."""
        wanted = wire.watch_request_from_proto(request)
        with await self._policies.watch(wanted.variant, wanted.version) as watcher:
            # The garbage collector closes the generator of a cancelled call only later. The callback ends the watcher
            # now.
            context.add_done_callback(lambda _: watcher.close())
            # Confirms the stream to the watcher, even if no policy exists yet.
            await context.send_initial_metadata(())
            while (policy := await watcher.next()) is not None:
                for message in policy.taken(wanted.encodings):
                    yield message
        # The status OK would promise that no newer policy will ever come.
        raise UnavailableError("this service is draining or begins another run; watch again later")

    async def GetPolicy(
        self, request: quantizer_pb2.GetPolicyRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        """Send one retained policy."""
        wanted = wire.policy_request_from_proto(request)
        policy = await self._policies.get(wanted.variant, wanted.version)
        policy = self._sent.setdefault(policy.descriptor, policy)
        for message in policy.taken(wanted.encodings):
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
        granted = await self._policies.hold(wanted.version, wanted.seconds)
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


async def _until(
    ends: Mapping[asyncio.Event, Callable[[], ActorQError]], requests: AsyncIterator[R]
) -> AsyncIterator[R]:
    """Yield requests until their stream ends. Raises the event's error as soon as the event is set."""
    waits = {asyncio.ensure_future(event.wait()): reason for event, reason in ends.items()}
    read: asyncio.Future[Any] | None = None
    try:
        while True:
            read = may_be_left(asyncio.ensure_future(anext(requests, None)), "reading a publisher's stream")
            await asyncio.wait((read, *waits), return_when=asyncio.FIRST_COMPLETED)
            if over := [reason for wait, reason in waits.items() if wait.done()]:
                raise over[0]()
            if (request := read.result()) is None:
                return
            yield request
    finally:
        for task in (read, *waits):
            if task is not None:
                task.cancel()
