"""`python -m benchmarks.faults.chaos.actor`: an ordinary actor that also keeps a ledger of its segments."""

import os
import sys
import threading
from functools import partial
from pathlib import Path

from actor_service.process import run_actor
from actor_service.uploader import Item, Uploader
from actorq.domain.trajectory import Segment
from actorq.process import main
from benchmarks.faults.chaos.ledger import Ledger

LEDGERS = "ACTOR_LEDGERS"
"""Environment variable that names the folder of the ledgers."""


class RecordingUploader(Uploader):
    """The uploader, with a ledger of all segments and all acknowledgements."""

    _ledger: Ledger | None = None

    def put(self, item: Item, stop: threading.Event) -> None:
        """Record the earlier acknowledgements, and the segment before it can be sent."""
        if isinstance(item, Segment):
            if self._ledger is None:
                self._ledger = Ledger(Path(os.environ[LEDGERS]) / f"{os.getpid()}.ledger")
            self._ledger.made(item)
            self._ledger.acknowledged(self.acknowledged)
        super().put(item, stop)

    def flush(self, timeout_s: float) -> int:
        """Also record the last acknowledgements."""
        left = super().flush(timeout_s)
        if self._ledger is not None:
            self._ledger.acknowledged(self.acknowledged)
        return left


if __name__ == "__main__":
    sys.exit(main(partial(run_actor, uploader=RecordingUploader)))
