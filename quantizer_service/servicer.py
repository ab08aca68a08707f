"""The quantizer's RPCs: decode, call the quantizer, encode."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc

from actorq import wire
from actorq.errors import UnavailableError
from actorq.policy import Checkpoint, Policy, PolicyGraph
from actorq.transport.blobs import split_blob
from actorq.v1 import quantizer_pb2, quantizer_pb2_grpc
from quantizer_service.publication import Opening, Publication, Submission
from quantizer_service.quantizer import Quantizer

R = TypeVar("R")
M = TypeVar("M")

Messages = tuple[quantizer_pb2.WatchPoliciesResponse, ...]


def policy_messages(response: Callable[..., M], policy: Policy) -> tuple[M, ...]:
    """A policy as a stream of that response carries it: its descriptor, then the parts of its model."""
    parts = split_blob(policy.model, policy.descriptor.version)
    return (
        response(policy=wire.descriptor_to_proto(policy.descriptor)),
        *(response(part=part) for part in parts),
    )


class QuantizerServicer(quantizer_pb2_grpc.QuantizerServiceServicer):
    """Serves a quantizer."""

    def __init__(self, quantizer: Quantizer[Messages]) -> None:
        self._quantizer = quantizer

    async def PublishCheckpoints(
        self,
        request_iterator: AsyncIterator[quantizer_pb2.PublishCheckpointsRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[quantizer_pb2.PublishCheckpointsResponse]:
        """Take graphs, checkpoints and evaluations of a learner, in the order in which it sends them."""
        publication = Publication()
        scheme = ""
        async for request in _until(self._quantizer.draining, request_iterator):
            received_at = self._quantizer.clock()
            submission: Submission | None = await self._quantizer.work(publication.take, request)
            if isinstance(submission, Opening):
                scheme = submission.scheme
                version, topologies = await self._quantizer.ready(submission.run_id, scheme)
                ready = quantizer_pb2.PublishReady(newest_version=version, topologies=topologies)
                yield quantizer_pb2.PublishCheckpointsResponse(ready=ready)
            elif isinstance(submission, PolicyGraph):
                await self._quantizer.add_graph(submission)
            elif isinstance(submission, Checkpoint):
                receipt = await self._quantizer.publish(submission, scheme, received_at)
                yield quantizer_pb2.PublishCheckpointsResponse(receipt=wire.receipt_to_proto(receipt))
            elif submission is not None:
                await self._quantizer.record_evaluation(submission)
        publication.end()

    async def WatchPolicies(
        self, request: quantizer_pb2.WatchPoliciesRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[quantizer_pb2.WatchPoliciesResponse]:
        """Send the newest policy of a scheme, and again whenever there is a newer one."""
        with await self._quantizer.subscribe(request.scheme, request.after_version) as subscription:
            # A call that is cancelled leaves its generator to the garbage collector: count it out at once.
            context.add_done_callback(lambda _: subscription.close())
            while (messages := await subscription.next()) is not None:
                for message in messages:
                    yield message

    async def GetPolicy(
        self, request: quantizer_pb2.GetPolicyRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[quantizer_pb2.GetPolicyResponse]:
        """Send one retained policy."""
        policy = await self._quantizer.get(request.scheme, request.version)
        for message in await self._quantizer.work(policy_messages, quantizer_pb2.GetPolicyResponse, policy):
            yield message

    async def ListPolicies(
        self, request: quantizer_pb2.ListPoliciesRequest, context: grpc.aio.ServicerContext
    ) -> quantizer_pb2.ListPoliciesResponse:
        """List a page of the retained versions."""
        page, token = await self._quantizer.list_versions(request.page_size, request.page_token)
        return quantizer_pb2.ListPoliciesResponse(
            policies=[wire.retained_to_proto(policy) for policy in page], next_page_token=token
        )

    async def GetFidelityReport(
        self, request: quantizer_pb2.GetFidelityReportRequest, context: grpc.aio.ServicerContext
    ) -> quantizer_pb2.GetFidelityReportResponse:
        """Describe one retained policy."""
        policy = await self._quantizer.get(request.scheme, request.version)
        return quantizer_pb2.GetFidelityReportResponse(policy=wire.descriptor_to_proto(policy.descriptor))


async def _until(draining: asyncio.Event, requests: AsyncIterator[R]) -> AsyncIterator[R]:
    """Pass requests on until their stream ends; raises UnavailableError between two of them when draining begins."""
    drain = asyncio.ensure_future(draining.wait())
    read: asyncio.Future[Any] | None = None
    try:
        while True:
            read = asyncio.ensure_future(_next(requests))
            await asyncio.wait((read, drain), return_when=asyncio.FIRST_COMPLETED)
            if not read.done():
                raise UnavailableError("the quantizer is draining; open the stream again later")
            if not (found := read.result()):
                return
            yield found[0]
    finally:
        for task in (read, drain):
            if task is not None:
                task.cancel()


async def _next(requests: AsyncIterator[R]) -> tuple[R] | None:
    async for request in requests:
        return (request,)
    return None
