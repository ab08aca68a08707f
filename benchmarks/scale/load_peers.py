"""Peers that harm a learner: silent ones open streams and send nothing, hostile ones send invalid messages."""

import asyncio
import contextlib
import random
from typing import Any

import grpc

from actorq import wire
from actorq.domain.contract import CONTRACT
from actorq.domain.spaces import EnvironmentSpec
from actorq.v1 import learner_pb2, learner_pb2_grpc
from benchmarks.processes import connect
from benchmarks.scale.streams import segment

# Seconds between two attacks of one peer: the shortest allowed time between connections.
_PAUSE_S = 0.1


class Peer:
    """A stream that is opened in the same way as an actor's."""

    def __init__(self, address: str, name: str, spec: EnvironmentSpec) -> None:
        self._name = name
        self._spec = spec
        self._channel = connect(address)
        self._stub = learner_pb2_grpc.LearnerServiceStub(self._channel)

    async def open(self) -> Any:
        """Join and open a stream. Returns the call."""
        role = wire.role_to_proto("actor")
        joined = await self._stub.Join(learner_pb2.JoinRequest(actor_name=self._name, role=role, contract=CONTRACT))
        call = self._stub.StreamTrajectories()
        environment = wire.environment_to_proto(self._spec)
        opening = learner_pb2.StreamOpen(actor_name=self._name, incarnation=joined.incarnation, environment=environment)
        await call.write(learner_pb2.StreamTrajectoriesRequest(open=opening))
        return call

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()


async def attack(
    peer: Peer, steps: int, spec: EnvironmentSpec, seed: int, refusals: list[str], refused: asyncio.Event
) -> None:
    """Send invalid messages repeatedly. Appends the status of each refusal to `refusals`, and sets `refused`."""
    choices = random.Random(seed)
    good = learner_pb2.StreamTrajectoriesRequest(segment=wire.segment_to_proto(segment(steps, spec)))
    while True:
        message = learner_pb2.StreamTrajectoriesRequest()
        message.CopyFrom(good)
        match choices.randrange(5):
            case 0:
                message.segment.sequence = choices.getrandbits(63)
            case 1:
                message.segment.columns[choices.randrange(len(message.segment.columns))].values.shape[0] += 1
            case 2:
                rewards = next(column.values for column in message.segment.columns if column.name == "rewards")
                rewards.data = b"\xff" * len(rewards.data)
            case 3:
                message.Clear()
            case 4:
                message.segment.spans[0].scheme = "none"
        try:
            call = await peer.open()
            await call.write(message)
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            refusals.append(error.code().name)
        except asyncio.InvalidStateError:
            # The stream ended before the message was written.
            with contextlib.suppress(grpc.aio.AioRpcError):
                refusals.append((await call.code()).name)
        if refusals:
            refused.set()
        await asyncio.sleep(_PAUSE_S)
