"""Emits the policies of a checkpoint: validates it, removes dead units, quantizes, checks, serves and stores."""

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import TypeVar

from actorq.arithmetic import arithmetic
from actorq.config.sections import GateConfig, QuantizerConfig
from actorq.domain.policy import Checkpoint, Policy, PolicyDescriptor, PolicyGraph, Variant, variant_of
from actorq.domain.signature import Signature
from actorq.errors import ConflictError, InvalidInputError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options
from actorq.weightencoding import in_weight_encoding
from quantizer_service.emission.gate import FidelityGate
from quantizer_service.emission.job import OverdueError
from quantizer_service.emission.ladder import Attempt, Ladder
from quantizer_service.emission.one_group import alone
from quantizer_service.emission.prepared_graph import CompactVersion, PreparedGraph
from quantizer_service.emission.reference import ReferenceRun
from quantizer_service.store.catalog import Catalog
from quantizer_service.store.reader import PolicyReader

T = TypeVar("T")

_log = logging.getLogger(__name__)

# Limit of prepared graphs. Most runs have one graph. Runs that grow or shrink layers rarely need old graphs again.
_MAX_GRAPHS = 4


class Emitter:
    """Emits the policies of one run into its catalog. Only one thread at a time may use it. store: see Catalog."""

    def __init__(self, store: PolicyReader, config: QuantizerConfig | None = None) -> None:
        config = config or QuantizerConfig()
        compensate = config.compensate is not False
        options = Options(config.quantize_ends, config.per_tensor_error, compensate=compensate)
        self._prepare = lru_cache(_MAX_GRAPHS)(lambda source: PreparedGraph(Graph.parse(source), options))
        self._store, self._thresholds = store, config.gate
        self._of_groups: dict[bytes, PreparedGraph] = {}
        self.catalog = Catalog(store, self.emit_again)

    def add_graph(self, source: PolicyGraph) -> None:
        """Validate, prepare and keep a graph. Raises InvalidInputError for an invalid graph, and does not keep it."""
        if source.digest not in self._store.graphs:
            self._prepare(source)
            self.catalog.writer.add_graph(source)

    def publish(
        self,
        checkpoint: Checkpoint,
        schemes: Iterable[str],
        announce: Callable[[Sequence[Policy]], None] = lambda policies: None,
        watched: Iterable[Variant] = (),
    ) -> tuple[Policy, ...]:
        """Emit a new version in each scheme, serve it from memory, then store it.

        A scheme is emitted once, in all its watched weight encodings. Without watchers, the version gets the encoding
        that this processor computes exactly.

        announce: called when the policies may be served, before they are stored.
        watched: variants, perhaps of further schemes. A scheme that fails is left out of the version, and its traceback
            is logged.

        These errors change nothing:
        - ConflictError: the version is not above all others, or its graph is missing.
        - InvalidInputError: the version is too far above; or the tensors do not fit the graph, are not finite or do not
          run.
        - UnavailableError: the disk cannot store the version number.

        UnavailableError is also raised when the disk cannot store the version. That version is served, but is lost when
        this process ends.
        """
        self.catalog.check_next(checkpoint.version)
        graph = self._prepared(checkpoint.graph_digest)
        valid = graph.validated(checkpoint)
        compact = graph.without_dead_units(valid)
        ladders = [graph.ladder(scheme) for scheme in schemes]
        encodings: dict[str, list[str]] = {}
        for variant in watched:
            encodings.setdefault(variant.scheme, []).append(variant.weight_encoding)
        optional = [ladder for ladder in map(graph.ladder, encodings) if ladder not in ladders]
        passed = quantize_and_check(self.catalog.run_id, compact, ladders, self._thresholds, optional)
        here, policies = arithmetic().weight_encoding, []
        for attempt in passed:
            wanted = encodings.get(attempt.scheme) or [variant_of(attempt.scheme, here).weight_encoding]
            policies += _encoded(_described(self.catalog.run_id, checkpoint, attempt), wanted)
        self.catalog.serve(checkpoint, policies)
        announce(policies)
        self.catalog.store_newest()
        return tuple(policies)

    def emit_again(self, checkpoint: Checkpoint, scheme: str, thresholds: GateConfig | None = None) -> Policy:
        """Emit a retained version in a missing scheme, with signed weights. thresholds: replace the run's own
        thresholds.
        """
        graph = self._prepared(checkpoint.graph_digest)
        compact = graph.without_dead_units(graph.validated(checkpoint))
        newest = checkpoint.version == self.catalog.newest_version
        # An old version gets its own ladder, because its rung does not predict the next version's rung.
        ladder = graph.ladder(scheme) if newest and not thresholds else Ladder(scheme)
        (passed,) = quantize_and_check(self.catalog.run_id, compact, [ladder], thresholds or self._thresholds)
        return _described(self.catalog.run_id, checkpoint, passed)

    def emit_group(
        self, checkpoint: Checkpoint, scheme: str, group: str, thresholds: GateConfig | None = None
    ) -> tuple[Policy, Checkpoint]:
        """Emit the policy of one group alone. Returns it, and the checkpoint that `reference_run` accepts for it.

        thresholds: replace the run's own thresholds. Raises InvalidInputError as `one_group.alone`.
        """
        whole = self._prepared(checkpoint.graph_digest)
        source, checkpoint = alone(whole.graph, whole.validated(checkpoint), group)
        graph = self._of_groups[source.digest] = self._prepare(source)
        compact = graph.without_dead_units(graph.validated(checkpoint))
        (passed,) = quantize_and_check(self.catalog.run_id, compact, [Ladder(scheme)], thresholds or self._thresholds)
        return _described(self.catalog.run_id, checkpoint, passed), checkpoint

    def reference_run(self, checkpoint: Checkpoint) -> tuple[ReferenceRun, Signature]:
        """The FP32 reference for comparing a version, and its signature."""
        graph = self._prepared(checkpoint.graph_digest)
        run = graph.without_dead_units(graph.validated(checkpoint)).run(self.catalog.run_id, ())
        return run, graph.graph.signature

    def _prepared(self, digest: bytes) -> PreparedGraph:
        if digest in self._of_groups:
            return self._of_groups[digest]
        if digest not in self._store.graphs:
            raise ConflictError(f"checkpoint: this quantizer does not have the graph {digest.hex()}; send it first")
        return self._prepare(self._store.graphs[digest])


