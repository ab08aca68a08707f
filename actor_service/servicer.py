"""ActorService: decode, call the actor, encode."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

from actor_service.actor import Actor
from actorq import wire
from actorq.errors import InvalidInputError
from actorq.trajectory import Episode, Evaluation
from actorq.v1 import actor_pb2, actor_pb2_grpc

_MOST_EPISODES = 10_000
# All environments take seeds up to here, and each adds its number to it.
_SEEDS = 2**31


class ActorServicer(actor_pb2_grpc.ActorServiceServicer):
    """Serves one actor; `drain_s` is what a drain may take."""

    def __init__(self, actor: Actor, drain_s: float) -> None:
        self._actor = actor
        self._drain_s = drain_s

    async def GetActorStatus(
        self, request: actor_pb2.GetActorStatusRequest, context: Any
    ) -> actor_pb2.GetActorStatusResponse:
        """How the actor is."""
        return wire.actor_self_status_to_proto(self._actor.status())

    async def Evaluate(
        self, request: actor_pb2.EvaluateRequest, context: Any
    ) -> AsyncIterator[actor_pb2.EvaluateResponse]:
        """Greedy episodes as they end, then all of them."""
        if not 1 <= request.episodes <= _MOST_EPISODES:
            raise InvalidInputError(f"episodes: must be 1 to {_MOST_EPISODES}, got {request.episodes}")
        if request.seed >= _SEEDS:
            raise InvalidInputError(f"seed: must be below {_SEEDS}, got {request.seed}")
        loop = asyncio.get_running_loop()
        episodes: asyncio.Queue[Episode | None] = asyncio.Queue(maxsize=request.episodes + 1)

        hung_up = threading.Event()

        def on_episode(episode: Episode) -> None:
            loop.call_soon_threadsafe(episodes.put_nowait, episode)

        evaluating = asyncio.create_task(
            asyncio.to_thread(
                self._actor.evaluate,
                request.episodes,
                request.scheme,
                request.policy_version,
                request.seed,
                hung_up,
                on_episode,
            )
        )

        def on_end(evaluating: asyncio.Task[Evaluation]) -> None:
            # Taken here too: nobody else will when the client has hung up, and asyncio would call it lost.
            if not evaluating.cancelled():
                evaluating.exception()
            episodes.put_nowait(None)

        evaluating.add_done_callback(on_end)
        try:
            while (episode := await episodes.get()) is not None:
                yield actor_pb2.EvaluateResponse(episode=wire.episode_to_proto(episode))
            yield actor_pb2.EvaluateResponse(evaluation=wire.evaluation_to_proto(await evaluating))
        finally:
            hung_up.set()

    async def Drain(self, request: actor_pb2.DrainRequest, context: Any) -> actor_pb2.DrainResponse:
        """Stop acting, send what is queued, end the process."""
        remaining = context.time_remaining()
        patience = self._drain_s if remaining is None else min(self._drain_s, remaining * 0.9)
        self._actor.drain(patience)
        sent, unsent = await asyncio.to_thread(self._actor.drained, patience)
        return actor_pb2.DrainResponse(sent_segments=sent, unsent_segments=unsent)
