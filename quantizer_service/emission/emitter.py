"""The way of a checkpoint: validated, made compact, quantized, checked, described, served and stored.

Plain calls with plain values: it knows neither the network nor threads, and must be used by one thread at a time.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from actorq.config.sections import GateConfig, QuantizerConfig
from actorq.domain.policy import Checkpoint, Policy, PolicyDescriptor, PolicyGraph
from actorq.errors import ConflictError
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Options
from quantizer_service.emission.gate import FidelityGate
from quantizer_service.emission.ladder import Attempt, Ladder
from quantizer_service.emission.prepared_graph import CompactVersion, PreparedGraph
from quantizer_service.emission.reference import Batch, Outputs
from quantizer_service.store.catalog import Catalog
from quantizer_service.store.reader import PolicyReader

# Graphs that are kept prepared. A run has one; with growing and shrinking layers old ones are not needed again soon.
_MAX_GRAPHS = 4


class Emitter:
    """Emits the policies of one run into its catalog.

    store: a PolicyReader is served as it was when it was opened; nothing can be published then.
    config: how to quantize.

    catalog: finds what was emitted.
    """

    def __init__(self, store: PolicyReader, config: QuantizerConfig | None = None) -> None:
        config = config or QuantizerConfig()
        self._options = Options(
            ends=config.quantize_ends,
            per_tensor_error=config.per_tensor_error,
            compensate=config.compensate is not False,
        )
        self._thresholds = config.gate
        self._graphs: dict[bytes, PreparedGraph] = {}
        self.catalog = Catalog(store, self.emit_again)

    def add_graph(self, source: PolicyGraph) -> None:
        """Validate a graph, prepare and keep it; raises InvalidInputError and keeps nothing when it is not valid."""
        if source.topology not in self.catalog.graphs:
            graph = PreparedGraph(Graph.parse(source), self._options)
            self.catalog.add_graph(source)
            self._keep(graph)

    def publish(
        self,
        checkpoint: Checkpoint,
        schemes: Iterable[str],
        announce: Callable[[Sequence[Policy]], None] = lambda policies: None,
    ) -> tuple[Policy, ...]:
        """Emit a new version in each of the schemes, serve it from memory, then store it.

        announce: called once the policies may be served, before they are stored.

        Raises ConflictError when its version is not above all before or its graph is not here, InvalidInputError when
        its version is too far above, or its tensors do not fit the graph, are not finite or do not run, and
        UnavailableError when the disk does not take its number; then nothing has changed. Raises UnavailableError, too,
        when the disk does not take the version; then it is served, but lost with this process.
        """
        self.catalog.check_next(checkpoint.version)
        graph = self._prepared(checkpoint.topology)
        valid = graph.validated(checkpoint)
        compact = graph.without_dead_units(valid)
        ladders = [graph.ladder(scheme) for scheme in schemes]
        passed = quantize_and_check(self.catalog.run_id, compact, ladders, self._thresholds)
        policies = tuple(_described(self.catalog.run_id, checkpoint, each) for each in passed)
        self.catalog.serve(checkpoint, policies)
        announce(policies)
        self.catalog.store_newest()
        return policies

    def emit_again(self, checkpoint: Checkpoint, scheme: str, thresholds: GateConfig | None = None) -> Policy:
        """Emit a retained version in a scheme that it lacks; `thresholds` replace those of the run's gate."""
        graph = self._prepared(checkpoint.topology)
        compact = graph.without_dead_units(graph.validated(checkpoint))
        newest = checkpoint.version == self.catalog.newest_version
        # What an old version needs says nothing about the next one.
        ladder = graph.ladder(scheme) if newest and not thresholds else Ladder(scheme)
        (passed,) = quantize_and_check(self.catalog.run_id, compact, [ladder], thresholds or self._thresholds)
        return _described(self.catalog.run_id, checkpoint, passed)

    def reference_outputs(self, checkpoint: Checkpoint) -> tuple[Batch, Outputs, PolicyGraph]:
        """The observations on which a version is compared, what its FP32 policy gives for them, and its graph."""
        graph = self._prepared(checkpoint.topology)
        run = graph.without_dead_units(graph.validated(checkpoint)).run(self.catalog.run_id, ())
        return run.batch, run.outputs, graph.graph.source

    def _prepared(self, digest: bytes) -> PreparedGraph:
        if digest in self._graphs:
            return self._graphs[digest]
        if digest not in self.catalog.graphs:
            raise ConflictError(f"checkpoint: the graph {digest.hex()} is not here; send it first")
        return self._keep(PreparedGraph(Graph.parse(self.catalog.graphs[digest]), self._options))

    def _keep(self, graph: PreparedGraph) -> PreparedGraph:
        while len(self._graphs) >= _MAX_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        self._graphs[graph.graph.topology] = graph
        return graph


def quantize_and_check(
    run_id: str, version: CompactVersion, ladders: Sequence[Ladder], thresholds: GateConfig, all_rows: bool = False
) -> list[Attempt]:
    """Quantize a version on each ladder, at the first rung whose fidelity passes the gate.

    all_rows: see ReferenceRun.of.

    Raises InvalidInputError when the FP32 policy does not run, or its outputs are not finite.
    """
    run = version.run(run_id, ladders, all_rows)
    gate = FidelityGate(version.published.graph.source, run, thresholds)
    return [
        ladder.first_passing(version.checkpoint.version, partial(version.form.plans(ladder.scheme).quantize, run), gate)
        for ladder in ladders
    ]


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
        topology=checkpoint.topology,
    )
    return Policy(descriptor, passed.model)
