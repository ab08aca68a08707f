"""Time from a policy's publication until the last of hundreds of subscribers has the whole, verified policy.

Everything is on loopback: real quantizer and relay processes, and subscribers in a few processes, each with its own
connection. The baselines take turns in the same run: a bare grpc.aio server sends the same bytes on as many streams,
with one prebuilt message each, and all messages on one plain stream. The quantizing time (`emit_ms`, and its CPU time)
is subtracted, because it does not depend on subscribers. The checkpoint's upload is not subtracted.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import psutil

from actorq.client import QuantizerClient
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.v1 import quantizer_pb2
from benchmarks.harness import Target, run_benchmark
from benchmarks.processes import Cost, ServiceProcess, serving
from benchmarks.scale.fanout_baseline import ALL, EACH
from benchmarks.scale.fanout_clients import SCHEME, WATCH
from benchmarks.scale.fanout_plot import plot
from benchmarks.scale.watchers import Source

SPEC = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), sizes=(2,))
# The int8 policy of this network has about 150 kB.
_HIDDEN = (256, 256, 256)
_PROCESSES = 2
_TICK_S = 0.01
# Consecutive versions with a slow subscriber, which reads only the beginning of the first.
_BLOCK = 3


class Subscribers:
    """Processes of subscribers. Waits until all have a policy."""

    def __init__(self, logs: list[IO[str]]) -> None:
        self._logs = logs
        self._read("subscribed")

    def all_have(self) -> float:
        """Wait until all have the next policy. Returns when the last one got it."""
        return max(self._read("last"))

    def _read(self, name: str) -> list[float]:
        return [json.loads(log.readline())[name] for log in self._logs]


@contextmanager
def subscribing(addresses: list[str], method: str, count: int, together: int = 1) -> Iterator[Subscribers]:
    """`count` subscribers, with a process for each address. All have subscribed when the block begins."""
    with ExitStack() as stack:
        logs = []
        for number, address in enumerate(addresses):
            share = count // len(addresses) + (number < count % len(addresses))
            flags = ["--count", str(share), "--together", str(together)]
            command = [sys.executable, "-m", "benchmarks.scale.fanout_clients", address, method, *flags]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            logs.append(process.stdout)
        yield Subscribers(logs)


class BareServer:
    """The process of fanout_baseline.py."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self.service = ServiceProcess(self._output.readline().strip(), psutil.Process(process.pid))

    def send(self, method: str) -> float:
        """Send on all streams of a method. Returns when sending began."""
        self._input.write(f"{method}\n")
        self._input.flush()
        return float(self._output.readline())


@contextmanager
def bare_server(size: int, together: int) -> Iterator[BareServer]:
    """Run the bare server's process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.scale.fanout_baseline",
        "--size",
        str(size),
        "--together",
        str(together),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield BareServer(process)
        finally:
            process.kill()


class Way:
    """One way from a policy to all subscribers: the seconds of each send, and the server's CPU time."""

    def __init__(self, server: ServiceProcess, send: Callable[[], float], subscribers: Subscribers) -> None:
        self.server = server
        self.seconds: list[float] = []
        self.cpu_s: list[float] = []
        self._send = send
        self._subscribers = subscribers

    def run(self) -> float:
        """Send once. Returns the seconds until the last subscriber has the policy."""
        before = self.server.cost()
        begun = self._send()
        self.seconds.append(self._subscribers.all_have() - begun)
        self.cpu_s.append(self.server.cost().cpu_s - before.cpu_s)
        return self.seconds[-1]


class Publications:
    """Publishes to one quantizer. `send` returns when publication would have begun if quantizing took no time."""

    def __init__(self, quantizer: ServiceProcess) -> None:
        self._source = Source(quantizer.address, _HIDDEN, SPEC)
        self.emit_seconds: list[float] = []
        self.policy_bytes = 0

    def send(self) -> float:
        """Publish a version."""
        begun = time.monotonic()
        receipt = self._source.publish()
        self.emit_seconds.append(receipt.emit_seconds)
        self.policy_bytes = receipt.policies[0].size_bytes
        return begun + receipt.emit_seconds

    def close(self) -> None:
        """End the stream."""
        self._source.close()


