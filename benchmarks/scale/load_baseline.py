"""The baseline of load.py: a bare gRPC server that reads the bytes of an actor's stream and drops them.

It answers each message like a learner, with an acknowledgement and the next credits, so that the same actors can
connect to both. It checks nothing, not even the checksum of a message.
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import grpc

from actorq.transport.options import ServerLimits, server_options
from actorq.transport.payload.checksums import seal
from actorq.v1 import learner_pb2

_WINDOW = 2
_SERVICE = learner_pb2.DESCRIPTOR.services_by_name["LearnerService"].full_name


async def _join(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    return learner_pb2.JoinResponse(incarnation=1).SerializeToString()


async def _drop(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
    count = 0
    # The first message opens the stream.
    async for _ in requests:
        answer = learner_pb2.StreamTrajectoriesResponse(
            acknowledged_sequence=count, credit_through_sequence=count + _WINDOW
        )
        yield seal(answer.SerializeToString())
        count += 1


async def _serve() -> None:
    server = grpc.aio.server(options=server_options(ServerLimits()))
    methods = {
        "Join": grpc.unary_unary_rpc_method_handler(_join),
        "StreamTrajectories": grpc.stream_stream_rpc_method_handler(_drop),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    # The format of the services, so that the parent process finds the address.
    print(f"serving on 127.0.0.1:{port}", file=sys.stderr, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
