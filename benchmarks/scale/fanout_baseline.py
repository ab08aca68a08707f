"""The bare server that fanout.py compares with: only grpc.aio and one prebuilt message.

Each line on standard input names a method. The server sends the message once on every stream of the one method, or N
times on each stream of the other. It prints when it began, on the monotonic clock. The message has a policy's size.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator

import grpc

from actorq.transport.options import ServerLimits, server_options

EACH, ALL = "/benchmark.Baseline/Each", "/benchmark.Baseline/All"


class Baseline:
    """Sends one prebuilt message repeatedly."""

    def __init__(self, size: int, together: int) -> None:
        self._message = os.urandom(size)
        self._together = together
        self._begun = {EACH: asyncio.Event(), ALL: asyncio.Event()}

    def begin(self, method: str) -> float:
        """Send on all streams of a method. Returns when sending began."""
        begun, self._begun[method] = self._begun[method], asyncio.Event()
        now = time.monotonic()
        begun.set()
        return now

    async def each(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """A stream that sends one message each time."""
        await context.send_initial_metadata(())
        while True:
            await self._begun[EACH].wait()
            yield self._message

    async def all(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """A stream that each time sends as many messages as the other method has streams."""
        await context.send_initial_metadata(())
        while True:
            await self._begun[ALL].wait()
            for _ in range(self._together):
                yield self._message


async def _serve(size: int, together: int) -> None:
    baseline = Baseline(size, together)
    server = grpc.aio.server(options=server_options(ServerLimits()))
    handlers = {"Each": baseline.each, "All": baseline.all}
    methods = {name: grpc.unary_stream_rpc_method_handler(handler) for name, handler in handlers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmark.Baseline", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(baseline.begin(line.strip()), flush=True)
    await server.stop(None)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--size", type=int, required=True, metavar="BYTES", help="size of the message")
    parser.add_argument("--together", type=int, required=True, metavar="N", help="messages on one stream")
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.size, arguments.together))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