def quantize_and_check(
    run_id: str,
    version: CompactVersion,
    ladders: Sequence[Ladder],
    thresholds: GateConfig,
    optional: Sequence[Ladder] = (),
    all_rows: bool = False,
    call_rows: int = 0,
) -> list[Attempt]:
    """Quantize a version on each ladder, at the first rung that passes the gate.

    optional: further ladders. A scheme that fails is left out, and its traceback is logged.
    all_rows: see ReferenceRun. call_rows: see FidelityGate.

    Raises InvalidInputError when the FP32 policy does not run, or its outputs are not finite.
    """

    def observe(ladder: Ladder) -> object:
        return version.form.plans(ladder.scheme).observed(ladder.rung)

    def quantize(ladder: Ladder) -> Attempt:
        emit = partial(version.form.plans(ladder.scheme).quantize, run)
        return ladder.first_passing(version.checkpoint.version, emit, gate)

    planned = [ladder for ladder in optional if _result_of(observe, ladder) is not None]
    run = version.run(run_id, [*ladders, *planned], all_rows)
    gate = FidelityGate(version.published.graph.signature, run, thresholds, call_rows)
    found = [_result_of(quantize, ladder) for ladder in planned]
    return [*map(quantize, ladders), *(attempt for attempt in found if attempt is not None)]


def _result_of(step: Callable[[Ladder], T], ladder: Ladder) -> T | None:
    try:
        return step(ladder)
    except OverdueError:
        raise
    except Exception:
        _log.exception("%s is left out of this version", ladder.scheme)
        return None


def _encoded(policy: Policy, encodings: Iterable[str]) -> list[Policy]:
    """The policy in each encoding that its scheme supports; unchanged if none. Only a package's scheme may fail."""
    found = []
    for encoding in encodings:
        try:
            found.append(in_weight_encoding(policy, encoding))
        except InvalidInputError as error:
            _log.error("%s has no %s weights in this version: %s", policy.descriptor.scheme, encoding, error)
    return found or [policy]


def _described(run_id: str, checkpoint: Checkpoint, passed: Attempt) -> Policy:
    descriptor = PolicyDescriptor(
        run_id=run_id,
        version=checkpoint.version,
        learner_step=checkpoint.learner_step,
        scheme=passed.scheme,
        sha256=hashlib.sha256(passed.model).digest(),
        size_bytes=len(passed.model),
        fp32_size_bytes=sum(array.nbytes for array in checkpoint.parameters.values()),
        snapshot_at=checkpoint.snapshot_at,
        fidelity=passed.report,
        graph_digest=checkpoint.graph_digest,
    )
    return Policy(descriptor, passed.model)
