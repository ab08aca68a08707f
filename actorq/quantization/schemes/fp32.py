"""fp32: the policy as published. It competes with the other schemes: for small networks it is the fastest."""

from collections.abc import Mapping

from actorq.quantization.calibration import Observed, Statistics
from actorq.quantization.emission.layer_choice import select
from actorq.quantization.emission.skeleton import Skeleton
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.schemes.base import BuiltIn, Emission, Options
from actorq.quantization.training import TrainingForm


class _Fp32Plan:
    """Emits the graph with unchanged parameters."""

    observed: tuple[Observed, ...] = ()

    def __init__(self, graph: Graph, options: Options) -> None:
        self._skeleton = Skeleton(graph, graph.model.graph.node)
        selection = select(graph, Options(), lambda layer: "scheme fp32", ends=True)
        self._layers = selection.report({})

    def training(self) -> Mapping[str, TrainingForm]:
        return {}

    def emit(self, parameters: Parameters, statistics: Statistics, metadata: Mapping[str, str]) -> Emission:
        return Emission(self._skeleton.fill(parameters, metadata), self._layers)


FP32 = BuiltIn("fp32", _Fp32Plan)
