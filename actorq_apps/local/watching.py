"""A thread that receives the learner's status, even after the learner restarts."""

import random
import threading
from collections.abc import Callable

from actorq.client import LearnerClient
from actorq.domain.status import RunStatus
from actorq.errors import ActorQError, UnavailableError
from actorq.transport.options import Certificates
from actorq.transport.reconnect import Backoff, keep_connected

# Short delays, because the learner is on this machine and a user waits for the display.
_BACKOFF = Backoff(initial_s=0.1, maximum_s=0.5)


class StatusWatch:
    """Calls `receive` on its own thread with each status from `address`, until the run is over or `close` is called.

    until_close: continue after the end of the run. A learner that dies while it ends the run is restarted.
    """

    def __init__(
        self,
        address: str,
        certificates: Certificates | None,
        receive: Callable[[RunStatus], None],
        period_s: float = 0.5,
        until_close: bool = False,
    ) -> None:
        self._address, self._certificates, self._receive = address, certificates, receive
        self._period_s, self._until_close = period_s, until_close
        self._stop = threading.Event()
        self._client: LearnerClient | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="status-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop. `receive` is not called after this returns."""
        self._stop.set()
        if client := self._client:
            client.close()
        self._thread.join(timeout=2.0)

    def wait(self) -> None:
        """Return when the run is over or the watch is closed. Raises the error of `receive` if it failed."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            keep_connected(self._watch, self._stop, f"learner at {self._address}", random.Random(), _BACKOFF)
        except Exception as error:
            self._error = error

    def _watch(self, connected: Callable[[], None]) -> None:
        try:
            with LearnerClient(self._address, self._certificates) as client:
                self._client = client
                over = False
                for status in client.watch(self._period_s, patience_s=0.0):
                    connected()
                    if self._stop.is_set():
                        return
                    self._receive(status)
                    over = status.state.final
                    if over and not self._until_close:
                        return
        except UnavailableError:
            raise
        except ActorQError as error:
            # After a restart, the learner may answer despite any error.
            raise UnavailableError(f"learner at {self._address}: {error}") from error
        ended = f"ended the stream {'after' if over else 'before'} the end of the run"
        raise UnavailableError(f"learner at {self._address}: {ended}")
