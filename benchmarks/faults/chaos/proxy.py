"""A TCP proxy whose link can be cut, reset, delayed, corrupted, or left half open."""

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_CHUNK_BYTES = 64 * 1024
# With linger on and 0 seconds, close sends RST and drops queued data.
_RESET = struct.pack("ii", 1, 0)


class Link:
    """Connections from `address` to one target. The methods that change a link may be called from any thread.

    delay_s: delay of each chunk in both directions.
    """

    def __init__(self, proxy: "Proxy", target: tuple[str, int]) -> None:
        self._loop = proxy.loop
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._corrupt: random.Random | None = None
        self._delay_s = 0.0
        self.address = ""

    async def listen(self) -> None:
        """Bind a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Close all connections and refuse new ones until `heal`."""
        self._refusing = True
        self._call(self._close_all, False)

    def reset(self) -> None:
        """End all connections with RST, and keep accepting new ones."""
        self._call(self._close_all, True)

    def freeze(self) -> None:
        """Keep the connections open, but pass nothing on until `heal`."""
        self._call(self._flowing.clear)

    def delay(self, seconds: float) -> None:
        """Delay each chunk by `seconds` until `heal`."""
        self._delay_s = seconds

    def corrupt(self, rng: random.Random) -> None:
        """Change one byte of each chunk until `heal`."""
        self._corrupt = rng

    def heal(self) -> None:
        """Pass everything on again."""
        self._refusing, self._corrupt, self._delay_s = False, None, 0.0
        self._call(self._flowing.set)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        done: Future[None] = Future()

        def call() -> None:
            function(*arguments)
            done.set_result(None)

        self._loop.call_soon_threadsafe(call)
        done.result()

    def _close_all(self, reset: bool) -> None:
        for writer in self._writers:
            if reset:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            onward_reader, onward = await asyncio.open_connection(*self._target)
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(onward)
        ways = [asyncio.create_task(self._carry(*way)) for way in ((reader, onward), (onward_reader, writer))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (writer, onward):
            self._writers.discard(end)
            end.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_CHUNK_BYTES):
                await self._flowing.wait()
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                # Read once, because another thread may heal the link at the same time.
                if (corrupt := self._corrupt) is not None:
                    changed = bytearray(data)
                    changed[corrupt.randrange(len(data))] ^= 1 << corrupt.randrange(8)
                    data = bytes(changed)
                writer.write(data)
                await writer.drain()
        except OSError:
            return


class Proxy:
    """All links, on an event loop in a separate thread. It ends with the process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="proxy", daemon=True).start()

    def link(self, target: str) -> Link:
        """A new link to HOST:PORT."""
        host, _, port = target.rpartition(":")

        async def make() -> Link:
            link = Link(self, (host, int(port)))
            await link.listen()
            return link

        return asyncio.run_coroutine_threadsafe(make(), self.loop).result()
