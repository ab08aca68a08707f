"""The cost of a stream: N actors send to a real learner process, and N watchers read from a real quantizer process.

All clients live in this process, each with its own connection, like pods. CPU time is that of the service. The clients
use the same machine, so transitions per second are a joint limit of both sides.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from actorq import wire
from actorq.domain.contract import CONTRACT
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.status import ActorReport
from actorq.domain.trajectory import PolicySpan, Segment
from actorq.telemetry.process_stats import measure_process
from actorq.transport.payload.checksums import SEALED, seal, unseal
from actorq.v1 import learner_pb2, learner_pb2_grpc
from benchmarks.harness import Target, run_benchmark
from benchmarks.processes import ServiceProcess, connect, serving
from benchmarks.scale.watchers import measure_watchers

SPEC = EnvironmentSpec("CartPole-v1", ArraySpec((4,), "float32"), ArraySpec((), "int64"), sizes=(2,))
ENVIRONMENTS = 8
_STREAM = "/actorq.v1.LearnerService/StreamTrajectories"
_FIRST_REPORTS = 2
# The kernel counts CPU time in ticks of this length.
_TICK_S = 0.01


def segment(steps: int, spec: EnvironmentSpec = SPEC) -> Segment:
    """A segment of an environment with two actions, acted in int8, without the end of an episode."""
    shape = (steps, ENVIRONMENTS)
    rng = np.random.default_rng(1)
    return Segment(
        sequence=1,
        spans=(PolicySpan(0, 1, "int8"),),
        episodes=(),
        columns={
            "observations": rng.standard_normal((steps + 1, ENVIRONMENTS, *spec.observations.shape), np.float32),
            "actions": rng.integers(2, size=shape),
            "rewards": np.ones(shape, np.float32),
            "terminated": np.zeros(shape, np.bool_),
            "truncated": np.zeros(shape, np.bool_),
            "valid": np.ones(shape, np.bool_),
            "ages": np.zeros(ENVIRONMENTS, np.uint8),
        },
    )


class FakeActor:
    """An actor's stream without an actor. Sends reports and segments at the requested rate, within the credit.

    delays: seconds from each segment to its acknowledgement.
    """

    def __init__(self, address: str, number: int, steps: int, spec: EnvironmentSpec = SPEC) -> None:
        self._name = f"actor-{number}"
        self._spec = spec
        self._sent_at: deque[float] = deque()
        self.delays: list[float] = []
        self._channel = connect(address)
        self._stub = learner_pb2_grpc.LearnerServiceStub(self._channel)
        # With checksums, like real actors' streams.
        self._open = self._channel.stream_stream(
            _STREAM,
            request_serializer=lambda request: seal(request.SerializeToString()),
            response_deserializer=lambda data: learner_pb2.StreamTrajectoriesResponse.FromString(bytes(unseal(data))),
        )
        self._message = learner_pb2.StreamTrajectoriesRequest(segment=wire.segment_to_proto(segment(steps, spec)))
        self._report = ActorReport(1, "int8", 0, 0.0, 0, (), replace(measure_process("x", "actor"), name=self._name))
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self._sent = self._credit = self._acknowledged = 0

    async def join(self) -> None:
        """Join, open the stream, and wait for its first answer."""
        role = wire.role_to_proto("actor")
        joined = await self._stub.Join(learner_pb2.JoinRequest(actor_name=self._name, role=role, contract=CONTRACT))
        self._call = self._open(metadata=(SEALED,))
        opening = learner_pb2.StreamOpen(
            actor_name=self._name,
            incarnation=joined.incarnation,
            environment=wire.environment_to_proto(self._spec),
        )
        await self._call.write(learner_pb2.StreamTrajectoriesRequest(open=opening))
        self._reader = asyncio.create_task(self._read())
        # Wakes a waiting sender at the end of the stream.
        self._reader.add_done_callback(lambda _: self._answered.set())
        await self._until(lambda: self._credit > 0)

    async def report(self, count: int, period_s: float) -> None:
        """Send `count` reports, one per period."""
        for _ in range(count):
            message = wire.actor_report_to_proto(self._report)
            await self._call.write(learner_pb2.StreamTrajectoriesRequest(report=message))
            await asyncio.sleep(period_s)

    async def send(self, count: int) -> None:
        """Send `count` segments within the credit, and wait until all are stored."""
        for _ in range(count):
            await self._send_one()
        await self._until(lambda: self._acknowledged >= self._sent)

    async def send_until(self, stop: asyncio.Event) -> None:
        """Send segments within the credit until `stop` is set, and wait until all are stored."""
        while not stop.is_set():
            await self._send_one()
        await self._until(lambda: self._acknowledged >= self._sent)

    async def leave(self) -> None:
        """Hang up."""
        if self._reader is not None:
            self._reader.cancel()
        await self._channel.close()

    @property
    def acknowledged(self) -> int:
        """Number of stored segments."""
        return self._acknowledged

    @property
    def segment_bytes(self) -> int:
        """Size of a segment's message."""
        return int(self._message.ByteSize())

    async def _send_one(self) -> None:
        await self._until(lambda: self._credit > self._sent)
        self._sent += 1
        self._sent_at.append(time.monotonic())
        self._message.segment.sequence = self._sent
        await self._call.write(self._message)

    async def _until(self, condition: Any) -> None:
        while not condition():
            self._answered.clear()
            await self._answered.wait()
            if self._reader is not None and self._reader.done():
                await self._reader
                raise ConnectionError(f"{self._name}: the server ended the stream")

    async def _read(self) -> None:
        async for answer in self._call:
            self._credit = answer.credit_through_sequence
            now, stored = time.monotonic(), answer.acknowledged_sequence - self._acknowledged
            self.delays += [now - self._sent_at.popleft() for _ in range(stored)]
            self._acknowledged += stored
            self._answered.set()


