"""LSTMs as single nodes with integer weights, for int8.

An LSTM becomes a DynamicQuantizeLSTM of com.microsoft. ONNX Runtime quantizes its inputs over the whole tensor, and its
hidden state at each step over the rows, both to uint8 as in DynamicQuantizeLinear. Products are of integers, and gates
and states are float32. Both weights, of the inputs and of the hidden state, are int8, with the scales of quantize_int8.

ONNX Runtime has no such operator for GRU and RNN.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from actorq.domain.policy import FIDELITY_GATE
from actorq.quantization.emission.options import Options
from actorq.quantization.emission.weights import quantize_int8
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.layers import RECURRENT, Layer, layer_name
from actorq.quantization.nodes import MICROSOFT, attributes_of, readers_of

_INPUTS = 8
# A scale for each channel costs 4 to 8% of a call's time. So one scale may lose this many times more than elsewhere.
_PER_TENSOR = 2.0


def unfit_for_lstm(graph: Graph, options: Options) -> Callable[[Layer], str]:
    """Why a recurrent layer cannot be part of an integer LSTM; empty if it can. Its two weights are both so or neither.

    options: the other weight of the LSTM stays in float if this one must.
    """
    nodes, readers = graph.model.graph.node, readers_of(graph.model.graph)
    outputs = {value.name for value in graph.model.graph.output}

    def unfit(layer: Layer) -> str:
        node = nodes[layer.nodes[0]]
        weights = list(node.input[1:3])
        if node.op_type != "LSTM":
            return layer.obstacle
        if attributes_of(node).get("layout", 0):
            return "recurrent: its batch is the first dimension (layout=1)"
        if any(name not in graph.parameters or len(readers[name]) > 1 or name in outputs for name in weights):
            return "recurrent: its weights are shared or computed"
        return FIDELITY_GATE if options.keep_float & set(map(layer_name, weights)) else ""

    return unfit


class RecurrentLayers:
    """The integer LSTMs of a plan.

    layers: the quantized layers of the plan.

    nodes: the new nodes, by the index of the node that each replaces.
    tensors: names of the weights in the new nodes.
    """

    def __init__(self, graph: Graph, layers: Sequence[Layer]) -> None:
        indices = dict.fromkeys(layer.nodes[0] for layer in layers if layer.kind == RECURRENT)
        self.nodes = {index: _node(graph.model.graph.node[index]) for index in indices}
        self._weights = [name for index in indices for name in graph.model.graph.node[index].input[1:3]]
        self.tensors = [f"{name}:{part}" for name in self._weights for part in ("int", "scale", "zero_point")]

    def emit(
        self, parameters: Parameters, per_tensor_error: float
    ) -> tuple[Mapping[str, NDArray[np.generic]], Mapping[str, str]]:
        """Values of `tensors`, and the formats of the weights by layer."""
        values: dict[str, NDArray[np.generic]] = {}
        forms = {}
        for name in self._weights:
            # [directions, 4 H, K]
            weight = parameters[name]
            rounded = quantize_int8(weight.reshape(-1, weight.shape[2]), _PER_TENSOR * per_tensor_error)
            scale = (
                rounded.scale.reshape(weight.shape[:2]) if rounded.scale.ndim else np.full(len(weight), rounded.scale)
            )
            integers = rounded.values.reshape(weight.shape).transpose(0, 2, 1)
            values[f"{name}:int"], values[f"{name}:scale"] = np.ascontiguousarray(integers), scale
            values[f"{name}:zero_point"] = np.zeros(scale.shape, np.int8)
            forms[layer_name(name)] = rounded.form
        return values, forms


def _node(lstm: onnx.NodeProto) -> onnx.NodeProto:
    inputs = [*lstm.input, *[""] * (_INPUTS - len(lstm.input))]
    maps = [f"{name}:{part}" for name in lstm.input[1:3] for part in ("scale", "zero_point")]
    inputs[1:3] = [f"{name}:int" for name in lstm.input[1:3]]
    node = helper.make_node("DynamicQuantizeLSTM", [*inputs, *maps], list(lstm.output), domain=MICROSOFT)
    node.attribute.extend(attribute for attribute in lstm.attribute if attribute.name != "layout")
    return node
