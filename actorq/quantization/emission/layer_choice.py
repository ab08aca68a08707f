"""Selects the layers of a graph that a scheme quantizes, with a reason for each other layer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from actorq.domain.policy import FIDELITY_GATE, FLOAT32, LayerReport
from actorq.errors import InvalidInputError
from actorq.quantization.emission.options import Options
from actorq.quantization.graph import Graph
from actorq.quantization.layers import CONVOLUTION, RECURRENT, Layer, layer_name
from actorq.quantization.nodes import reads

FIRST, LAST = "first layer", "last layer"
NOT_A_LAYER = "no linear layer or convolution uses it"


@dataclass(frozen=True)
class LayerChoice:
    """The quantized layers, and for every layer by name the reason against quantization (empty if quantized).

    If several nodes share a weight, it is quantized for all of them or for none. stored: layers stored as int8 and
    computed in float, one layer for each weight.
    """

    layers: tuple[Layer, ...]
    reasons: Mapping[str, str]
    stored: tuple[Layer, ...]

    def report(self, forms: Mapping[str, str]) -> tuple[LayerReport, ...]:
        """All layers in the order of the graph. forms: format of each quantized layer's weights, by name."""
        reasons = self.reasons.items()
        return tuple(LayerReport(name, FLOAT32 if reason else forms[name], reason) for name, reason in reasons)


def select(
    graph: Graph, options: Options, unfit: Callable[[Layer], str], ends: bool, exact: frozenset[str] = frozenset()
) -> LayerChoice:
    """Choose the layers of a scheme.

    unfit: returns the reason why the scheme cannot quantize a layer; empty if it can.
    ends: whether the scheme quantizes first and last layers. It quantizes every recurrent layer that it can.
    exact: tensors that quantization represents exactly. A layer that reads one need not stay in float as a first layer.

    Raises InvalidInputError when `options.keep_float` contains an unknown layer.
    """
    weights = {layer.weight for layer in graph.layers}
    reasons: dict[str, str] = {}
    for node in graph.model.graph.node:
        for name in reads(node):
            # The shape of a bias or a mean may be [1, N].
            if name in weights or sum(size > 1 for size in graph.parameters.get(name, ())) > 1:
                reasons.setdefault(layer_name(name), NOT_A_LAYER)
    if unknown := sorted(options.keep_float - reasons.keys()):
        raise InvalidInputError(f"keep_float: expected names among {list(reasons)}, got {unknown}")
    found: dict[str, list[str]] = {}
    for layer in graph.layers:
        found.setdefault(layer.name, []).append(_reason(layer, options, unfit, ends, layer.input in exact))
    reasons |= {name: next(filter(None, several), "") for name, several in found.items()}
    chosen = tuple(layer for layer in graph.layers if not reasons[layer.name])
    stored: dict[str, Layer] = {}
    if options.int8_storage:
        quantized = {layer.weight for layer in chosen}
        for layer in graph.layers:
            if layer.name not in options.keep_float and layer.weight not in quantized:
                stored.setdefault(layer.weight, layer)
    return LayerChoice(chosen, reasons, tuple(stored.values()))


def unfit_for_linear(layer: Layer) -> str:
    """The `unfit` of schemes for linear layers."""
    return layer.obstacle or ("convolution: only int8-static quantizes it" if layer.kind == CONVOLUTION else "")


def _reason(layer: Layer, options: Options, unfit: Callable[[Layer], str], ends: bool, exact: bool) -> str:
    if reason := unfit(layer):
        return reason
    # One operator computes both products of a recurrent layer. Its gates reduce the error.
    at_end = not ends and layer.kind != RECURRENT
    if at_end and layer.first and not exact:
        return FIRST
    if at_end and layer.last:
        return LAST
    return FIDELITY_GATE if layer.name in options.keep_float else ""
