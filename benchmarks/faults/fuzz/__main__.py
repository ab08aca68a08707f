"""Sends hostile messages to every RPC of every service, and checks that the services keep their guarantees.

    python -m benchmarks.faults.fuzz --messages 100000 --seed 1 --json benchmarks/results/fuzz.json --check
    python -m benchmarks.faults.fuzz --rpcs Play --messages 100000 --seed 1 \\
        --json benchmarks/results/fuzz_simulators.json --check

The services are real processes: a learner, a quantizer, a relay, an actor, and an actor for simulators. The messages
are random bytes, mutated valid messages, and messages with extreme fields, also out of order. Each call must end with a
documented status, and the services must continue to work. --rpcs chooses methods, and starts only their services.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actorq.domain.contract import CONTRACT
from actorq.transport.options import CLIENT_OPTIONS
from actorq.transport.payload.checksums import SEALED, seal
from actorq.v1 import learner_pb2
from benchmarks.faults.fuzz.messages import mutated
from benchmarks.faults.fuzz.services import (
    first_publishing,
    log_faults,
    play,
    publish_first,
    started_services,
    still_running,
)
from benchmarks.faults.fuzz.targets import Member, Target, all_targets, processes_of, targets_of
from benchmarks.harness import Target as Goal
from benchmarks.harness import run_benchmark
from benchmarks.processes import ServiceProcess

# The statuses of docs/reference/limits.md. The benchmark calls no unknown methods. Its own cancellations do not count.
_DOCUMENTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    # For a message that does not match its checksum.
    grpc.StatusCode.DATA_LOSS,
}
_AT_A_TIME = 32
_ROLES = (learner_pb2.ACTOR_ROLE_ACTOR,) * 3 + (learner_pb2.ACTOR_ROLE_EVALUATOR,)
# A longer call hangs, even on a busy machine.
_CALL_S = 60.0
_READ_S = 0.1
_MOST_ANSWERS = 2
# The share of simulators that wait for the end of their streams.
_STAYING = 0.9
_WARM_UP = 0.25
_MOST_GROWTH_MB = 64.0
_MOST_HEALTH_S = 1.0
_MOST_EXAMPLES = 5


@dataclass
class Findings:
    """Results of the calls: statuses by service, examples of undocumented ones, slow health calls, memory."""

    sent: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    undocumented: list[dict[str, str]] = field(default_factory=list)
    undocumented_count: int = 0
    health_s: dict[str, float] = field(default_factory=dict)
    slow: list[dict[str, Any]] = field(default_factory=list)
    warm_mb: dict[str, float] = field(default_factory=dict)
    end_mb: dict[str, float] = field(default_factory=dict)

    def record(self, target: Target, messages: Sequence[bytes], status: grpc.StatusCode | None, details: str) -> None:
        """Record the end of a call. status: None if the service was still answering."""
        self.statuses[f"{target.service} {'left' if status is None else status.name}"] += 1
        if status is None or status in _DOCUMENTED:
            return
        self.undocumented_count += 1
        if len(self.undocumented) < _MOST_EXAMPLES:
            last = messages[-1].hex()[:400]
            self.undocumented.append(
                {"path": target.path, "status": status.name, "details": details[:300], "last_message": last}
            )


class Fuzzer:
    """Calls targets of running services until no messages are left."""

    def __init__(
        self, services: dict[str, ServiceProcess], targets: Sequence[Target], seed: int, messages: int
    ) -> None:
        self._services = services
        self._targets = targets
        self._seed = seed
        self._messages = messages
        self._members = 0
        self.findings = Findings()
        self._started = time.monotonic()
        self._open: Counter[tuple[str, str]] = Counter()
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def run(self) -> Findings:
        """Send all messages, and check the services at the same time."""
        options = [(name, value) for name, value in CLIENT_OPTIONS if "message_length" not in name]
        for name, service in self._services.items():
            # This client must be able to send messages above the limit, so that the service can refuse them.
            unlimited = [*options, ("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
            self._channels[name] = grpc.aio.insecure_channel(service.address, options=unlimited)
        watches = [asyncio.create_task(self._watch_health(name)) for name in self._services]
        workers = [asyncio.create_task(self._work(number)) for number in range(_AT_A_TIME)]
        await asyncio.gather(*workers)
        self.findings.end_mb = self._resident_mb()
        for watch in watches:
            watch.cancel()
        for channel in self._channels.values():
            await channel.close()
        return self.findings

    async def _work(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")
        weights = [target.weight for target in self._targets]
        while self.findings.sent < self._messages:
            self.findings.sent += 1
            if not self.findings.warm_mb and self.findings.sent >= _WARM_UP * self._messages:
                self.findings.warm_mb = self._resident_mb()
            target = rng.choices(self._targets, weights)[0]
            if self.findings.sent % 5000 == 0:
                megabytes = {name: round(mb) for name, mb in self._resident_mb().items()}
                took_s = round(time.monotonic() - self._started)
                print(f"{self.findings.sent} calls in {took_s} s; resident MB: {megabytes}", flush=True)
            member = await self._joined(rng) if target.path.endswith("/StreamTrajectories") else Member("", 0)
            messages, metadata = _sealed(target, target.messages(rng, member), rng)
            self._open[target.service, target.path] += 1
            # A simulator closes its side, so the actor must end the stream. Some simulators leave earlier.
            stays = target.rpc == "Play" and rng.random() < _STAYING
            status, details = await self._call(target, messages, metadata, stays)
            self._open[target.service, target.path] -= 1
            self.findings.record(target, messages, status, details)
            if status is grpc.StatusCode.UNAVAILABLE:
                self._require_alive()

    async def _joined(self, rng: random.Random) -> Member:
        self._members += 1
        request = learner_pb2.JoinRequest(
            actor_name=f"fuzz-{rng.randrange(50)}",
            incarnation=self._members,
            role=rng.choice(_ROLES),
            contract=CONTRACT,
        )
        stub = self._channels["learner"].unary_unary("/actorq.v1.LearnerService/Join")
        with suppress(grpc.aio.AioRpcError):
            answer = learner_pb2.JoinResponse.FromString(await stub(request.SerializeToString(), timeout=_CALL_S))
            return Member(request.actor_name, getattr(answer, "incarnation", 0) or request.incarnation)
        return Member(request.actor_name, request.incarnation)

    async def _call(
        self, target: Target, messages: Sequence[bytes], metadata: Sequence[tuple[str, str]], stays: bool
    ) -> tuple[grpc.StatusCode | None, str]:
        channel = self._channels[target.service]
        try:
            if not (target.streams_in or target.streams_out):
                await channel.unary_unary(target.path)(messages[-1], timeout=_CALL_S, metadata=metadata)
                return grpc.StatusCode.OK, ""
            if target.streams_in:
                call: Any = channel.stream_stream(target.path)(timeout=_CALL_S, metadata=metadata)
                await self._send(call, messages, _CALL_S if stays else _READ_S)
            else:
                call = channel.unary_stream(target.path)(messages[-1], timeout=_CALL_S, metadata=metadata)
            return await (_last(call) if stays else _read(call)), ""
        except grpc.aio.AioRpcError as error:
            # gRPC's message when the service ends a call while the client is still sending.
            status = None if error.details() == "Internal error from Core" else error.code()
            return status, error.details() or ""
        except asyncio.InvalidStateError:
            # The service ended the call while this benchmark was still sending.
            return await call.code(), await call.details() or ""

    async def _send(self, call: Any, messages: Sequence[bytes], patience_s: float) -> None:
        with suppress(asyncio.InvalidStateError):
            for number, message in enumerate(messages):
                await call.write(message)
                if number == 0 and len(messages) > 1:
                    # The first answer brings credit for a segment, or a quantizer that is ready for a graph.
                    reading = asyncio.ensure_future(call.read())
                    reading.add_done_callback(_taken)
                    await asyncio.wait((reading,), timeout=patience_s)
            await call.done_writing()

    async def _watch_health(self, name: str) -> None:
        service = self._services[name]
        # A separate connection, like a probe's.
        async with grpc.aio.insecure_channel(
            service.address, options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                started = time.monotonic()
                beside = [path for (service, path), count in self._open.items() if service == name and count]
                with suppress(grpc.aio.AioRpcError):
                    await stub.Check(health_pb2.HealthCheckRequest(), timeout=60.0)
                took_s = time.monotonic() - started
                self.findings.health_s[name] = max(self.findings.health_s.get(name, 0.0), took_s)
                if took_s > _MOST_HEALTH_S / 2 and len(self.findings.slow) < _MOST_EXAMPLES:
                    slow = {"service": name, "seconds": round(took_s, 3), "sent": self.findings.sent, "beside": beside}
                    self.findings.slow.append(slow)
                await asyncio.sleep(0.1)

    def _resident_mb(self) -> dict[str, float]:
        return {name: service.cost().resident_bytes / 1e6 for name, service in self._services.items()}

    def _require_alive(self) -> None:
        for name, service in self._services.items():
            if not service.process.is_running() or service.process.status() == "zombie":
                raise SystemExit(f"the {name} has ended: {''.join(service.log[-20:])}")


def _sealed(
    target: Target, messages: list[bytes], rng: random.Random
) -> tuple[list[bytes], tuple[tuple[str, str], ...]]:
    """The messages and the call's metadata. A tenth of the calls has checksums, and the last one may be wrong."""
    if rng.random() < 0.9:
        return messages, ()
    sealed = [seal(message) for message in messages]
    if rng.random() < 0.5 and not target.ends_something:
        sealed[-1] = mutated(sealed[-1], b"", rng)
    return sealed, (SEALED,)


