"""Takes a segment from its stream into the replay: order, credit, storage, acknowledgment."""

from collections.abc import Callable
from functools import partial

from actorq.domain.trajectory import Segment
from actorq.errors import ActorQError
from learner_service.actors.credits import ActorStream, Credits
from learner_service.actors.intake import Intake
from learner_service.actors.storage_thread import StorageThread


class Uploads:
    """Stores the segments of each stream in order. Runs on the event loop.

    on_stored: called after each stored segment. refused: number of refused segments.
    """

    def __init__(
        self, intake: Intake, credits_: Credits, storage: StorageThread, on_stored: Callable[[], None]
    ) -> None:
        self.refused = 0
        self._intake = intake
        self._credits = credits_
        self._storage = storage
        self._on_stored = on_stored

    def insert(
        self, stream: ActorStream, sequence: int, size: Callable[[], int], decode: Callable[[], Segment]
    ) -> None:
        """Store a segment, then acknowledge it.

        Raises ConflictError without credit, and CorruptedError when an earlier segment is missing. A segment whose
        content is invalid ends the stream later.
        size: returns the bytes of the message. decode: returns the segment; called on the storage thread.
        """
        if sequence <= stream.received:
            self._intake.note_duplicate(stream.member, sequence)
            stream.changed.set()
            return
        store, done = partial(self._store, stream, decode), partial(self._stored, stream, sequence)
        submit = partial(self._storage.submit, store, done, partial(self._refuse, stream))
        try:
            self._credits.take(stream, sequence, size, submit)
        except ActorQError:
            self.refused += 1
            raise

    def _store(self, stream: ActorStream, decode: Callable[[], Segment]) -> bool:
        """Runs on the storage thread. Returns False when an earlier segment of the stream was refused."""
        reserved = self._credits.segment_transitions
        if stream.refused:
            self._intake.give_back(reserved)
            return False
        try:
            self._intake.insert(stream.member, decode, reserved)
        except BaseException:
            stream.refused = True
            raise
        return True

    def _stored(self, stream: ActorStream, sequence: int, stored: bool) -> None:
        if stored:
            self._credits.stored(stream, sequence)
            self._on_stored()

    def _refuse(self, stream: ActorStream, error: BaseException) -> None:
        self.refused += isinstance(error, ActorQError)
        stream.fail(error)
