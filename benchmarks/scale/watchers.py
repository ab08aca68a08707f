"""The cost of policy watchers at the quantizer: the second half of streams.py."""

import asyncio
import json
import queue
import time
from pathlib import Path
from typing import Any

import numpy as np

from actorq import wire
from actorq.client import QuantizerClient
from actorq.config.run_config import RunConfig
from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Receipt
from actorq.v1 import quantizer_pb2, quantizer_pb2_grpc
from benchmarks.processes import ServiceProcess, connect, serving
from learner_service.algorithms import make_algorithm
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters
from learner_service.training.publisher import Publisher, Snapshot

_PATIENCE_S = 60.0


class Watcher:
    """Reads policies and drops them. `version` is the newest complete version."""

    def __init__(self, address: str, arrived: asyncio.Event) -> None:
        self.version = 0
        self._arrived = arrived
        self._channel = connect(address)
        self._task = asyncio.create_task(self._watch())

    async def leave(self) -> None:
        """Hang up."""
        self._task.cancel()
        await self._channel.close()

    async def _watch(self) -> None:
        stub = quantizer_pb2_grpc.QuantizerServiceStub(self._channel)
        version, missing = 0, 0
        async for message in stub.WatchPolicies(quantizer_pb2.WatchPoliciesRequest(scheme="int8")):
            if message.WhichOneof("payload") == "policy":
                version, missing = message.policy.version, message.policy.size_bytes
            else:
                missing -= len(message.part.chunk)
                if missing <= 0:
                    self.version = version
                    self._arrived.set()


class Source:
    """A learner's publisher with random weights. `publish` returns when the quantizer has emitted a version."""

    def __init__(self, address: str, hidden: tuple[int, ...], spec: EnvironmentSpec) -> None:
        config = RunConfig.model_validate({"dqn": {"hidden_sizes": hidden}, "energy": {"enabled": False}})
        self._policy = make_algorithm(config, spec).policy
        self._shape = (config.publication.calibration_size, *spec.observations.shape)
        self._receipts: queue.Queue[Receipt] = queue.Queue()
        self._client = QuantizerClient(address)
        self._publisher = Publisher(self._client, wire.Opening("benchmark", "int8"), self._receipts.put)
        self._publisher.start(export_policy_graph(self._policy, spec))
        self._rng = np.random.default_rng(1)

    def publish(self) -> Receipt:
        """Publish the next version."""
        calibration = {OBSERVATIONS: self._rng.standard_normal(self._shape, np.float32)}
        parameters = snapshot_parameters(self._policy)
        self._publisher.offer(Snapshot(self._publisher.version, parameters, calibration, time.time()))
        return self._receipts.get(timeout=_PATIENCE_S)

    def close(self) -> None:
        """End the stream."""
        self._publisher.close()
        self._client.close()


async def measure_watchers(
    store: Path, hidden: tuple[int, ...], counts: list[int], versions: int, spec: EnvironmentSpec
) -> list[dict[str, Any]]:
    """Costs of one policy with no watcher and with each of `counts`."""
    with serving("quantizer_service", "--store", str(store)) as quantizer:
        source = Source(quantizer.address, hidden, spec)
        try:
            alone: dict[str, Any] | None = None
            rows = []
            for count in (0, *counts):
                row = await _measure(quantizer, source, count, versions)
                alone = alone or row
                if count:
                    extra_ms = row["cpu_ms_per_policy"] - alone["cpu_ms_per_policy"]
                    row["cpu_us_per_policy_and_watcher"] = round(1e3 * extra_ms / count, 2)
                rows.append({"hidden_sizes": hidden, **row})
                print(json.dumps(rows[-1]), flush=True)
            return rows
        finally:
            source.close()


async def _measure(quantizer: ServiceProcess, source: Source, count: int, versions: int) -> dict[str, Any]:
    receipt = await asyncio.to_thread(source.publish)
    before, arrived = quantizer.cost(), asyncio.Event()
    watchers = [Watcher(quantizer.address, arrived) for _ in range(count)]
    try:
        await _all_have(watchers, receipt.version, arrived)
        settled, started = quantizer.cost(), time.monotonic()
        for _ in range(versions):
            receipt = await asyncio.to_thread(source.publish)
            await _all_have(watchers, receipt.version, arrived)
        wall_s, after = time.monotonic() - started, quantizer.cost()
    finally:
        await asyncio.gather(*(watcher.leave() for watcher in watchers))
    return {
        "watchers": count,
        "policy_bytes": receipt.policies[0].size_bytes,
        "cpu_ms_per_policy": round(1e3 * (after.cpu_s - settled.cpu_s) / versions, 3),
        "wall_ms_per_policy": round(1e3 * wall_s / versions, 3),
        "resident_kb_per_watcher": round((after.resident_bytes - before.resident_bytes) / 1e3 / max(1, count), 1),
    }


async def _all_have(watchers: list[Watcher], version: int, arrived: asyncio.Event) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while any(watcher.version < version for watcher in watchers):
            arrived.clear()
            await arrived.wait()
