"""What a scheme is: it turns a graph into a plan, and the plan turns parameters into an ONNX model."""

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from quantizer_service.graph import Graph


class SchemePlan(Protocol):
    """A scheme applied to one topology."""

    @property
    def float_layers(self) -> tuple[str, ...]:
        """Names of the layers that compute with float32 weights, in the order of the graph's inputs."""
        ...

    def emit(self, parameters: Mapping[str, NDArray[Any]]) -> bytes:
        """An ONNX model with the parameters inside and the data inputs as its only inputs.

        parameters: float32, checked against the graph by the caller.
        """
        ...


class Scheme(Protocol):
    """A way to emit policies."""

    @property
    def name(self) -> str:
        """As actors ask for it, such as "int8"."""
        ...

    def plan(self, graph: Graph) -> SchemePlan:
        """Do everything that does not depend on the weights."""
        ...
