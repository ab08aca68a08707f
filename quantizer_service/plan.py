"""The plan of a scheme for a topology: everything about emitting a policy that does not depend on the weights."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from quantizer_service.graph import Graph
from quantizer_service.schemes.base import Emission, Options, Scheme
from quantizer_service.statistics import Observed, Statistics


class Plan:
    """Emits versions of one topology in one scheme. The graph is analysed once, here; not safe for several threads."""

    def __init__(self, graph: Graph, scheme: Scheme, options: Options | None = None) -> None:
        self.graph = graph
        self.scheme = scheme.name
        self.options = options or Options()
        self._plan = scheme.plan(graph, self.options)

    @property
    def observed(self) -> tuple[Observed, ...]:
        """The statistics of the graph's tensors that `emit` needs."""
        return self._plan.observed

    def emit(
        self, parameters: Mapping[str, NDArray[Any]], statistics: Statistics, run_id: str, version: int
    ) -> Emission:
        """A complete ONNX model with `parameters` inside, whose metadata names run, version and scheme.

        Equal arguments give equal bytes. Raises InvalidInputError for missing, unexpected, misshapen or non-finite
        parameters.
        """
        self.graph.check_parameters(parameters)
        metadata = {"run_id": run_id, "version": str(version), "scheme": self.scheme}
        return self._plan.emit(parameters, statistics, metadata)
