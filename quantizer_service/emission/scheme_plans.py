"""Quantizes the versions of one graph in one scheme, with a plan for each rung of the ladder."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial

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
        self._widths = widths or {}
        self._plan = lru_cache(_MAX_PLANS)(partial(_plan, graph, scheme, options))
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
        layers = {layer.name: layer for layer in emission.layers}
        for name in self._widths.keys() & layers.keys():
            published, live = self._widths[name]
            layers[name] = replace(layers[name], published_units=published, units=live)
        return replace(emission, layers=tuple(layers.values()))


def _plan(graph: Graph, scheme: Scheme, options: Options, rung: Rung) -> Plan:
    if rung is None:
        return Plan(graph, Fp32(), options)
    return Plan(graph, scheme, replace(options, keep_float=options.keep_float | rung))
