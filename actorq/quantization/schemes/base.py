"""The interface of schemes. A scheme turns a graph into a plan. The plan turns parameters into an ONNX model."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from actorq.domain.signature import METADATA
from actorq.quantization.calibration import Observed, Statistics
from actorq.quantization.emission.options import Emission, Options
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.training import TrainingForm

__all__ = ["BuiltIn", "Emission", "Options", "Plan", "Scheme", "SchemePlan"]


class SchemePlan(Protocol):
    """A scheme applied to one graph."""

    @property
    def observed(self) -> tuple[Observed, ...]:
        """The statistics of the graph's tensors that `emit` needs; empty for schemes without calibration."""

    def training(self) -> Mapping[str, TrainingForm]:
        """The computation of each quantized layer, by its name. Missing layers are trained in float."""

    def emit(self, parameters: Parameters, statistics: Statistics, metadata: Mapping[str, str]) -> Emission:
        """An ONNX model with the parameters as constants and only the data inputs as inputs.

        parameters: float32, checked against the graph by the caller.
        statistics: those in `observed`, over recent observations.
        metadata: the model's metadata_props.
        """


class Scheme(Protocol):
    """A way to emit policies."""

    @property
    def name(self) -> str:
        """The name of the scheme in settings and messages."""

    def plan(self, graph: Graph, options: Options, /) -> SchemePlan:
        """Do all work that does not depend on the weights."""


class BuiltIn(NamedTuple):
    """A scheme of this project."""

    name: str
    plan: Callable[[Graph, Options], SchemePlan]


class Plan:
    """Emits versions of one graph in one scheme. It analyzes the graph once. Not thread-safe."""

    def __init__(self, graph: Graph, scheme: Scheme, options: Options | None = None) -> None:
        self.graph = graph
        self.scheme = scheme.name
        self.options = options or Options()
        self._plan = scheme.plan(graph, self.options)
        self.observed = self._plan.observed
        self._metadata = {"scheme": self.scheme, METADATA: graph.signature.to_text()}

    def emit(self, parameters: Parameters, statistics: Statistics, run_id: str, version: int) -> Emission:
        """A complete ONNX model with `parameters` as constants. Its metadata name run, version, scheme and signature.

        Equal arguments give equal bytes. Raises InvalidInputError for parameters that do not fit the graph.
        """
        self.graph.check_parameters(parameters)
        return self._plan.emit(parameters, statistics, {"run_id": run_id, "version": str(version), **self._metadata})
