"""Quantizes linear layers, LSTMs and GRUs to single nodes with integer weights. Used by int8 and int4."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray

from actorq.quantization.calibration import Statistics
from actorq.quantization.emission.correction import WIDEST_INT8, Correction
from actorq.quantization.emission.layer_choice import select
from actorq.quantization.emission.options import Emission, Options
from actorq.quantization.emission.recurrent import RecurrentLayers
from actorq.quantization.emission.rounding import ErrorFeedback
from actorq.quantization.emission.skeleton import Skeleton
from actorq.quantization.emission.storage import Storage
from actorq.quantization.emission.weights import Int4Weight, Int8Weight
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.layers import RECURRENT, Layer
from actorq.quantization.nodes import MICROSOFT
from actorq.quantization.training import TrainingForm


@dataclass(frozen=True)
class LinearScheme:
    """A scheme's rules for linear layers. unfit: see `select`. widest: see Correction.

    node: returns the node of a layer. Its arguments are the names of integers, scales, and bias (empty for none).
    rounded: rounds a layer's weight float32[N, K] to integers, with error feedback if given.
    """

    unfit: Callable[[Layer], str]
    node: Callable[[Layer, str, str, str], onnx.NodeProto]
    rounded: Callable[[Layer, NDArray[Any], ErrorFeedback | None], Int8Weight | Int4Weight]
    training: Callable[[Layer], TrainingForm]
    widest: float = WIDEST_INT8


class LinearPlan:
    """Quantizes the linear layers between other layers, or all linear layers with `Options.ends`."""

    def __init__(self, graph: Graph, options: Options, scheme: LinearScheme) -> None:
        self._scheme = scheme
        self._selection = select(graph, options, scheme.unfit, options.ends)
        self._recurrent = RecurrentLayers(graph, self._selection.layers, options.per_tensor_error)
        self._linear = tuple(layer for layer in self._selection.layers if layer.kind != RECURRENT)
        self._correction = Correction(graph, self._linear, options.compensate, scheme.widest)
        self.observed = self._correction.observed
        # A weight that several layers share is stored once for each orientation.
        self._layers: dict[str, tuple[Layer, ...]] = {}
        nodes = {}
        for layer in self._linear:
            held = f"{layer.weight}:{layer.channels}"
            self._layers[held] = (*self._layers.get(held, ()), layer)
            node = scheme.node(layer, f"{held}:int", f"{held}:scale", self._correction.bias_name(layer))
            node.name, node.domain = f"{layer.name}:{layer.nodes[0]}", MICROSOFT
            nodes[layer] = node
        replaced = {layer.nodes[0]: [node] for layer, node in nodes.items()} | self._recurrent.nodes
        absorbed = {index for layer in nodes for index in layer.nodes[1:]}
        old = ((index, node) for index, node in enumerate(graph.model.graph.node) if index not in absorbed)
        kept = [new for index, node in old for new in replaced.get(index, [node])]
        self._storage = Storage(self._selection.stored, options.per_tensor_error)
        self._skeleton = Skeleton(graph, [*self._storage.nodes, *kept])

    def training(self) -> Mapping[str, TrainingForm]:
        """The training form of each quantized layer, by its name."""
        return {layer.name: self._scheme.training(layer) for layer in self._linear}

    def emit(self, parameters: Parameters, statistics: Statistics, metadata: Mapping[str, str]) -> Emission:
        """A model with these parameters as constants."""
        values, forms = {**parameters, **self._storage.values(parameters)}, {}
        for held, layers in self._layers.items():
            weight = units_first(layers[0], parameters)
            rounded = self._scheme.rounded(layers[0], weight, self._correction.feedback(layers, statistics))
            values[f"{held}:int"], values[f"{held}:scale"] = rounded.tensor, rounded.scale
            values |= self._correction.biases(layers, parameters, weight, rounded, statistics)
            forms[layers[0].name] = rounded.form
        recurrent, of_recurrent = self._recurrent.emit(parameters)
        model = self._skeleton.fill(values | recurrent, metadata)
        return Emission(model, self._selection.report(forms | of_recurrent))


def units_first(layer: Layer, parameters: Parameters) -> NDArray[Any]:
    """The weight of a layer as [N, K] or [N, C, h, w], for any orientation in the graph."""
    return parameters[layer.weight].swapaxes(0, layer.channels)
