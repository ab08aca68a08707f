"""What a scheme is: it turns a graph into a plan, and the plan turns parameters into an ONNX model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from actorq.policy import LayerReport
from quantizer_service.graph import Graph
from quantizer_service.statistics import Observed, Statistics


@dataclass(frozen=True)
class Options:
    """What is asked of a plan besides its scheme.

    ends: quantize the first and last layers too.
    per_tensor_error: relative error of a layer's weights, as a Frobenius norm for each channel, root mean square over
        them, up to which one scale for all of its channels is good enough; 0 gives each channel its own.
    keep_float: names of layers that must stay in float.
    compensate: make up for the rounding of weights by what the calibration batch tells of each layer's inputs
        (schemes.correction). Without it weights are rounded to nearest and biases are as they were published.
    """

    ends: bool = False
    per_tensor_error: float = 0.01
    keep_float: frozenset[str] = frozenset()
    compensate: bool = True


@dataclass(frozen=True)
class Emission:
    """A version of a policy in one scheme: an ONNX model with its parameters inside, and how it holds each layer.

    layers: in the order of the graph; also those that the scheme cannot quantize, with the reason.
    """

    model: bytes
    layers: tuple[LayerReport, ...]


class SchemePlan(Protocol):
    """A scheme applied to one topology."""

    @property
    def observed(self) -> tuple[Observed, ...]:
        """The statistics of the graph's tensors that `emit` needs; empty for schemes that need none."""
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
        """As actors ask for it: one of actorq.policy.SCHEMES."""
        ...

    def plan(self, graph: Graph, options: Options) -> SchemePlan:
        """Do everything that does not depend on the weights."""
        ...
