"""Quantizes the versions of one graph in one scheme, with a plan for each rung of the ladder."""

from collections.abc import Mapping
from dataclasses import replace

from actorq.quantization.calibration import Observed
from actorq.quantization.graph import Graph
from actorq.quantization.schemes import Emission, Options, Scheme
from actorq.quantization.schemes.base import Plan
from actorq.quantization.schemes.fp32 import Fp32
from quantizer_service.emission.ladder import Rung
from quantizer_service.emission.reference_run import ReferenceRun

# Each plan holds a copy of its last emitted weights. Two plans are in use: the rung that passes and the one below.
_MAX_PLANS = 2


class SchemePlans:
    """The plans of one graph in one scheme, made on demand. Not thread-safe.

    widths: published and live units by layer name, for layers with dead units; added to the layer reports.
    """

    def __init__(
        self, graph: Graph, scheme: Scheme, options: Options, widths: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        self._graph = graph
        self._scheme = scheme
        self._options = options
        self._widths = widths or {}
        self._plans: dict[Rung, Plan] = {}
        self._observed: set[Observed] = set()

    def observed(self, rung: Rung) -> frozenset[Observed]:
        """The statistics that this rung needs, and those that earlier versions needed."""
        return frozenset(self._observed).union(self._plan(rung).observed)

    def quantize(self, run: ReferenceRun, rung: Rung) -> Emission:
        """Emit a version in this scheme, with the layers of the rung in float."""
        plan = self._plan(rung)
        # Collects all statistics ever needed, so that the next version's FP32 run measures them together.
        self._observed.update(plan.observed)
        statistics = run.statistics(self._observed) if plan.observed else {}
        emission = plan.emit(run.parameters, statistics, run.run_id, run.checkpoint.version)
        layers = tuple(
            replace(layer, published_units=self._widths[layer.name][0], units=self._widths[layer.name][1])
            if layer.name in self._widths
            else layer
            for layer in emission.layers
        )
        return replace(emission, layers=layers)

    def _plan(self, rung: Rung) -> Plan:
        plan = self._plans.pop(rung, None) or self._new_plan(rung)
        self._plans[rung] = plan
        while len(self._plans) > _MAX_PLANS:
            del self._plans[next(iter(self._plans))]
        return plan

    def _new_plan(self, rung: Rung) -> Plan:
        if rung is None:
            return Plan(self._graph, Fp32(), self._options)
        options = replace(self._options, keep_float=self._options.keep_float | rung)
        return Plan(self._graph, self._scheme, options)
