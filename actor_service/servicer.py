"""The gRPC ActorService: decodes requests, calls the role, encodes responses."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from actor_service.roles.actor_role import ActorRole
from actorq import wire
from actorq.domain.trajectory import Episode
from actorq.tasks import may_be_left
from actorq.v1 import actor_pb2, actor_pb2_grpc


class ActorServicer(actor_pb2_grpc.ActorServiceServicer):
    """Serves the role of one actor. A drain takes at most `drain_s` seconds."""

    def __init__(self, role: ActorRole, drain_s: float) -> None:
        self._role = role
        self._drain_s = drain_s

    async def GetActorStatus(
        self, request: actor_pb2.GetActorStatusRequest, context: Any
    ) -> actor_pb2.GetActorStatusResponse:
        """The actor's status."""
        return wire.actor_self_status_to_proto(self._role.status())

    async def Evaluate(
        self, request: actor_pb2.EvaluateRequest, context: Any
    ) -> AsyncIterator[actor_pb2.EvaluateResponse]:
        """Stream each episode as it ends, then the whole evaluation."""
        wanted = wire.evaluate_request_from_proto(request)
        loop = asyncio.get_running_loop()
        episodes: asyncio.Queue[Episode | None] = asyncio.Queue(maxsize=wanted.episodes + 1)
        hung_up = threading.Event()

        def on_episode(episode: Episode) -> None:
            loop.call_soon_threadsafe(episodes.put_nowait, episode)

        evaluating = asyncio.create_task(asyncio.to_thread(self._role.evaluate, wanted, hung_up, on_episode))
        may_be_left(evaluating, "a requested evaluation")
        evaluating.add_done_callback(lambda _: episodes.put_nowait(None))
        try:
            while (episode := await episodes.get()) is not None:
                yield actor_pb2.EvaluateResponse(episode=wire.episode_to_proto(episode))
            yield actor_pb2.EvaluateResponse(evaluation=wire.evaluation_to_proto(await evaluating))
        finally:
            hung_up.set()

    async def Drain(self, request: actor_pb2.DrainRequest, context: Any) -> actor_pb2.DrainResponse:
        """Stop acting, send the queued segments, end the process."""
        remaining = context.time_remaining()
        patience = self._drain_s if remaining is None else min(self._drain_s, remaining * 0.9)
        self._role.drain(patience)
        sent, unsent = await asyncio.to_thread(self._role.drained, patience)
        return actor_pb2.DrainResponse(sent_segments=sent, unsent_segments=unsent)
