"""Flushes the replay on its own thread, and makes actors wait while the disk is full."""

import logging
import threading
from collections.abc import Callable

from actorq.statefiles.tolerance import Tolerated
from learner_service.replay.segment_buffer import SegmentBuffer
from learner_service.replay.storage.space import DiskWatch

_log = logging.getLogger(__name__)


class Flusher:
    """Flushes inserts to the disk every `period_s` seconds, so that a power cut loses at most the inserts since the
    last flush.

    on_flushed: called on the flusher's thread after each flush that makes more segments durable.
    disk: the state of the disk at the last check.
    """

    def __init__(self, replay: SegmentBuffer, disk: DiskWatch, period_s: float) -> None:
        self.on_flushed: Callable[[], object] = lambda: None
        self._replay = replay
        self.disk = disk
        self._period_s = period_s
        self._flush = Tolerated("the replay")
        self._told: object = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def tick(self) -> None:
        """Flush once, and check the disk."""
        self._replay.limiter.hold_inserts(self.disk.check(self._replay.reserve_ahead()))
        flushed = self._flush.attempt(self._replay.flush)
        if flushed and (durable := self._replay.durable_sequences()) is not self._told:
            self._told = durable
            self.on_flushed()

    def close(self) -> None:
        """End the thread. Afterwards the owner of the replay flushes."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._period_s):
            try:
                self.tick()
            except Exception:
                _log.exception("replay: a flush failed; trying again")