def _taken(reading: asyncio.Future[Any]) -> None:
    """Ignore the error of a read. The call's end reports it, too."""
    if not reading.cancelled():
        reading.exception()


async def _last(call: Any) -> grpc.StatusCode:
    """Read all answers. Returns the status of the call."""
    while await call.read() is not grpc.aio.EOF:
        pass
    status: grpc.StatusCode = await call.code()
    return status


async def _read(call: Any) -> grpc.StatusCode | None:
    """Read some answers. Returns the status of the call, or None if it continues."""
    for _ in range(_MOST_ANSWERS):
        reading = asyncio.ensure_future(call.read())
        done, _ = await asyncio.wait((reading,), timeout=_READ_S)
        if not done:
            call.cancel()
            with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await reading
            return None
        if reading.result() is grpc.aio.EOF:
            status: grpc.StatusCode = await call.code()
            return status
    call.cancel()
    return None


def _measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[Goal]]:
    publishing = first_publishing()
    targets = targets_of(all_targets(publishing), arguments.rpcs)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, started_services(Path(folder), processes_of(targets)) as services:
        if "quantizer" in services:
            publish_first(services["quantizer"].address, publishing)
        fuzzer = Fuzzer(services, targets, arguments.seed, arguments.messages)
        found = asyncio.run(fuzzer.run())
        wall_s = time.monotonic() - started
        dead = [name for name, service in services.items() if service.process.status() == "zombie"]
        if "simulators" in services:
            play(services["simulators"].address)
        running = still_running(services)
        log_lines = {name: len(service.log) for name, service in services.items()}
        faults = log_faults(services)
        if arguments.logs:
            arguments.logs.mkdir(parents=True, exist_ok=True)
            for name, service in services.items():
                (arguments.logs / f"{name}.log").write_text("".join(service.log), encoding="utf-8")
    growth = {name: found.end_mb[name] - found.warm_mb[name] for name in found.end_mb}
    figures = {
        "seed": arguments.seed,
        "messages": found.sent,
        "messages_per_s": round(found.sent / wall_s, 1),
        "statuses": dict(sorted(found.statuses.items())),
        "undocumented": found.undocumented,
        "longest_health_call_s": {name: round(seconds, 3) for name, seconds in found.health_s.items()},
        "slow_health_calls": found.slow,
        "resident_mb_warm": {name: round(mb, 1) for name, mb in found.warm_mb.items()},
        "resident_mb_end": {name: round(mb, 1) for name, mb in found.end_mb.items()},
        "log_lines": log_lines,
        "log_faults": faults[:20],
    }
    print(json.dumps(figures, indent=2))
    goals = [
        Goal("messages sent", found.sent, arguments.messages, at_most=False),
        Goal("services that ended", len(dead), 0),
        Goal("services that do not end when they are asked to", len(running), 0),
        Goal("calls with an undocumented status", found.undocumented_count, 0),
        Goal("longest health call, s", max(found.health_s.values()), _MOST_HEALTH_S),
        Goal("growth of memory after the first quarter, MB", max(growth.values()), _MOST_GROWTH_MB),
        Goal("tracebacks and bad lines in logs", len(faults), 0),
    ]
    return figures, goals


def _flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=100_000, metavar="N", help="number of hostile messages")
    parser.add_argument(
        "--rpcs", nargs="+", default=(), metavar="NAME", help="only these RPCs, such as Play (default: all)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="seed of all messages")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="folder that keeps the services' logs")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", _flags, _measure))
