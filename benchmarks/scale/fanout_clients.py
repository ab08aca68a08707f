"""One process of subscribers for fanout.py. Each subscriber has its own connection, like a pod.

Prints a line of JSON when all have subscribed, and one for each policy when all have the whole policy. `first` and
`last` are times on the monotonic clock, which all processes of a machine share.
"""

import argparse
import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actorq.domain.policy import Variant
from actorq.v1 import quantizer_pb2
from benchmarks.processes import connect
from benchmarks.scale.fanout_baseline import ALL, EACH
from quantizer_service.serving.policy_stream import StreamedPolicies

SCHEME = "int8"
WATCH = "/actorq.v1.QuantizerService/WatchPolicies"


@dataclass
class Arrivals:
    """The times at which this process's subscribers got each policy."""

    subscribers: int

    def __post_init__(self) -> None:
        self._times: dict[int, list[float]] = {}

    def record(self, version: int) -> None:
        """Record that one more subscriber has the version."""
        times = self._times.setdefault(version, [])
        times.append(time.monotonic())
        if len(times) == self.subscribers:
            print(json.dumps({"version": version, "first": times[0], "last": times[-1]}), flush=True)
            del self._times[version]


def _policies() -> Callable[[bytes], int | None]:
    """Checks policies as a relay does. Returns the version of each complete policy."""
    assembler = StreamedPolicies(Variant(SCHEME))

    def receive(message: bytes) -> int | None:
        delivery = assembler.add(message)
        return delivery.descriptor.version if delivery else None

    return receive


def _messages(each: int, digest: bool) -> Callable[[bytes], int | None]:
    """Counts messages, and hashes them if `digest` is set. Returns a number after every `each` messages."""
    count = 0

    def receive(message: bytes) -> int | None:
        nonlocal count
        count += 1
        if digest:
            hashlib.sha256(message).digest()
        return count // each if count % each == 0 else None

    return receive


async def _subscribe(address: str, method: str, together: int, arrivals: Arrivals, ready: Callable[[], None]) -> None:
    request = quantizer_pb2.WatchPoliciesRequest(scheme=SCHEME).SerializeToString() if method == WATCH else b""
    take = _policies() if method == WATCH else _messages(together, digest=method == EACH)
    async with connect(address) as channel:
        call: Any = channel.unary_stream(method)(request)
        await call.initial_metadata()
        ready()
        async for message in call:
            if (version := take(message)) is not None:
                arrivals.record(version)


async def _run(arguments: argparse.Namespace) -> None:
    arrivals, subscribed = Arrivals(arguments.count), 0

    def ready() -> None:
        nonlocal subscribed
        subscribed += 1
        if subscribed == arguments.count:
            print(json.dumps({"subscribed": subscribed}), flush=True)

    streams = [
        _subscribe(arguments.address, arguments.method, arguments.together, arrivals, ready)
        for _ in range(arguments.count)
    ]
    await asyncio.gather(*streams)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("method", choices=(WATCH, EACH, ALL))
    parser.add_argument("--count", type=int, required=True, metavar="N", help="subscribers")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="messages per policy (default: 1)")
    asyncio.run(_run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
