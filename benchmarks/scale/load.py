"""The rate at which actors can fill the replay: 200 streams without environments, compared with a bare gRPC server.

A real learner process receives segments of 256 kB. It has a tiny network, is paused, and its rate limiter is wide open.
A bare gRPC server takes turns with it and receives the same bytes from the same actors. Silent and hostile peers must
cost little, and the learner's memory must not grow. All actors live in this process, each with its own connection.

A segment has the default numbers of steps and environments. The size of an observation follows from the segment's.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from actorq.client import LearnerClient
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from benchmarks.harness import Meaning, Target, run_benchmark
from benchmarks.processes import ServiceProcess, serving
from benchmarks.scale.load_peers import Peer, attack
from benchmarks.scale.streams import ENVIRONMENTS, FakeActor, idle_learner

_STEPS = 16
# Bytes of a transition without its observation.
_ROW_BYTES = 8 + 4 + 3
# Small enough for the replay to be full before the memory is measured.
_REPLAY_BYTES = 256_000_000
_WARM_UP_S = 2.0
_SAMPLE_S = 1.0


@dataclass(frozen=True)
class Rate:
    """The figures of a phase: segments per second, seconds to acknowledge one, CPU seconds per segment on each side."""

    segments_per_s: float
    p50_s: float
    p99_s: float
    cpu_s: float
    client_cpu_s: float

    def row(self, transitions: int, size: int) -> dict[str, float]:
        """As figures."""
        return {
            "segments_per_s": round(self.segments_per_s, 1),
            "transitions_per_s": round(self.segments_per_s * transitions),
            "mb_per_s": round(self.segments_per_s * size / 1e6, 1),
            "acknowledged_p50_ms": round(1e3 * self.p50_s, 2),
            "acknowledged_p99_ms": round(1e3 * self.p99_s, 2),
            "server_cpu_us_per_segment": round(1e6 * self.cpu_s, 1),
            "client_cpu_us_per_segment": round(1e6 * self.client_cpu_s, 1),
        }


def spec_for(size: int) -> EnvironmentSpec:
    """An environment whose segments have about `size` bytes."""
    observations = size - _STEPS * ENVIRONMENTS * _ROW_BYTES
    numbers = max(1, observations // (4 * (_STEPS + 1) * ENVIRONMENTS))
    shape = ArraySpec((numbers,), "float32")
    return EnvironmentSpec("CartPole-v1", shape, ArraySpec((), "int64"), sizes=(2,))


class Fleet:
    """Actors on one server."""

    def __init__(self, server: ServiceProcess, streams: int, spec: EnvironmentSpec) -> None:
        self._server = server
        self._actors = [FakeActor(server.address, number, _STEPS, spec) for number in range(streams)]
        self.segment_bytes = self._actors[0].segment_bytes

    async def join(self) -> None:
        """Open all streams. The first one makes the learner build its networks."""
        for actor in self._actors:
            await actor.join()

    async def send(self, seconds: float) -> Rate:
        """Send on all streams for `seconds`."""
        for actor in self._actors:
            actor.delays.clear()
        stop, before, cost = asyncio.Event(), self._stored(), self._server.cost()
        started, own = time.monotonic(), time.process_time()
        sending = [asyncio.create_task(actor.send_until(stop)) for actor in self._actors]
        await asyncio.sleep(seconds)
        stop.set()
        await asyncio.gather(*sending)
        wall_s, count = time.monotonic() - started, self._stored() - before
        delays = np.concatenate([actor.delays for actor in self._actors])
        p50, p99 = np.percentile(delays, (50, 99))
        server_s, client_s = self._server.cost().cpu_s - cost.cpu_s, time.process_time() - own
        return Rate(count / wall_s, float(p50), float(p99), server_s / max(1, count), client_s / max(1, count))

    async def leave(self) -> None:
        """Hang up."""
        await asyncio.gather(*(actor.leave() for actor in self._actors))

    def _stored(self) -> int:
        return sum(actor.acknowledged for actor in self._actors)


async def _alternate(learner: Fleet, bare: Fleet, repeats: int, seconds: float) -> list[tuple[Rate, Rate]]:
    """Rates of both in turn, with alternating order, so that a slower machine affects both."""
    pairs = []
    for repeat in range(repeats):
        order = (learner, bare) if repeat % 2 == 0 else (bare, learner)
        rates = {fleet: await fleet.send(seconds) for fleet in order}
        pairs.append((rates[learner], rates[bare]))
    return pairs


async def _with_peers(
    learner: ServiceProcess, fleet: Fleet, arguments: argparse.Namespace, spec: EnvironmentSpec
) -> tuple[list[float], Counter[str]]:
    """Rates with silent and hostile peers, relative to the rate just before. Also the counts of refusals."""
    ratios, refusals = [], list[str]()
    for repeat in range(arguments.repeats):
        alone = await fleet.send(arguments.phase)
        silent = [Peer(learner.address, f"silent-{repeat}-{number}", spec) for number in range(arguments.silent)]
        hostile = [Peer(learner.address, f"hostile-{number}", spec) for number in range(arguments.hostile)]
        calls = [await peer.open() for peer in silent]
        refused = asyncio.Event()
        attacks = [
            asyncio.create_task(attack(peer, _STEPS, spec, seed, refusals, refused))
            for seed, peer in enumerate(hostile)
        ]
        if attacks:
            # A phase may be shorter than the time to connect.
            await refused.wait()
        beside = await fleet.send(arguments.phase)
        for task in attacks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for call in calls:
            call.cancel()
        for peer in (*silent, *hostile):
            await peer.close()
        ratios.append(beside.segments_per_s / alone.segments_per_s)
    return ratios, Counter(refusals)


async def _memory(learner: ServiceProcess, fleet: Fleet, seconds: float) -> list[tuple[float, int]]:
    """(seconds, resident bytes) of the learner while all streams send."""
    samples, started = [], time.monotonic()

    async def sample() -> None:
        while True:
            samples.append((time.monotonic() - started, psutil.Process(learner.process.pid).memory_info().rss))
            await asyncio.sleep(_SAMPLE_S)

    sampling = asyncio.create_task(sample())
    await fleet.send(seconds)
    sampling.cancel()
    return samples


def growth(samples: list[tuple[float, int]]) -> float:
    """Median memory of the last quarter relative to the second quarter. The replay fills in the first quarter."""
    quarter = max(1, len(samples) // 4)
    values = [resident for _, resident in samples]
    return statistics.median(values[-quarter:]) / statistics.median(values[quarter : 2 * quarter] or values) - 1.0


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=200, metavar="N", help="number of actors (default: 200)")
    parser.add_argument("--bytes", type=int, default=256_000, metavar="N", help="segment size (default: 256000)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="repeats per comparison (default: 5)")
    parser.add_argument("--phase", type=float, default=10.0, metavar="S", help="seconds per phase (default: 10)")
    parser.add_argument(
        "--seconds", type=float, default=300.0, metavar="S", help="duration of the memory test (default: 300)"
    )
    parser.add_argument("--silent", type=int, default=20, metavar="N", help="silent peers (default: 20)")
    parser.add_argument("--hostile", type=int, default=5, metavar="N", help="hostile peers (default: 5)")


MEANINGS = (
    Meaning(
        "transitions into the replay over those through a bare gRPC stream",
        "What share of a bare gRPC stream's transitions does the learner store?",
        "Checks and storage take most of the time. Plan a learner with the measured transitions per second.",
        unit="%",
        scale=100,
    ),
)


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    # One event loop for all phases: gRPC's pollers outlive a loop and log errors.
    return asyncio.run(_measure_all(arguments))


async def _measure_all(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Target]]:
    spec = spec_for(arguments.bytes)
    capacity = max(4 * _STEPS * ENVIRONMENTS, _REPLAY_BYTES // (4 * spec.observations.shape[0] + _ROW_BYTES))
    with (
        tempfile.TemporaryDirectory() as folder,
        idle_learner(Path(folder) / "run", _STEPS, capacity) as learner,
        serving("benchmarks.scale.load_baseline") as server,
    ):
        fleet, bare = (Fleet(each, arguments.streams, spec) for each in (learner, server))
        try:
            await fleet.join()
            await bare.join()
            with LearnerClient(learner.address) as client:
                await asyncio.to_thread(client.pause)
            for each in (fleet, bare):
                await each.send(min(_WARM_UP_S, arguments.phase))
            pairs = await _alternate(fleet, bare, arguments.repeats, arguments.phase)
            peers, refusals = await _with_peers(learner, fleet, arguments, spec)
            samples = await _memory(learner, fleet, arguments.seconds)
        finally:
            await fleet.leave()
            await bare.leave()
    size, transitions = fleet.segment_bytes, _STEPS * ENVIRONMENTS
    ratio = statistics.median(stored.segments_per_s / dropped.segments_per_s for stored, dropped in pairs)
    figures = {
        "streams": arguments.streams,
        "segment_bytes": size,
        "segment_transitions": transitions,
        "pairs": [
            {"learner": stored.row(transitions, size), "bare": dropped.row(transitions, size)}
            for stored, dropped in pairs
        ],
        "ratio": round(ratio, 3),
        "ratio_with_peers": [round(each, 3) for each in peers],
        "refusals": dict(refusals),
        "memory_mb": [[round(at, 1), round(resident / 1e6, 1)] for at, resident in samples],
    }
    print(json.dumps({**figures, "memory_mb": "..."}, indent=1), flush=True)
    return figures, [
        Target("transitions into the replay over those through a bare gRPC stream", ratio, 0.6, at_most=False),
        Target("loss of throughput to silent and hostile peers", 1.0 - statistics.median(peers), 0.1),
        Target("growth of the learner's memory", growth(samples), 0.05),
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
