"""The quantizer in an event loop: emits policies on a worker thread and serves them to the watchers."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import ParamSpec, TypeVar

from actorq.config.sections import QuantizerConfig
from actorq.domain.policy import AUTO, Checkpoint, Policy, PolicyGraph, Variant
from actorq.domain.processes import ProcessStats
from actorq.domain.status import Receipt
from actorq.domain.trajectory import Evaluation
from actorq.errors import ActorQError, UnavailableError
from actorq.quantization.schemes import scheme_named
from actorq.tasks import may_be_left
from actorq.telemetry.histogram import Histogram
from quantizer_service.emission.emitter import Emitter
from quantizer_service.serving.newest_policies import NewestPolicies, Watcher
from quantizer_service.serving.policy_stream import EncodedPolicy
from quantizer_service.serving.publishers import PATIENCE_S, Publishers, Turn
from quantizer_service.serving.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)

# The worker waits at most this long for the event loop to serve a version before it stores the version.
_PATIENCE_S = 1.0


class Quantizer:
    """Publishes, serves and lists policies. Must be used in one event loop.

    The calls of the learner are answered in order. The calls of all readers share one order.

    resources: measures this process.
    worker: runs the CPU work; None for a worker with the default limit.

    policies: the newest policies, and their watchers.
    emitted, refusals: emitted policies by variant, and rungs that the fidelity gate refused by scheme, since the start.
    emit_seconds: times from the last byte of a checkpoint to served policies, for all schemes together.
    describe, list_versions, hold: see Catalog.
    """

    def __init__(self, emitter: Emitter, resources: Callable[[], ProcessStats], worker: Worker | None = None) -> None:
        self._emitter = emitter
        self._catalog = emitter.catalog
        self._resources = resources
        self.policies = NewestPolicies()
        self.worker = worker or Worker(QuantizerConfig().work_limit_s)
        self.emitted: Counter[Variant] = Counter()
        self.refusals: Counter[str] = Counter()
        self.emit_seconds = Histogram()
        self._publishing: set[asyncio.Task[Receipt]] = set()
        # At most one read is in the worker's queue, so that a publication waits for at most one reader.
        self._reader = asyncio.Lock()
        self.draining = asyncio.Event()
        self.publishers = Publishers(self._catalog, self.worker, self.draining, PATIENCE_S)
        self.describe = self._reading(self._catalog.describe)
        self.list_versions = self._reading(self._catalog.list_versions)
        self.hold = self._reading(self._catalog.hold)
        self.policies.put(map(EncodedPolicy.of, self._catalog.newest_policies))

    def intake(self) -> "Quantizer":
        """This quantizer, which accepts publications. A relay raises ConflictError."""
        return self

    def _reading(self, function: Callable[P, R]) -> Callable[P, Awaitable[R]]:
        """The function as a job that runs on the worker after the jobs of earlier readers."""

        async def read(*args: P.args, **kwargs: P.kwargs) -> R:
            async with self._reader:
                return await self.worker.do(function, *args, **kwargs)

        return read

    async def claim(self, run_id: str, scheme: str, turn: Turn) -> tuple[int, tuple[bytes, ...]]:
        """Begin the stream of a learner whose actors use `scheme`. See Publishers.admit.

        With "auto" each actor chooses its scheme, and versions are emitted in the watched variants.
        """
        if scheme != AUTO:
            scheme_named(scheme)
        return await self.publishers.admit(run_id, turn)

    async def add_graph(self, graph: PolicyGraph) -> None:
        """See Emitter.add_graph."""
        await self.worker.do(self._emitter.add_graph, graph)

    async def publish(self, checkpoint: Checkpoint, scheme: str, received_at: float) -> Receipt:
        """Emit a version in the run's scheme and the watched variants, serve it, store it, and return the receipt.

        received_at: `time.perf_counter` at the arrival of its last byte.
        """
        own = () if scheme == AUTO else (scheme,)
        begun = threading.Event()
        task = asyncio.create_task(self._publish(checkpoint, own, self.policies.variants, received_at, begun))
        may_be_left(task, f"publication of version {checkpoint.version}")
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)
        try:
            # Shielded, so that a served version is stored even if the publisher disconnects before its receipt.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not begun.is_set():
                task.cancel()
            raise

    async def get(self, variant: Variant, version: int = 0) -> EncodedPolicy:
        """A retained policy as encoded messages. See Catalog.get."""
        newest = self.policies.get(variant)
        if newest is not None and self._is_newest(variant) and version in (0, newest.descriptor.version):
            return newest
        return await self._reading(self._get)(variant, version)

    async def record_evaluation(self, evaluation: Evaluation) -> None:
        """See Catalog.record_evaluation."""
        await self.worker.do(self._catalog.record_evaluation, evaluation)

    async def watch(self, variant: Variant, after_version: int) -> Watcher:
        """Watch a variant, which is emitted from now on. Raises NotFoundError for an unknown scheme."""
        scheme_named(variant.scheme)
        if self.draining.is_set():
            raise UnavailableError("the quantizer is draining; connect again later")
        # The watch begins before the newest version is emitted. A version published meanwhile then includes this
        # variant.
        watcher = self.policies.watch(variant, after_version)
        try:
            if not self._is_newest(variant):
                async with self._reader:
                    # When many watchers come at once, only the first one emits.
                    if not self._is_newest(variant):
                        await self._emit_newest(variant)
        except BaseException:
            watcher.close()
            raise
        return watcher

    def begin_drain(self) -> None:
        """Accept no new work. Watchers' streams end at once, publishers' streams after their pending receipt."""
        self.draining.set()
        self.policies.close()

    async def settle(self) -> None:
        """Wait until every accepted checkpoint is stored and all writes to the store have ended."""
        await asyncio.gather(*self._publishing, return_exceptions=True)
        await self.worker.close()

    async def _publish(
        self,
        checkpoint: Checkpoint,
        own: tuple[str, ...],
        watched: tuple[Variant, ...],
        received_at: float,
        begun: threading.Event,
    ) -> Receipt:
        """begun: set when the emission begins. From then on the version will be served and stored."""
        loop = asyncio.get_running_loop()
        emit_seconds, served = 0.0, threading.Event()

        def publish() -> tuple[Policy, ...]:
            begun.set()
            return self._emitter.publish(checkpoint, own, announce, watched)

        def announce(policies: Sequence[Policy]) -> None:
            loop.call_soon_threadsafe(serve, [EncodedPolicy.of(policy) for policy in policies])
            # Storing holds the GIL for long, so the event loop wakes the watchers first.
            served.wait(_PATIENCE_S)

        def serve(policies: Sequence[EncodedPolicy]) -> None:
            nonlocal emit_seconds
            self.policies.put(policies)
            self.policies.forget_unwatched(checkpoint.version)
            emit_seconds = time.perf_counter() - received_at
            self.emit_seconds.observe(emit_seconds)
            for policy in policies:
                self.emitted[policy.descriptor.variant] += 1
            # The variants of a scheme come from one emission.
            refused = {policy.descriptor.scheme: policy.descriptor.fidelity.refused for policy in policies}
            self.refusals.update({scheme: len(rungs) for scheme, rungs in refused.items()})
            served.set()

        try:
            policies = await self.worker.do(publish)
        finally:
            # Also runs if the version could not be stored, because it is served.
            for late in self.policies.variants:
                # Watchers that came during this emission have only the previous version.
                if not self._is_newest(late):
                    await self._emit_or_refuse(late)
        return Receipt(
            version=checkpoint.version,
            policies=tuple(policy.descriptor for policy in policies),
            emit_seconds=emit_seconds,
            watchers=sum(self.policies.watchers_by_variant.values()),
            process=await self.worker.do(self._resources),
        )

    def _is_newest(self, variant: Variant) -> bool:
        """Whether the watchers of this variant have the newest version."""
        return self.policies.version(variant) >= self._catalog.newest_version

    async def _emit_newest(self, variant: Variant) -> None:
        self.policies.put([await self.worker.do(self._get, variant)])

    async def _emit_or_refuse(self, variant: Variant) -> None:
        """Emit the newest version for watchers. A variant that fails ends only its own watchers' streams."""
        try:
            await self._emit_newest(variant)
        except ActorQError as error:
            self.policies.refuse(variant, error)
        except Exception as error:
            _log.exception("no policy in %s", variant)
            self.policies.refuse(variant, UnavailableError(f"{variant}: emitting the policy failed: {error!r}"))

    def _get(self, variant: Variant, version: int = 0) -> EncodedPolicy:
        return EncodedPolicy.of(self._catalog.get(variant, version))
