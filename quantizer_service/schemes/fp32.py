"""fp32: the policy as it was published. For small networks it is the fastest, so it is a choice like any other."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from quantizer_service.graph import Graph
from quantizer_service.layers import layer_name
from quantizer_service.schemes.skeleton import Skeleton


class Fp32:
    """Emits the graph with its parameters as they are."""

    name = "fp32"

    def plan(self, graph: Graph) -> "_Fp32Plan":
        """Prepare the graph with slots for its parameters."""
        return _Fp32Plan(graph)


class _Fp32Plan:
    def __init__(self, graph: Graph) -> None:
        self._skeleton = Skeleton(graph, list(graph.model.graph.node))
        self.float_layers = tuple(layer_name(name) for name, shape in graph.parameters.items() if len(shape) > 1)

    def emit(self, parameters: Mapping[str, NDArray[Any]]) -> bytes:
        return self._skeleton.fill(parameters)
