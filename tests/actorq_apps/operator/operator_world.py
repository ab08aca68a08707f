"""A cluster, a learner, a clock and an operator, for tests of the operator's behavior."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from actorq import wire
from actorq.domain.status import ActorStatus, RunStatus
from actorq.transport.server import Server
from actorq.v1 import learner_pb2, learner_pb2_grpc
from actorq_apps.cluster.connection import Cluster
from actorq_apps.operator.reconcile import PERIOD_S, Key, Reconciler
from tests.actorq_apps.operator.kube_api import NAMESPACE, RUNS, KubeApi, Object, kube_api
from tests.builders.run_status import run_status

KEY = Key(NAMESPACE, "tiny")
NOW = 1_800_000_000.0
ACTING = (ActorStatus("actor-1", "actor", 0, True, None),)


class Learner(learner_pb2_grpc.LearnerServiceServicer):
    """Sends each status that a test puts, from a server in a thread."""

    def __init__(self) -> None:
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._statuses: asyncio.Queue[RunStatus] = asyncio.Queue()

    def put(self, status: RunStatus) -> None:
        self._loop.call_soon_threadsafe(self._statuses.put_nowait, status)

    async def WatchStatus(  # noqa: N802
        self, request: learner_pb2.WatchStatusRequest, context: object
    ) -> AsyncIterator[learner_pb2.WatchStatusResponse]:
        while True:
            status = await self._statuses.get()
            yield learner_pb2.WatchStatusResponse(status=wire.run_status_to_proto(status))
            if status.state.final:
                return

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(grace_s=0.0), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()

    async def _start(self) -> Server:
        server = Server("127.0.0.1:0")
        learner_pb2_grpc.add_LearnerServiceServicer_to_server(self, server.grpc_server)
        self.address = await server.start(["actorq.v1.LearnerService"])
        return server


class World:
    """The cluster, the learner, a clock, and an operator that may be replaced."""

    def __init__(self, api: KubeApi, learner: Learner) -> None:
        self.api = api
        self.learner = learner
        self.at = NOW
        self.steps = 0
        self.woken: queue.Queue[Key] = queue.Queue()
        self.operator = self.another()

    def another(self, cluster: Cluster | None = None) -> Reconciler:
        """An operator without any earlier knowledge."""
        return Reconciler(
            cluster or self.api.cluster(),
            self.woken.put,
            address_of=lambda key: self.learner.address,
            clock=lambda: self.at,
            now=lambda: self.at,
        )

    def run(self, **spec: Any) -> Object:
        return self.api.put(training_run(**spec))

    def reconcile(self, key: Key = KEY) -> float | None:
        return self.operator.reconcile(key)

    def settle(self, key: Key = KEY) -> None:
        """Reconcile until nothing is left to do."""
        writes = -1
        while writes != len(self.api.writes):
            writes = len(self.api.writes)
            self.reconcile(key)
            self.at += PERIOD_S

    def send(self, **changes: Any) -> None:
        """Let the learner report a status, and reconcile until the run's status contains it."""
        self.steps = changes.get("environment_steps", self.steps + 100)
        self.learner.put(run_status(**{"actors": ACTING, "environment_steps": self.steps, **changes}))
        while self.api.status("tiny").get("environmentSteps") != self.steps:
            with suppress(queue.Empty):
                self.woken.get(timeout=0.05)
            self.at += PERIOD_S
            self.reconcile()

    def place(self, **spec: Any) -> None:
        """A run whose pods have nodes: learner and quantizer first, then the others."""
        self.run(**spec)
        for _ in range(2):
            self.reconcile()
            self.api.kubelet()

    def start(self, **spec: Any) -> None:
        """A run whose learner answers."""
        self.place(**spec)
        self.reconcile()
        self.send(environment_steps=100)


def training_run(name: str = "tiny", **spec: Any) -> Object:
    given = {"environment": "CartPole-v1", "tls": {"mode": "none"}, **spec}
    return {"apiVersion": RUNS, "kind": "TrainingRun", "metadata": {"name": name}, "spec": given}


def reconcile_requests(world: World) -> list[tuple[str, str]]:
    """Verb and kind of each request."""
    made: list[tuple[str, str]] = []

    def record(verb: str, kind: str, name: str) -> None:
        made.append((verb, kind))

    world.api.refuse = record
    world.reconcile()
    return made


@contextmanager
def operator_world() -> Iterator[World]:
    """A world for one test."""
    learner = Learner()
    with kube_api() as api, learner.serving():
        world = World(api, learner)
        try:
            yield world
        finally:
            world.operator.close()
