"""Finds the layers of a policy graph, their neighbors, and obstacles to quantization."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx

from actorq.quantization.folding import inferred_shapes
from actorq.quantization.nodes import STANDARD, attributes_of, live_nodes, reached, reads

_LAYERS = ("Gemm", "MatMul", "Conv", "ConvTranspose")
# Operators that rearrange a weight and keep its values.
_REARRANGING = ("Transpose", "Identity", "Reshape", "Cast", "Squeeze", "Unsqueeze")
# Their second and third inputs are the weights, [directions, gates * hidden, inputs].
RECURRENT_OPERATORS = ("LSTM", "GRU", "RNN")
BATCH_FIRST_STATES = (
    "torch's recurrent states are [layers, B, H]: export a module whose states are [B, layers, H], with "
    "state.transpose(0, 1)"
)
_AVERAGING = ("ReduceMean", "GlobalAveragePool", "AveragePool")
LINEAR, CONVOLUTION, RECURRENT = "linear", "convolution", "recurrent"
# A sum of this many products of at most 255 * 127 fits into 32 bits, together with a bias of 30 bits.
MAX_INPUTS = 2**30 // (255 * 127)


@dataclass(frozen=True)
class Layer:
    """y = x W + b as one node (Gemm) or two (MatMul, Add), or y = x * W + b as one Conv. W and b are parameters.

    Each of the two weights of an LSTM, GRU or RNN is also a layer, with an obstacle.

    name: the weight's name without ".weight".
    kind: LINEAR, CONVOLUTION or RECURRENT.
    nodes: indices in the graph's nodes; the first one multiplies.
    input, output: tensors of the graph.
    channels: dimension of the weight that counts the outputs: 0 in [N, K] and [N, C, h, w], 1 in [K, N] and [D, N, K].
    inputs: number of products summed for one output, K.
    input_rank: rank of `input`; None if unknown.
    first: whether no layer lies between it and any observation. A hidden state does not count as an observation.
    last: whether no layer lies between it and any output, and an output depends on it other than by means over its
        units. Means reduce errors, such as the means over the quantiles of values.
    obstacle: the reason why no quantized operator computes this layer; empty for most layers.
    """

    name: str
    kind: str
    nodes: tuple[int, ...]
    input: str
    output: str
    weight: str
    bias: str | None
    channels: int
    inputs: int
    input_rank: int | None = None
    first: bool = False
    last: bool = False
    obstacle: str = ""


def layer_name(weight: str) -> str:
    """The layer of a weight: the weight's name without ".weight"."""
    return weight.removesuffix(".weight")


def find_layers(model: onnx.ModelProto, parameters: Mapping[str, tuple[int, ...]]) -> tuple[Layer, ...]:
    """The layers of a policy graph in its order. A weight used by several nodes gives several layers of one name."""
    nodes = model.graph.node
    origins = _origins(nodes, parameters)
    matrices = {name for name, origin in origins.items() if len(parameters[origin.parameter]) > 1}
    found = [(index, position) for index, node in enumerate(nodes) for position in _weights_of(node, matrices)]
    indices = {index for index, _ in found}
    after = reached(nodes, {name for index in indices for name in nodes[index].output})
    _, before = live_nodes(nodes, {name for index in indices for name in reads(nodes[index])})
    _, direct = live_nodes(
        (node for node in nodes if node.domain not in STANDARD or node.op_type not in _AVERAGING),
        (value.name for value in model.graph.output),
    )
    states = _states(model, parameters)
    observed = reached(nodes, {value.name for value in model.graph.input} - parameters.keys() - states)
    hidden = reached(nodes, states) - observed
    uses = Counter(name for node in nodes for name in reads(node))
    uses.update(value.name for value in model.graph.output)
    shapes = inferred_shapes(model)
    layers = []
    for index, position in found:
        layer = _Reading(nodes, parameters, index, position, origins, uses).layer()
        inputs, outputs = set(reads(nodes[index])), nodes[index].output
        rank = len(shapes[layer.input]) if layer.input in shapes else None
        first = after.isdisjoint(inputs) and (hidden.isdisjoint(inputs) or not observed.isdisjoint(inputs))
        last = before.isdisjoint(outputs) and not direct.isdisjoint(outputs)
        layers.append(replace(layer, input_rank=rank, first=first, last=last))
    return tuple(layers)


@dataclass(frozen=True)
class _Origin:
    """The parameter that a tensor comes from, possibly transposed or rearranged by other operators."""

    parameter: str
    transposed: bool = False
    rearranged: bool = False


def _origins(nodes: Sequence[onnx.NodeProto], parameters: Mapping[str, tuple[int, ...]]) -> dict[str, _Origin]:
    origins = {name: _Origin(name) for name in parameters}
    for node in nodes:
        if node.domain not in STANDARD or node.op_type not in _REARRANGING or node.input[0] not in origins:
            continue
        origin = origins[node.input[0]]
        if node.op_type == "Transpose" and len(parameters[origin.parameter]) == 2:
            turned = attributes_of(node).get("perm", [1, 0]) == [1, 0]
            origin = replace(origin, transposed=origin.transposed != turned)
        elif node.op_type != "Identity":
            origin = replace(origin, rearranged=True)
        origins[node.output[0]] = origin
    return origins


