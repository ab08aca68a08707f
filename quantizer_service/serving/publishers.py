"""Admits one publisher at a time, and decides between two learners of one run."""

import asyncio
import logging

from actorq.domain.lineage import UNCHECKED, Lineage
from actorq.errors import ActorQError, ConflictError, UnavailableError
from quantizer_service.serving.worker import Worker
from quantizer_service.store.catalog import Catalog
from quantizer_service.store.owner import superseded

_log = logging.getLogger(__name__)

# A disconnected learner's stream has ended by then (keepalive of actorq.transport.options). A publisher whose stream is
# still open is alive.
PATIENCE_S = 45.0


def draining() -> ActorQError:
    """The error for a publisher of a service that drains."""
    return UnavailableError("this service is draining; open the stream again later")


class Turn:
    """The stream of one publisher. Its learner is known once it has opened.

    ended: set by the owner of the stream when it has ended. replaced: set when another publisher has taken over.
    """

    def __init__(self) -> None:
        self.learner = self._by = UNCHECKED
        self.ended = asyncio.Event()
        self.replaced = asyncio.Event()

    def replace(self, by: Lineage) -> None:
        """Record that another publisher has taken over."""
        self._by = by
        self.replaced.set()

    def reason(self) -> ActorQError:
        """The error for the replaced publisher, which may reconnect only if its own process has replaced it."""
        if self.learner.process in (0, self._by.process):
            return UnavailableError("another publisher of the run has opened its stream; only the newest is served")
        return superseded()


class Publishers:
    """The publishers of one run. Lives on the event loop.

    draining: set when this service drains. patience_s: longest wait for the end of a predecessor's stream.
    refused: number of permanently refused publishers since the start.
    """

    def __init__(self, catalog: Catalog, worker: Worker, draining: asyncio.Event, patience_s: float) -> None:
        self._catalog, self._worker = catalog, worker
        self._draining, self._patience_s = draining, patience_s
        self._turn: Turn | None = None
        self.refused = 0

    async def admit(self, run_id: str, turn: Turn) -> tuple[int, tuple[bytes, ...]]:
        """Admit a publisher. See Catalog.claim.

        A learner of the same epoch waits until the stream of another process has ended. Raises ConflictError after
        `patience_s`: then this learner is a copy of the publishing learner.
        """
        try:
            await self._worker.do(self._catalog.writer.check, run_id, turn.learner)
            while (rival := self._rival(turn.learner)) is not None:
                await self._outwait(rival, turn.learner)
            answer = await self._worker.do(self._catalog.claim, run_id, turn.learner)
        except ConflictError as error:
            self.refused += 1
            _log.warning("a publisher is refused: %s", error)
            raise
        before, self._turn = self._turn, turn
        if before is not None:
            before.replace(turn.learner)
        return answer

    def _rival(self, learner: Lineage) -> Turn | None:
        """The open stream of another process, unless this learner replaces it at once."""
        turn = self._turn
        if turn is None or turn.ended.is_set() or turn.learner.process in (0, learner.process):
            return None
        return turn if learner.processes and learner.epoch <= turn.learner.epoch else None

    async def _outwait(self, rival: Turn, learner: Lineage) -> None:
        _log.warning("a learner waits for the end of the stream of another process of its run")
        waits = [asyncio.ensure_future(event.wait()) for event in (rival.ended, self._draining)]
        try:
            await asyncio.wait(waits, timeout=self._patience_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._draining.is_set():
            raise draining()
        if not rival.ended.is_set():
            await self._worker.do(self._catalog.writer.refuse, learner)
            raise superseded()
