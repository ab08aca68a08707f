"""LSTMs and GRUs with integer weights, for int8.

An LSTM becomes a DynamicQuantizeLSTM of com.microsoft. ONNX Runtime quantizes both its inputs and its hidden state to
uint8, as in DynamicQuantizeLinear: inputs over the whole tensor, the state at each step over the rows. Products use
integers. Gates and states are float32. Both weights are int8, with the scales of quantize_int8.

ONNX Runtime has no such operator for GRU and RNN. A GRU over one step becomes two DynamicQuantizeMatMul, as in linear
layers, and float32 operators for the gates. A policy whose state is an input has such a GRU. x and h are the input and
the state, float32[1, B, K] and [1, B, H] (Cho et al. 2014, arXiv 1406.1078, eq. 5 to 8). The reset gate follows the
product, as in torch and cuDNN:

    z, r = sigmoid((W x + b_W)_zr + (R h + b_R)_zr),  n = tanh((W x + b_W)_n + r (R h + b_R)_n),  h' = n + z (h - n)
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from actorq.domain.policy import FIDELITY_GATE
from actorq.quantization.emission.options import Options
from actorq.quantization.emission.weights import Int8Weight, quantize_int8
from actorq.quantization.folding import inferred_shapes
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.layers import RECURRENT, Layer, layer_name
from actorq.quantization.nodes import MICROSOFT, attributes_of, readers_of

_INPUTS = 8
# Separate scales for channels cost 4 to 8% of a call's time. One scale may therefore have this many times more error.
_PER_TENSOR = 2.0
# Attributes of torch's GRUs, and the defaults of the operator.
_PLAIN_GRU = {"direction": b"forward", "linear_before_reset": 1, "layout": 0, "clip": 0.0, "activations": []}
_DEFAULTS = _PLAIN_GRU | {"linear_before_reset": 0}


def unfit_for_recurrence(graph: Graph, options: Options) -> Callable[[Layer], str]:
    """Why a recurrent layer cannot use integer products; empty if it can. The result applies to both of its weights."""
    nodes, readers = graph.model.graph.node, readers_of(graph.model.graph)
    outputs = {value.name for value in graph.model.graph.output}

    def unfit(layer: Layer) -> str:
        node = nodes[layer.nodes[0]]
        weights = list(node.input[1:3])
        if node.op_type not in ("LSTM", "GRU"):
            return layer.obstacle
        if node.op_type == "GRU" and not _is_one_plain_step(node, graph):
            return "recurrent: int8 needs a GRU of one step, in torch's form and with its state as an input"
        if attributes_of(node).get("layout", 0):
            return "recurrent: its batch is the first dimension (layout=1)"
        if any(name not in graph.parameters or len(readers[name]) > 1 or name in outputs for name in weights):
            return "recurrent: its weights are shared or computed"
        return FIDELITY_GATE if options.keep_float & set(map(layer_name, weights)) else ""

    return unfit


class RecurrentLayers:
    """The integer LSTMs and GRUs of a plan.

    layers: the quantized layers of the plan. per_tensor_error: as in Options.
    nodes: the new nodes, by the index of the replaced node.
    """

    def __init__(self, graph: Graph, layers: Sequence[Layer], per_tensor_error: float) -> None:
        self._per_tensor_error = _PER_TENSOR * per_tensor_error
        indices = dict.fromkeys(layer.nodes[0] for layer in layers if layer.kind == RECURRENT)
        replaced = [graph.model.graph.node[index] for index in indices]
        self._lstms = [name for node in replaced if node.op_type == "LSTM" for name in node.input[1:3]]
        self._grus = [node for node in replaced if node.op_type == "GRU"]
        self.nodes = {
            index: [_lstm(node)] if node.op_type == "LSTM" else _gru(node)
            for index, node in zip(indices, replaced, strict=True)
        }

    def emit(self, parameters: Parameters) -> tuple[dict[str, NDArray[np.generic]], dict[str, str]]:
        """The tensors of the new nodes by name, and the formats of the weights by layer."""
        values: dict[str, NDArray[np.generic]] = {}
        forms = {}

        def rounded(name: str) -> Int8Weight:
            # [directions, gates * H, K]
            weight = parameters[name]
            found = quantize_int8(weight.reshape(-1, weight.shape[2]), self._per_tensor_error)
            forms[layer_name(name)] = found.form
            return found

        for name in self._lstms:
            weight, found = parameters[name], rounded(name)
            scale = found.scale.reshape(weight.shape[:2]) if found.scale.ndim else np.full(len(weight), found.scale)
            integers = found.values.reshape(weight.shape).transpose(0, 2, 1)
            values[f"{name}:int"], values[f"{name}:scale"] = np.ascontiguousarray(integers), scale
            values[f"{name}:zero_point"] = np.zeros(scale.shape, np.int8)
        for node in self._grus:
            hidden = parameters[node.input[2]].shape[2]
            bias = parameters[node.input[3]] if node.input[3] else np.zeros((1, 6 * hidden), np.float32)
            for name, part in zip(node.input[1:3], np.split(bias[0], 2), strict=True):
                found = rounded(name)
                values |= {f"{name}:int": found.tensor, f"{name}:scale": found.scale, f"{name}:bias": part}
            values[f"{node.input[1]}:two and one"] = np.array([2 * hidden, hidden])
            values[f"{node.input[1]}:one and one"] = np.array([hidden, hidden])
            values[f"{node.input[1]}:axis"] = np.array([0])
        return values, forms


def _lstm(lstm: onnx.NodeProto) -> onnx.NodeProto:
    inputs = [*lstm.input, *[""] * (_INPUTS - len(lstm.input))]
    maps = [f"{name}:{part}" for name in lstm.input[1:3] for part in ("scale", "zero_point")]
    inputs[1:3] = [f"{name}:int" for name in lstm.input[1:3]]
    node = helper.make_node("DynamicQuantizeLSTM", [*inputs, *maps], list(lstm.output), domain=MICROSOFT)
    node.attribute.extend(attribute for attribute in lstm.attribute if attribute.name != "layout")
    return node


def _is_one_plain_step(gru: onnx.NodeProto, graph: Graph) -> bool:
    inputs = [*gru.input, "", "", ""][:6]
    attributes = attributes_of(gru)
    if not inputs[5] or inputs[4] or (inputs[3] and inputs[3] not in graph.parameters):
        return False
    if any(attributes.get(name, _DEFAULTS[name]) != value for name, value in _PLAIN_GRU.items()):
        return False
    sizes = inferred_shapes(graph.model).get(inputs[0], ())
    return len(sizes) == 3 and bool(sizes[0].dim_value == 1)


def _gru(gru: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The nodes of one step. The names of their tensors begin with the weight's name."""
    x, (w, r), state = gru.input[0], gru.input[1:3], gru.input[5]
    steps, last = [*gru.output, ""][:2]
    after = last or f"{w}:after"

    def named(*names: str) -> list[str]:
        return [f"{w}:{name}" for name in names]

    def product(read: str, weight: str, result: str) -> onnx.NodeProto:
        inputs = [read, f"{weight}:int", f"{weight}:scale", "", f"{weight}:bias"]
        return helper.make_node("DynamicQuantizeMatMul", inputs, named(result), domain=MICROSOFT)

    def node(operator: str, inputs: list[str], result: str) -> onnx.NodeProto:
        return helper.make_node(operator, inputs, named(result))

    def split(whole: str, sizes: str, *parts: str) -> onnx.NodeProto:
        return helper.make_node("Split", named(whole, sizes), named(*parts), axis=2)

    nodes = [
        product(x, w, "of input"),
        product(state, r, "of state"),
        split("of input", "two and one", "gates of input", "new of input"),
        split("of state", "two and one", "gates of state", "new of state"),
        node("Add", named("gates of input", "gates of state"), "gates"),
        node("Sigmoid", named("gates"), "open gates"),
        split("open gates", "one and one", "update", "reset"),
        node("Mul", named("reset", "new of state"), "kept of state"),
        node("Add", named("new of input", "kept of state"), "new before"),
        node("Tanh", named("new before"), "new"),
        node("Sub", [state, *named("new")], "difference"),
        node("Mul", named("update", "difference"), "step"),
        helper.make_node("Add", named("new", "step"), [after]),
    ]
    if steps:
        # [steps, directions, B, H]
        nodes.append(helper.make_node("Unsqueeze", [after, *named("axis")], [steps]))
    return nodes
