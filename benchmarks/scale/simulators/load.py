"""A load generator: simulators without an environment, each with its own connection, that measure their answers.

A process of its own, so that it does not share the server's Python lock. Reads what to do as a line of JSON on stdin,
writes "ready" once all streams play, and begins with the next line on stdin. Its last line is the result as JSON.
"""

import asyncio
import json
import sys
import time
from typing import Any

import grpc

from benchmarks.processes import connect

PLAY = "/actorq.v1.ExternalEnvironmentService/Play"
# A stream ends an episode after this number of steps.
EPISODE_STEPS = 100
# Seconds between two attempts to open a stream, and their number.
_AGAIN_S, _TRIES = 0.1, 300
_WARM_UP_STEPS = 5


class Stream:
    """One simulator. delays_us: microseconds from each step to its answer."""

    def __init__(self, address: str, opening: bytes, step: bytes, end: bytes) -> None:
        self._opening, self._step, self._end = opening, step, end
        self._channel = connect(address)
        self._call: Any = None
        self._steps = 0
        self.delays_us: list[int] = []

    async def open(self) -> None:
        """Open the stream and play some steps. Connects again while the server is unavailable."""
        for _ in range(_TRIES):
            self._call = self._channel.stream_stream(PLAY)()
            try:
                await self._call.write(self._opening)
                await self._read()
                break
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(_AGAIN_S)
        for _ in range(_WARM_UP_STEPS):
            await self._play()

    async def play_until(self, end: float) -> None:
        """Play until this time of `time.perf_counter`."""
        while (before := time.perf_counter()) < end:
            await self._play()
            self.delays_us.append(round(1e6 * (time.perf_counter() - before)))

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def _play(self) -> None:
        self._steps += 1
        await self._call.write(self._end if self._steps % EPISODE_STEPS == 0 else self._step)
        await self._read()

    async def _read(self) -> None:
        if await self._call.read() is grpc.aio.EOF:
            raise ConnectionError(f"the server has ended the stream: {await self._call.details()}")


async def _generate(asked: dict[str, Any]) -> dict[str, Any]:
    sent = {name: bytes.fromhex(asked["messages"][name]) for name in ("opening", "step", "end")}
    streams = [Stream(asked["address"], **sent) for _ in range(asked["streams"])]
    await asyncio.gather(*(stream.open() for stream in streams))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    begun, own = time.perf_counter(), time.process_time()
    await asyncio.gather(*(stream.play_until(begun + asked["seconds"]) for stream in streams))
    seconds, cpu_s = time.perf_counter() - begun, time.process_time() - own
    await asyncio.gather(*(stream.close() for stream in streams))
    delays = [delay for stream in streams for delay in stream.delays_us]
    answered = sum(bool(stream.delays_us) for stream in streams)
    return {"seconds": seconds, "cpu_s": cpu_s, "answered": answered, "delays_us": delays}


if __name__ == "__main__":
    found = asyncio.run(_generate(json.loads(sys.stdin.readline())))
    sys.stdout.write(f"{json.dumps(found)}\n")