async def measure_actors(
    learner: ServiceProcess, streams: int, steps: int, segments: int, reports: int
) -> dict[str, float]:
    """Costs with this many streams: idle streams with a report per second, then `segments` segments in all."""
    # The first stream makes the learner build networks and replay, which is not a cost of streams.
    first = FakeActor(learner.address, streams, steps)
    await first.join()
    await first.send(1)
    alone = learner.cost()
    actors = [FakeActor(learner.address, number, steps) for number in range(streams)]
    try:
        started = time.monotonic()
        for actor in actors:
            await actor.join()
        joined_s, joined = time.monotonic() - started, learner.cost()
        await asyncio.gather(*(actor.report(_FIRST_REPORTS, 0.0) for actor in actors))
        before = learner.cost()
        started = time.monotonic()
        await asyncio.gather(*(actor.report(reports, 1.0) for actor in actors))
        idle_s, idle = time.monotonic() - started, learner.cost()
        each = max(2, segments // streams)
        await asyncio.gather(*(actor.send(1) for actor in actors))
        begun = learner.cost()
        started = time.monotonic()
        await asyncio.gather(*(actor.send(each) for actor in actors))
        sending_s, sent = time.monotonic() - started, learner.cost()
    finally:
        await asyncio.gather(*(actor.leave() for actor in (first, *actors)))
    total = each * streams
    figures = {
        "streams": streams,
        "segment_transitions": steps * ENVIRONMENTS,
        "segment_bytes": actors[0].segment_bytes,
        "join_cpu_ms": 1e3 * (joined.cpu_s - alone.cpu_s) / streams,
        "join_wall_ms": 1e3 * joined_s / streams,
        "resident_kb_per_stream": (idle.resident_bytes - alone.resident_bytes) / 1e3 / streams,
        "cpu_us_per_report": 1e6 * (idle.cpu_s - before.cpu_s) / (reports * streams),
        "reporting_cpu_fraction": (idle.cpu_s - before.cpu_s) / idle_s,
        "cpu_us_per_segment": 1e6 * (sent.cpu_s - begun.cpu_s) / total,
        "segments_per_s": total / sending_s,
        "transitions_per_s": total * steps * ENVIRONMENTS / sending_s,
        "transitions_per_cpu_s": total * steps * ENVIRONMENTS / max(_TICK_S, sent.cpu_s - begun.cpu_s),
    }
    return {name: round(value, 3) for name, value in figures.items()}


def idle_learner(directory: Path, steps: int, capacity: int = 1_000_000) -> Any:
    """A learner that stores and never trains, because its replay never reaches the minimum size."""
    tree = {
        "environments_per_actor": ENVIRONMENTS,
        "max_environment_steps": 10**12,
        "replay": {"capacity": capacity, "min_size": capacity // 2},
        "rate_limiter": {"samples_per_insert": 1.0, "error_buffer": 1e15},
        "actor": {"segment_length": steps},
        "checkpoint": {"period_s": 3_600.0},
    }
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(json.dumps(tree))
    flags = ("--config", str(directory / "config.yaml"), "--run-directory", str(directory / "run"))
    # No quantizer, because this measurement needs no policies.
    return serving("learner_service", *flags, "--quantizer", "127.0.0.1:1")


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--streams", type=int, nargs="+", default=[1, 10, 100, 1_000], metavar="N", help="numbers of streams"
    )
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[16, 512], metavar="N", help="environment steps of a segment"
    )
    parser.add_argument("--segments", type=int, default=8_000, metavar="N", help="sent segments (default: 8000)")
    parser.add_argument("--reports", type=int, default=10, metavar="N", help="reports per stream (default: 10)")
    parser.add_argument("--versions", type=int, default=30, metavar="N", help="watched policies (default: 30)")


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    # One event loop for all phases: gRPC's pollers outlive a loop and log errors.
    return asyncio.run(_measure_all(arguments))


async def _measure_all(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    figures: dict[str, Any] = {"actors": [], "watchers": []}
    with tempfile.TemporaryDirectory() as folder:
        for steps in arguments.steps:
            for streams in arguments.streams:
                with idle_learner(Path(folder) / f"{steps}-{streams}", steps) as learner:
                    segments = arguments.segments if steps <= 64 else arguments.segments // 4
                    figures["actors"].append(await measure_actors(learner, streams, steps, segments, arguments.reports))
                print(json.dumps(figures["actors"][-1]), flush=True)
        for hidden in ((64, 64), (512, 512, 512)):
            store = Path(folder) / f"policies-{hidden[0]}"
            figures["watchers"] += await measure_watchers(store, hidden, arguments.streams, arguments.versions, SPEC)
    costs = [row["cpu_us_per_segment"] for row in figures["actors"] if row["segment_transitions"] <= 512]
    growth = costs[-1] / costs[0] if len(costs) > 1 else 1.0
    return figures, [
        Target("CPU of a small segment at the learner, us, with most streams", costs[-1], 1_000.0),
        Target("CPU of a segment with most streams over that with fewest", growth, 2.0),
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
