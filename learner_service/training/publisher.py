"""Publishes policy snapshots to the quantizer over one long stream, and receives its receipts.

The trainer offers a snapshot and continues. A thread sends the newest snapshot. While the quantizer is unreachable,
newer snapshots replace older ones, because actors need only the newest policy.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import safetensors.numpy
from numpy.typing import NDArray

from actorq import wire
from actorq.client import QuantizerClient
from actorq.domain.policy import CALIBRATION_PREFIX, MAX_VERSION_STEP, SEQUENCES_PREFIX, PolicyGraph
from actorq.domain.status import Receipt
from actorq.domain.trajectory import Evaluation
from actorq.errors import ActorQError, ConflictError, ExhaustedError, InvalidInputError, UnavailableError
from actorq.statefiles.highwater import HighWaterMark
from actorq.transport.errors import error_from_rpc, is_as_sent
from actorq.transport.reconnect import keep_connected
from actorq.v1 import quantizer_pb2 as pb
from actorq.v1 import tensor_pb2

_log = logging.getLogger(__name__)

# Versions that may wait for a receipt: enough to hide the round trip, few enough to send only recent snapshots.
_IN_FLIGHT = 2


@dataclass(frozen=True)
class Snapshot:
    """The policy's parameters at one moment. at: unix seconds.

    calibration: a batch for each data input of the graph, with equally many rows.
    sequences: stored sequences of steps for a policy with memory, as in `Checkpoint`; empty without.
    """

    learner_step: int
    parameters: dict[str, NDArray[Any]]
    calibration: dict[str, NDArray[Any]]
    at: float
    sequences: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(eq=False)
class Publisher:
    """Owns the stream to the quantizer. `offer` and `evaluated` are thread-safe.

    mark: reserves each version before it is sent, so that no number is sent again after a kill.
    """

    client: QuantizerClient
    opening: wire.Opening
    on_receipt: Callable[[Receipt], None]
    first_version: int = 1
    mark: HighWaterMark | None = None

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._graph: PolicyGraph | None = None
        self.version = self._floor = self.first_version - 1
        """The newest offered version."""
        self._snapshot: tuple[int, Snapshot] | None = None
        self._sent_version = 0
        self._received_version = 0
        self._refused_version = 0
        self._in_flight: deque[int] = deque(maxlen=_IN_FLIGHT + 1)
        self._evaluations: deque[Evaluation] = deque(maxlen=100)
        # Each evaluation with the last version that was sent before it.
        self._unconfirmed: deque[tuple[int, Evaluation]] = deque(maxlen=100)
        self.connected = False
        """Whether the quantizer has answered on the open stream."""
        self.problem = ""
        """The reason why the newest version cannot be published now; empty otherwise."""
        self.fault: ActorQError | None = None
        """The error that ended publishing permanently, such as a quantizer with another run."""
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self, graph: PolicyGraph) -> None:
        """Start to publish policies of this graph."""
        self._graph = graph
        self._thread.start()

    def offer(self, snapshot: Snapshot) -> int:
        """Make this snapshot the newest version, and send it as soon as possible. Returns its number."""
        with self._changed:
            self.version = max(self.version, self._floor) + 1
            self._snapshot = (self.version, snapshot)
            self._changed.notify_all()
            return self.version

    def raise_to(self, version: int) -> None:
        """Publish the next snapshot above this version, because an actor already has this version."""
        with self._changed:
            self._floor = max(self._floor, version)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Send an evaluation to the quantizer, which retains the best versions."""
        with self._changed:
            self._evaluations.append(evaluation)
            self._changed.notify_all()

    @property
    def known_version(self) -> int:
        """The highest version that an actor may have."""
        return max(self.version, self._floor)

    def flush(self, timeout_s: float, wait_for_quantizer: bool = True) -> bool:
        """Wait until the quantizer has received the newest version, and all evaluations are sent.

        wait_for_quantizer: also wait while the quantizer is unreachable.
        Returns False after `timeout_s` seconds, and at once after a fault or `close`.
        """

        def settled() -> bool:
            away = not self.connected and not wait_for_quantizer
            return self._flushed() or away or self.fault is not None or self._stop.is_set()

        with self._changed:
            self._changed.wait_for(settled, timeout_s)
            return self._flushed()

    def close(self) -> None:
        """Stop publishing and wait for the thread."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)
        if self.mark is not None and not self._thread.is_alive():
            self.mark.close()

    def _run(self) -> None:
        try:
            # A checkpoint that is too large never succeeds. `_publish` turns a temporary ExhaustedError into
            # UnavailableError.
            retried = (UnavailableError,)
            keep_connected(self._publish, self._stop, self.client.peer, random.Random(), retried=retried)
        except ActorQError as error:
            _log.error("publishing has stopped: %s", error)
            self._fail(error)
        except Exception:
            _log.exception("publishing has stopped")
            self._fail(ActorQError("the publisher failed; the learner's log has the details"))

    def _fail(self, error: ActorQError) -> None:
        with self._changed:
            self.fault = error
            self._changed.notify_all()

    def _flushed(self) -> bool:
        return self._received_version >= self.version and not self._evaluations

    def _publish(self, connected: Callable[[], None]) -> None:
        """Run one stream: a generator sends requests, and this loop receives the answers."""
        ended = threading.Event()
        ready: deque[wire.Ready] = deque(maxlen=1)
        call = self.client.stub.PublishCheckpoints(self._requests(ready, ended))
        try:
            for response in call:
                if response.WhichOneof("payload") == "ready":
                    # After a version that could not be stored, only the next receipt shows progress. Otherwise each
                    # attempt would count as a success at its start, and the next attempt would follow at once.
                    if not self.problem:
                        connected()
                    self._begin(wire.ready_from_proto(response.ready), ready)
                else:
                    connected()
                    self._handle_receipt(wire.receipt_from_proto(response.receipt))
        except Exception as error:
            # This comes first, because a snapshot that is offered later goes to the next stream.
            ended.set()
            self._raise_unless_stopped(error)
        finally:
            ended.set()
            call.cancel()
            with self._changed:
                self.connected = False
                self._changed.notify_all()
        if not self._stop.is_set():
            raise UnavailableError(self.problem or f"{self.client.peer} ended the stream")

    def _raise_unless_stopped(self, error: Exception) -> None:
        if self._stop.is_set():
            return
        if isinstance(error, InvalidInputError):
            # The run continues, because an operator may repair or replace the quantizer.
            raise UnavailableError(f"{self.client.peer} sent an invalid answer: {error}") from error
        if not isinstance(error, grpc.RpcError):
            raise error
        translated = error_from_rpc(error, self.client.peer)
        with self._changed:
            connected = self.connected
            sending = connected and self._sent_version > self._received_version
            if sending and isinstance(translated, InvalidInputError):
                # Assume that the older of two versions in flight was refused. If not, the newer version is refused
                # next.
                self._refused_version = max(self._refused_version, min(self._in_flight, default=self._sent_version))
        if sending and isinstance(translated, InvalidInputError | ConflictError):
            # One bad version, such as a policy with NaN, must not end the run, because the next version may be good.
            # Also, the quantizer may have received a version over a broken stream that counts as unsent here.
            _log.warning("version %d was refused: %s", self._sent_version, translated)
            raise UnavailableError(f"{self.client.peer} ended the stream with version {self._sent_version}") from error
        if sending and isinstance(translated, UnavailableError) and is_as_sent(error):
            # The quantizer has answered: it cannot store the version.
            with self._changed:
                self.problem = str(translated)
        if isinstance(translated, ExhaustedError) and not connected:
            # The quantizer has too many other callers.
            raise UnavailableError(str(translated)) from error
        raise translated from error

    def _begin(self, message: wire.Ready, ready: deque[wire.Ready]) -> None:
        if message.newest_version > self.version + MAX_VERSION_STEP:
            # Tried again later, because an operator may correct this while the run continues.
            raise UnavailableError(
                f"{self.client.peer}: expected to publish from at most version {self.version + MAX_VERSION_STEP}, "
                f"{MAX_VERSION_STEP} above the newest here, got {message.newest_version}; does its store belong to "
                "another run?"
            )
        with self._changed:
            newest, sent, snapshot = message.newest_version, self._sent_version, self._snapshot
            # A number is sent only once, because a quantizer that lost its store may have served an unconfirmed
            # version.
            unconfirmed = snapshot is not None and max(newest, self._refused_version) < snapshot[0] <= sent
            if unconfirmed or (newest > sent and newest >= self.version):
                # A learner that restarts from an older checkpoint continues above the versions published before.
                version = max(newest, self.version)
                if snapshot is not None:
                    version += 1
                    self._snapshot = (version, snapshot[1])
                self.version = version
            self._received_version = newest
            self.connected = True
            self._in_flight.clear()
            self._evaluations.extendleft(evaluation for _, evaluation in reversed(self._unconfirmed))
            self._unconfirmed.clear()
            ready.append(message)
            self._changed.notify_all()

    def _handle_receipt(self, receipt: Receipt) -> None:
        with self._changed:
            self._received_version = max(self._received_version, receipt.version)
            self.problem = ""
            while self._in_flight and self._in_flight[0] <= receipt.version:
                self._in_flight.popleft()
            # The stream is in order, so all evaluations sent before this version have arrived.
            while self._unconfirmed and self._unconfirmed[0][0] < receipt.version:
                self._unconfirmed.popleft()
            self._changed.notify_all()
        self.on_receipt(receipt)

    def _requests(self, ready: deque[wire.Ready], ended: threading.Event) -> Iterator[pb.PublishCheckpointsRequest]:
        yield wire.publication_to_proto(self.opening)
        with self._changed:
            self._changed.wait_for(lambda: ready or ended.is_set() or self._stop.is_set())
        if not ready or self._graph is None:
            return
        if self._graph.digest not in ready[0].graph_digests:
            yield from wire.graph_to_protos(self._graph)
        sent = ready[0].newest_version
        while (work := self._next_work(sent, ended)) is not None:
            if isinstance(work, Evaluation):
                yield wire.publication_to_proto(work)
            else:
                sent, snapshot = work
                if not self._reserve(sent):
                    return
                yield from checkpoint_requests(sent, snapshot, self._graph, ready[0].encodings)

    def _reserve(self, version: int) -> bool:
        """Write a version's number to the disk. Returns False when that fails; then the stream must end."""
        try:
            if self.mark is not None:
                self.mark.reserve(version)
        except OSError as error:
            with self._changed:
                self.problem = f"versions are not published, because their numbers cannot be stored: {error}"
            return False
        with self._changed:
            self._sent_version = version
            self._in_flight.append(version)
        return True

    def _next_work(self, sent: int, ended: threading.Event) -> Evaluation | tuple[int, Snapshot] | None:
        with self._changed:
            while not (self._stop.is_set() or ended.is_set()):
                if self._evaluations:
                    evaluation = self._evaluations.popleft()
                    self._unconfirmed.append((self._sent_version, evaluation))
                    self._changed.notify_all()
                    return evaluation
                waiting_for_receipts = sent - self._received_version >= _IN_FLIGHT
                already = max(sent, self._refused_version)
                if self._snapshot is not None and self._snapshot[0] > already and not waiting_for_receipts:
                    return self._snapshot
                self._changed.wait()
            return None


def checkpoint_requests(
    version: int, snapshot: Snapshot, graph: PolicyGraph, encodings: Iterable[tensor_pb2.BlobEncoding]
) -> Iterator[pb.PublishCheckpointsRequest]:
    """The messages that carry a snapshot as a version. encodings: those that the quantizer accepts."""
    header = wire.CheckpointHeader(version, snapshot.learner_step, graph.digest, snapshot.at)
    calibration = {CALIBRATION_PREFIX + name: batch for name, batch in snapshot.calibration.items()}
    sequences = {SEQUENCES_PREFIX + name: array for name, array in snapshot.sequences.items()}
    tensors = safetensors.numpy.save({**snapshot.parameters, **calibration, **sequences})
    return wire.checkpoint_to_protos(header, tensors, encodings)
