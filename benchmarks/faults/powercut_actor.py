"""An actor that records its segments and the learner's answers: `python -m benchmarks.faults.powercut_actor`.

The file in POWERCUT_LEDGER gets one JSON object per line. A line with "made" has a segment's sequence and the checksum
of its observations. The other lines have the highest sequences that the learner reported as stored and as durable.
"""

import json
import os
import sys
import threading
import zlib
from functools import partial
from typing import Any

from actor_service.process import run_actor
from actor_service.uploader import Uploader
from actorq.domain.trajectory import Segment
from actorq.process import main


class RecordingUploader(Uploader):
    """Writes each line before the actor acts on it."""

    ledger = open(os.environ["POWERCUT_LEDGER"], "a", buffering=1)  # noqa: SIM115

    def put(self, item: Any, stop: threading.Event) -> None:
        """Record a segment."""
        if isinstance(item, Segment):
            content = item.observations.swapaxes(0, 1).tobytes()
            self._record(made=item.sequence, crc=zlib.crc32(content))
        super().put(item, stop)

    def _handle(self, answer: Any) -> bool:
        self._record(acknowledged=answer.acknowledged, durable=answer.durable)
        return super()._handle(answer)

    def _record(self, **values: int) -> None:
        self.ledger.write(json.dumps({"incarnation": self._incarnation, **values}) + "\n")


if __name__ == "__main__":
    sys.exit(main(partial(run_actor, uploader=RecordingUploader)))
