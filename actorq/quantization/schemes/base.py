"""What a scheme is: it turns a graph into a plan, and the plan turns parameters into an ONNX model."""

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from actorq.quantization.calibration import Observed, Statistics
from actorq.quantization.emission.options import Emission, Options
from actorq.quantization.graph import Graph
from actorq.quantization.training import TrainingForm

__all__ = ["Emission", "Options", "Plan", "Scheme", "SchemePlan"]


class SchemePlan(Protocol):
    """A scheme applied to one topology."""

    @property
    def observed(self) -> tuple[Observed, ...]:
        """The statistics of the graph's tensors that `emit` needs; empty for schemes that need none."""
        ...

    def training(self) -> Mapping[str, TrainingForm]:
        """What each quantized layer computes, by its name. Layers that are not there are trained in float."""
        ...

    def emit(
        self, parameters: Mapping[str, NDArray[Any]], statistics: Statistics, metadata: Mapping[str, str]
    ) -> Emission:
        """An ONNX model with the parameters inside and the data inputs as its only inputs.

        parameters: float32, checked against the graph by the caller.
        statistics: those in `observed`, over recent observations.
        metadata: what the model says of itself, as its metadata_props.
        """
        ...


class Scheme(Protocol):
    """A way to emit policies."""

    @property
    def name(self) -> str:
        """As actors ask for it: one of actorq.domain.policy.SCHEMES."""
        ...

    def plan(self, graph: Graph, options: Options) -> SchemePlan:
        """Do everything that does not depend on the weights."""
        ...


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