def _weights_of(node: onnx.NodeProto, matrices: set[str]) -> list[int]:
    """The indices of a node's inputs that are weights."""
    if node.domain not in STANDARD or node.op_type not in (*_LAYERS, *RECURRENT_OPERATORS):
        return []
    places = (1, 2) if node.op_type in RECURRENT_OPERATORS else (1, 0)
    found = [place for place in places if place < len(node.input) and node.input[place] in matrices]
    return found if node.op_type in RECURRENT_OPERATORS else found[:1]


def _states(model: onnx.ModelProto, parameters: Mapping[str, tuple[int, ...]]) -> set[str]:
    """The data inputs that are hidden states. A later output of the same type and shape depends on each."""

    def form(value: onnx.ValueInfoProto) -> tuple[int, ...]:
        tensor = value.type.tensor_type
        return (tensor.elem_type, len(tensor.shape.dim), *(dim.dim_value for dim in tensor.shape.dim[1:]))

    forms = {output.name: form(output) for output in model.graph.output[1:]}
    data = [value for value in model.graph.input if value.name not in parameters]
    states = set()
    # The first data input is an observation.
    for value in data[1:]:
        later = {name for name, of_output in forms.items() if of_output == form(value)}
        if later and not later.isdisjoint(reached(model.graph.node, {value.name})):
            states.add(value.name)
    return states


@dataclass
class _Reading:
    """A node with a weight, while it is analyzed."""

    nodes: Sequence[onnx.NodeProto]
    parameters: Mapping[str, tuple[int, ...]]
    index: int
    position: int
    origins: dict[str, _Origin]
    uses: "Counter[str]"
    obstacles: list[str] = field(default_factory=list)

    def layer(self) -> Layer:
        node = self.nodes[self.index]
        origin = self.origins[node.input[self.position]]
        shape = self.parameters[origin.parameter]
        if node.op_type in RECURRENT_OPERATORS:
            schemes = "int8-weights quantizes" if node.op_type == "RNN" else "int8-weights and int8 quantize"
            return Layer(
                name=layer_name(origin.parameter),
                kind=RECURRENT,
                nodes=(self.index,),
                input=node.input[0],
                output=node.output[0],
                weight=origin.parameter,
                bias=None,
                channels=len(shape) - 2,
                inputs=shape[-1],
                obstacle=f"recurrent: only {schemes} it",
            )
        if self.position != 1:
            self.obstacles.append("the weight is multiplied from the left")
        if origin.rearranged:
            self.obstacles.append("the weight is rearranged before its use")
        channels = self._channels(node, origin, shape)
        add, output, bias = self._add(node, shape, channels)
        if len(node.input) > 2 and node.input[2]:
            bias = self._bias(node.input[2], shape, channels)
            if bias is None:
                self.obstacles.append("the bias is not one parameter for each output")
        inputs = math.prod(shape[:channels] + shape[channels + 1 :])
        if inputs > MAX_INPUTS:
            self.obstacles.append(f"more than {MAX_INPUTS} inputs overflow 32-bit sums")
        return Layer(
            name=layer_name(origin.parameter),
            kind=CONVOLUTION if node.op_type.startswith("Conv") else LINEAR,
            nodes=(self.index, *add),
            input=node.input[1 - self.position],
            output=output,
            weight=origin.parameter,
            bias=bias,
            channels=channels,
            inputs=inputs,
            obstacle=next(iter(self.obstacles), ""),
        )

    def _channels(self, node: onnx.NodeProto, origin: _Origin, shape: Sequence[int]) -> int:
        if node.op_type == "Conv":
            if len(shape) not in (3, 4):
                self.obstacles.append(f"convolution over {len(shape) - 2} dimensions")
            return 0
        if node.op_type == "ConvTranspose":
            self.obstacles.append("transposed convolution")
            return 1
        if len(shape) != 2:
            self.obstacles.append(f"weight of {len(shape)} dimensions")
            return max(0, len(shape) - 1)
        turned = origin.transposed
        if node.op_type == "Gemm":
            attributes = attributes_of(node)
            plain = (attributes.get("alpha", 1.0), attributes.get("beta", 1.0), attributes.get("transA", 0))
            if plain != (1.0, 1.0, 0):
                self.obstacles.append("scaled Gemm")
            turned = turned != bool(attributes.get("transB", 0))
        return 0 if turned else 1

    def _add(self, layer: onnx.NodeProto, shape: tuple[int, ...], channels: int) -> tuple[list[int], str, str | None]:
        """The Add that adds a bias to a MatMul, the layer's output, and the bias, if there are any."""
        product = layer.output[0]
        if layer.op_type == "MatMul" and self.uses[product] == 1:
            for position, node in enumerate(self.nodes):
                if node.op_type == "Add" and node.domain in STANDARD and product in node.input:
                    other = next((name for name in node.input if name != product), product)
                    if (bias := self._bias(other, shape, channels)) is not None:
                        return [position], node.output[0], bias
        return [], product, None

    def _bias(self, tensor: str, shape: tuple[int, ...], channels: int) -> str | None:
        """The parameter behind a bias; None unless it has one value for each output."""
        origin = self.origins.get(tensor)
        if origin is None or origin.rearranged or self.parameters[origin.parameter] != shape[channels : channels + 1]:
            return None
        return origin.parameter
