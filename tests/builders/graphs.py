"""Policy graphs with signatures."""

from typing import Any

import onnx
from google.protobuf.message import DecodeError

from actorq.domain.policy import PolicyGraph
from actorq.domain.signature import Role, signature_of
from actorq.quantization.signatures import signed_graph


def graph_of(
    model: bytes, inputs: tuple[str, ...] = ("observation",), discrete: bool = True, **acting: Any
) -> PolicyGraph:
    """The graph of a model with these data inputs. Bytes that are no model stay as they are.

    acting: spans or sizes of the first output.
    """
    try:
        parsed = onnx.ModelProto.FromString(model)
    except DecodeError:
        return PolicyGraph(model, signature_of(inputs, [Role.VALUES], discrete, **acting))
    outputs = [value.name for value in parsed.graph.output]
    if not outputs:
        return PolicyGraph(model, signature_of(inputs, [Role.VALUES], discrete, **acting))
    return signed_graph(parsed, signature_of(inputs, outputs, discrete, **acting))


def resigned(graph: PolicyGraph, discrete: bool | None = None, **acting: Any) -> PolicyGraph:
    """The same model with another signature."""
    inputs = tuple(port.name for port in graph.signature.inputs)
    return graph_of(graph.model, inputs, graph.signature.is_discrete if discrete is None else discrete, **acting)
