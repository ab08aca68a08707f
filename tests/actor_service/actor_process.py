"""A whole actor with a learner and a quantizer that a test scripts."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace

from actor_service.process import ActorService, ActorSettings
from actorq.arithmetic import arithmetic
from actorq.client import ActorClient
from actorq.config.run_config import RunConfig
from actorq.domain.policy import Policy, variant_of
from actorq.domain.status import ActorSelfStatus
from actorq.domain.trajectory import Role
from actorq.process import EXIT_OK
from actorq.transport.server import Server
from actorq.v1 import learner_pb2
from tests.actor_service.actor_peers import DEADLINE_S, ScriptedLearner, ScriptedQuantizer
from tests.actor_service.actor_policies import constant_policy

MANY = 10_000


@contextmanager
def running_actor(
    settings: ActorSettings, config: RunConfig | None = None
) -> Iterator[tuple[ActorClient, Future[int]]]:
    """An actor that serves, a client of it, and its exit code once it has ended."""
    started: Future[tuple[asyncio.AbstractEventLoop, ActorService, str]] = Future()
    ended: Future[int] = Future()

    async def serve() -> int:
        server = Server("127.0.0.1:0")
        service = ActorService(config or RunConfig(scheme="int8-weights"), settings, "actor-0")
        address = await server.start(service.register(server.grpc_server))
        started.set_result((asyncio.get_running_loop(), service, address))
        try:
            return await service.run(address)
        finally:
            await server.stop(grace_s=2.0)

    def run() -> None:
        try:
            ended.set_result(asyncio.run(serve()))
        except BaseException as error:
            ended.set_exception(error)

    thread = threading.Thread(target=run, name="actor service")
    thread.start()
    loop, service, address = started.result(DEADLINE_S)
    try:
        with ActorClient(address, deadline_s=DEADLINE_S) as client:
            yield client, ended
    finally:
        # A service that ends by itself may have closed its loop just now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(service.begin_drain)
        thread.join(DEADLINE_S)
    left = {"actor", "evaluator", "policy loader", "scheme", "subscription", "uploader", "watchdog"}
    for other in threading.enumerate():
        # Its last message may have been the report of its end.
        if other.name in left:
            other.join(DEADLINE_S)
    assert not left & {thread.name for thread in threading.enumerate()}


def standalone(quantizer: ScriptedQuantizer) -> ActorSettings:
    return ActorSettings(role="standalone", quantizer=quantizer.address)


def beside(learner: ScriptedLearner, quantizer: ScriptedQuantizer, role: Role = "actor") -> ActorSettings:
    return ActorSettings(learner=learner.address, quantizer=quantizer.address, role=role)


def first_policy(learner: ScriptedLearner, quantizer: ScriptedQuantizer, policy: Policy) -> None:
    """Give an actor its first policy, once its streams are open."""
    learner.opened()
    quantizer.watched()
    quantizer.serve(policy)


def stop(learner: ScriptedLearner, ended: Future[int], acknowledged: int = 0) -> None:
    """Tell an actor that the run is over, and wait for its end."""
    learner.answer(acknowledged=acknowledged, directive=learner_pb2.DIRECTIVE_STOP)
    assert ended.result(DEADLINE_S) == EXIT_OK


def status_when(client: ActorClient, activity: str) -> ActorSelfStatus:
    """The actor's status, polled until it has this activity."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if (status := client.status()).activity == activity:
            return status
        threading.Event().wait(0.001)
    raise AssertionError(f"the actor does not come to {activity}")


def in_scheme(scheme: str, version: int = 1) -> Policy:
    """A policy in the encoding that an actor requests on this machine."""
    policy = constant_policy([0.0, 1.0], version=version)
    here = variant_of(scheme, arithmetic().weight_encoding)
    descriptor = replace(policy.descriptor, scheme=scheme, learner_step=version, weight_encoding=here.weight_encoding)
    return replace(policy, descriptor=descriptor)


def at_step(version: int, learner_step: int) -> Policy:
    policy = constant_policy([0.0, 1.0], version=version)
    return replace(policy, descriptor=replace(policy.descriptor, learner_step=learner_step))