@contextmanager
def stalled(address: str) -> Iterator[None]:
    """A subscriber that reads only the first message."""
    with QuantizerClient(address) as client:
        call = client.stub.WatchPolicies(quantizer_pb2.WatchPoliciesRequest(scheme=SCHEME))
        next(call)
        yield


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    count, repeats = arguments.subscribers, arguments.versions
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        enter = stack.enter_context
        one, direct_publications = _quantizer(stack, Path(folder) / "direct")
        unwatched = one.cost()
        for _ in range(repeats):
            direct_publications.send()
        alone = one.cost()
        emit_cpu_s = (alone.cpu_s - unwatched.cpu_s) / repeats
        direct = _watching(stack, [one.address] * _PROCESSES, count, direct_publications, one)
        idle = one.cost()
        root, relayed_publications = _quantizer(stack, Path(folder) / "relayed")
        relays = [enter(serving("quantizer_service", "--upstream", root.address)) for _ in range(_PROCESSES)]
        relay_alone = relays[0].cost()
        relayed = _watching(stack, [relay.address for relay in relays], count, relayed_publications, root)
        relay_idle = relays[0].cost()
        bare = enter(bare_server(direct_publications.policy_bytes, count))
        each_subscribers = enter(subscribing([bare.service.address] * _PROCESSES, EACH, count))
        each = Way(bare.service, lambda: bare.send(EACH), each_subscribers)
        plain_subscriber = enter(subscribing([bare.service.address], ALL, 1, together=count))
        plain = Way(bare.service, lambda: bare.send(ALL), plain_subscriber)

        ways = {"direct": direct, "relayed": relayed, "bare streams": each, "plain stream": plain}
        _take_turns(ways.values(), repeats)
        after = one.cost()
        direct_cpu_us, bare_cpu_us = _cpu_us(direct, count, emit_cpu_s), _cpu_us(each, count)
        seconds = {name: list(way.seconds) for name, way in ways.items()}
        slow_seconds, without_seconds, slow_memory = _with_a_slow_one(direct, repeats)
        figures = {
            "subscribers": count,
            "versions": repeats,
            "policy_bytes": direct_publications.policy_bytes,
            "emit_ms": _milliseconds(direct_publications.emit_seconds),
            "emit_cpu_ms": round(1e3 * emit_cpu_s, 2),
            **{name.replace(" ", "_"): _figures(times) for name, times in seconds.items()},
            "server_cpu_us_per_subscriber": {"direct": direct_cpu_us, "bare streams": bare_cpu_us},
            "with_a_slow_one": {"ms": _milliseconds(slow_seconds), "without_ms": _milliseconds(without_seconds)},
            "memory": {
                "quantizer_mb": _megabytes(alone),
                "with_subscribers_mb": _megabytes(idle),
                "after_versions_mb": _megabytes(after),
                "after_a_slow_one_mb": slow_memory,
                "kb_per_subscriber": _kilobytes_each(alone, after, count),
                "relay_mb": _megabytes(relay_alone),
                "relay_kb_per_subscriber": _kilobytes_each(relay_alone, relay_idle, count // _PROCESSES),
            },
        }
    figures["ratios"] = {
        "over bare streams": _over(seconds["direct"], seconds["bare streams"]),
        "over plain stream": _over(seconds["direct"], seconds["plain stream"]),
        "server CPU over bare streams": round(direct_cpu_us / bare_cpu_us, 3),
        "relayed over direct": _over(seconds["relayed"], seconds["direct"]),
        "with a slow one over without": _over_in_blocks(slow_seconds, without_seconds),
    }
    print(json.dumps(figures, indent=2))
    if arguments.plot:
        all_seconds = {**seconds, "direct, later": without_seconds, "with one slow": slow_seconds}
        plot({name: [1e3 * each for each in times] for name, times in all_seconds.items()}, count, arguments.plot)
    return figures, _targets(figures)


def _quantizer(stack: ExitStack, store: Path) -> tuple[ServiceProcess, Publications]:
    """A quantizer with one published version."""
    service = stack.enter_context(serving("quantizer_service", "--store", str(store)))
    publications = Publications(service)
    stack.callback(publications.close)
    publications.send()
    return service, publications


def _watching(
    stack: ExitStack, addresses: list[str], count: int, publications: Publications, server: ServiceProcess
) -> Way:
    subscribers = stack.enter_context(subscribing(addresses, WATCH, count))
    # The version that already exists.
    subscribers.all_have()
    return Way(server, publications.send, subscribers)


def _take_turns(ways: Collection[Way], repeats: int) -> None:
    for way in ways:
        # Not counted: buffers grow during the first send.
        way.run()
        way.seconds.clear()
        way.cpu_s.clear()
    for _ in range(repeats):
        for way in ways:
            way.run()


def _cpu_us(way: Way, subscribers: int, of_emission_s: float = 0.0) -> float:
    """The server's CPU time for each subscriber and send."""
    # The kernel counts CPU time in hundredths of a second.
    total = max(_TICK_S, sum(way.cpu_s) - of_emission_s * len(way.cpu_s))
    return round(1e6 * total / len(way.cpu_s) / subscribers, 1)


def _with_a_slow_one(direct: Way, repeats: int) -> tuple[list[float], list[float], float]:
    """Seconds with and without a subscriber that does not read, in blocks. Also the final memory in MB with it."""
    with_it: list[float] = []
    without: list[float] = []

    def block() -> list[float]:
        # The first is not counted, because connecting and disconnecting take CPU time too.
        return [direct.run() for _ in range(1 + _BLOCK)][1:]

    while len(with_it) < repeats:
        without += block()
        with stalled(direct.server.address):
            with_it += block()
            memory = _megabytes(direct.server.cost())
    return with_it, without, memory


def _figures(seconds: list[float]) -> dict[str, Any]:
    return {"ms": _milliseconds(seconds), "all_ms": [round(1e3 * value, 1) for value in seconds]}


def _targets(figures: dict[str, Any]) -> list[Target]:
    ratios, memory = figures["ratios"], figures["memory"]
    return [
        Target("time to the last subscriber over one plain stream of the same bytes", ratios["over plain stream"], 5.0),
        Target("the same over as many bare streams", ratios["over bare streams"], 3.0),
        Target("CPU of the quantizer over that of a bare server", ratios["server CPU over bare streams"], 2.5),
        Target("with one slow subscriber over without", ratios["with a slow one over without"], 1.25),
        Target("through two relays over direct", ratios["relayed over direct"], 2.0),
        Target("kB of the quantizer's memory for each subscriber", memory["kb_per_subscriber"], 200.0),
    ]


def _over(seconds: list[float], others: list[float]) -> float:
    return round(statistics.median(seconds) / statistics.median(others), 3)


def _over_in_blocks(seconds: list[float], others: list[float]) -> float:
    """Median over the blocks. Neighboring blocks have a similar load of the machine."""
    starts = range(0, len(seconds), _BLOCK)
    blocks = [_over(seconds[at : at + _BLOCK], others[at : at + _BLOCK]) for at in starts]
    return round(statistics.median(blocks), 3)


def _milliseconds(seconds: list[float]) -> float:
    return round(1e3 * statistics.median(seconds), 2)


def _megabytes(cost: Cost) -> float:
    return round(cost.resident_bytes / 1e6, 1)


def _kilobytes_each(before: Cost, after: Cost, count: int) -> float:
    return round((after.resident_bytes - before.resident_bytes) / 1e3 / count, 1)


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--subscribers", type=int, default=500, metavar="N", help="number of them (default: 500)")
    parser.add_argument("--versions", type=int, default=20, metavar="N", help="published versions (default: 20)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw all times into FILE, such as fanout.png")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
