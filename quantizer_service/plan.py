"""The plan of a scheme for a topology: everything about emitting a policy that does not depend on the weights."""

from collections.abc import Mapping
from typing import Any

import onnx
from numpy.typing import NDArray

from quantizer_service.graph import Graph
from quantizer_service.schemes.base import Scheme


class Plan:
    """Emits versions of one topology in one scheme. The graph is analysed once, here; not safe for several threads."""

    def __init__(self, graph: Graph, scheme: Scheme) -> None:
        self.graph = graph
        self.scheme = scheme.name
        self._plan = scheme.plan(graph)

    @property
    def float_layers(self) -> tuple[str, ...]:
        """Names of the layers that the scheme leaves in float, in the order of the graph's inputs."""
        return self._plan.float_layers

    def emit(self, parameters: Mapping[str, NDArray[Any]], run_id: str, version: int) -> bytes:
        """A complete ONNX model with `parameters` inside, whose metadata names run, version and scheme.

        Equal arguments give equal bytes. Raises InvalidInputError for missing, unexpected, misshapen or non-finite
        parameters.
        """
        self.graph.check_parameters(parameters)
        return self._plan.emit(parameters) + _metadata(run_id=run_id, version=str(version), scheme=self.scheme)


def _metadata(**properties: str) -> bytes:
    # Parsing two concatenated messages merges them, so the metadata need not be set in a model that is kept.
    entries = [onnx.StringStringEntryProto(key=key, value=value) for key, value in properties.items()]
    return onnx.ModelProto(metadata_props=entries).SerializeToString()
