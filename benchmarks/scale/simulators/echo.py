"""The baseline of the streams of simulators: a bare gRPC server that answers each message with the same bytes.

It neither decodes nor checks a message. It has the options of ActorQ's servers.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator

import grpc

from actorq.transport.options import ServerLimits, server_options
from benchmarks.scale.simulators.load import PLAY


async def _serve(listen: str, ready: bytes, answer: bytes) -> None:
    async def echo(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        await anext(requests)
        yield ready
        async for _ in requests:
            yield answer

    server = grpc.aio.server(options=server_options(ServerLimits()))
    service, _, method = PLAY.removeprefix("/").partition("/")
    handlers = {method: grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port(listen)
    await server.start()
    # The format of the services, so that the parent process finds the address.
    print(f"serving on 127.0.0.1:{port}", file=sys.stderr, flush=True)
    await server.wait_for_termination()


def main() -> None:
    """Serve until the process is killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--ready", required=True, metavar="HEX", help="the first answer of a stream")
    parser.add_argument("--answer", required=True, metavar="HEX", help="each further answer")
    given = parser.parse_args()
    asyncio.run(_serve(given.listen, bytes.fromhex(given.ready), bytes.fromhex(given.answer)))


if __name__ == "__main__":
    main()
