"""Prepares a policy graph once for all its versions: FP32 session, compact forms, and a ladder for each scheme."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial

from actorq.domain.policy import Checkpoint
from actorq.quantization.calibration import Observed
from actorq.quantization.compaction import Compactor
from actorq.quantization.footprint import Footprint
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.schemes import Emission, Options, Scheme, scheme_named
from actorq.quantization.schemes.base import Plan
from actorq.quantization.schemes.fp32 import FP32
from quantizer_service.emission.ladder import Ladder, Rung
from quantizer_service.emission.reference import Reference, ReferenceRun
from quantizer_service.emission.sequences import StoredSequences

# Limit of compact forms with plans. Masks change rarely, and a removed unit returns within a few versions or never.
MAX_FORMS = 4

# Each plan holds a copy of its last emitted weights. Two plans are in use: for the current rung and the one below.
_MAX_PLANS = 2


class SchemePlans:
    """The plans of one graph in one scheme, made on demand. Not thread-safe.

    widths: published and live units by layer name, for layers with dead units; added to the layer reports.
    """

    def __init__(
        self, graph: Graph, scheme: Scheme, options: Options, widths: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        self._widths = widths or {}
        self._plan = lru_cache(_MAX_PLANS)(partial(_plan, graph, scheme, options))
        self._observed: set[Observed] = set()

    def observed(self, rung: Rung) -> frozenset[Observed]:
        """The statistics for this rung and for all earlier rungs."""
        return frozenset(self._observed).union(self._plan(rung).observed)

    def quantize(self, run: ReferenceRun, rung: Rung) -> Emission:
        """Emit a version in this scheme, with the layers of the rung in float."""
        plan = self._plan(rung)
        # Collects all statistics that were ever needed. The next version's FP32 run then measures them together.
        self._observed.update(plan.observed)
        statistics = run.statistics(self._observed) if plan.observed else {}
        emission = plan.emit(run.parameters, statistics, run.run_id, run.checkpoint.version)
        layers = {layer.name: layer for layer in emission.layers}
        for name in self._widths.keys() & layers.keys():
            published, live = self._widths[name]
            layers[name] = replace(layers[name], published_units=published, units=live)
        return replace(emission, layers=tuple(layers.values()))


def _plan(graph: Graph, scheme: Scheme, options: Options, rung: Rung) -> Plan:
    if rung is None:
        return Plan(graph, FP32, options)
    return Plan(graph, scheme, replace(options, keep_float=options.keep_float | rung))


@dataclass
class CompactForm:
    """The graph that schemes quantize: the published graph, or one without dead units. widths: see SchemePlans."""

    graph: Graph
    options: Options
    widths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    _plans: dict[str, SchemePlans] = field(default_factory=dict)

    @cached_property
    def reference(self) -> Reference:
        """Runs this graph in FP32."""
        return Reference(self.graph)

    def plans(self, scheme: str) -> SchemePlans:
        """The plans of a scheme. Raises NotFoundError for an unknown scheme."""
        if scheme not in self._plans:
            self._plans[scheme] = SchemePlans(self.graph, scheme_named(scheme), self.options, self.widths)
        return self._plans[scheme]


@dataclass(frozen=True)
class CompactVersion:
    """A validated checkpoint without its dead units.

    form: the graph without dead units, which takes `parameters`; `published` if all units are live.
    """

    checkpoint: Checkpoint
    published: CompactForm
    form: CompactForm
    parameters: Parameters

    def run(self, run_id: str, ladders: Iterable[Ladder], all_rows: bool = False) -> ReferenceRun:
        """Run the FP32 policy for quantization on these ladders. See ReferenceRun."""
        observed = (self.form.plans(ladder.scheme).observed(ladder.rung) for ladder in ladders)
        references = self.published.reference, self.form.reference
        wanted = frozenset().union(*observed)
        return ReferenceRun(run_id, self.checkpoint, *references, self.parameters, wanted, all_rows)


class PreparedGraph:
    """A validated policy graph with the parts that its versions share. Not thread-safe.

    Raises InvalidInputError when the graph needs too much memory or time, or does not run.
    """

    def __init__(self, graph: Graph, options: Options | None = None) -> None:
        self.graph = graph
        self._options = options or Options()
        # Must run before ONNX Runtime opens a session, because that computes constants of any size.
        self._footprint = Footprint(graph.model, tuple(graph.inputs))
        self._whole = CompactForm(graph, self._options)
        # Runs the graph once.
        self.reference = self._whole.reference
        self._compactor = Compactor(graph)
        self._forms: dict[bytes, CompactForm] = {}
        self._ladders: dict[str, Ladder] = {}

    def validated(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint, with its observations limited to the number that the graph can run at once.

        A graph without a state ignores sequences. Raises InvalidInputError unless parameters, observations and
        sequences fit the graph and are finite.
        """
        self.graph.check_parameters(checkpoint.parameters)
        self.graph.check_calibration(checkpoint.calibration)
        calibration = self._footprint.fitting(checkpoint.calibration)
        sequences = StoredSequences.of(checkpoint.sequences, self.graph)
        if sequences is not None:
            sequences = sequences.at_most(self._footprint.most(len(sequences.lengths)))
        kept = {} if sequences is None else sequences.arrays(self.graph)
        # The received bytes contain more observations than the limited checkpoint, so they cannot be reused.
        same = all(len(calibration[name]) == len(batch) for name, batch in checkpoint.calibration.items())
        same &= all(kept[name].shape == array.shape for name, array in checkpoint.sequences.items() if kept)
        received = checkpoint.received if same else None
        return replace(checkpoint, calibration=calibration, sequences=kept, received=received)

    def without_dead_units(self, checkpoint: Checkpoint) -> "CompactVersion":
        """A validated checkpoint in its compact form; the published graph if all units are live."""
        parameters, compactor = checkpoint.parameters, self._compactor
        live = compactor.live_units(parameters)
        compact = None if live is None else compactor.parameters(parameters, live)
        if live is None or compact is None:
            return CompactVersion(checkpoint, self._whole, self._whole, parameters)
        form = self._forms.pop(live.key, None)
        form = form or CompactForm(compactor.graph(live), self._options, compactor.widths(live))
        self._forms[live.key] = form
        while len(self._forms) > MAX_FORMS:
            del self._forms[next(iter(self._forms))]
        return CompactVersion(checkpoint, self._whole, form, compact)

    def ladder(self, scheme: str) -> Ladder:
        """The ladder for new versions in a scheme. Raises NotFoundError for an unknown scheme."""
        return self._ladders.setdefault(scheme, Ladder(scheme_named(scheme).name))
