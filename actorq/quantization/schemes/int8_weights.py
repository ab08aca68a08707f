"""int8-weights: int8 when sent, float32 in computation. For small networks, where float32 is the fastest.

Each layer's weight becomes an int8 tensor and a DequantizeLinear that restores it:

    weight' = values * scale    (float32; values and scale as in emission.weights.quantize_int8)

Each channel has its own scale. `Options.int8_storage` (for small files) applies `Options.per_tensor_error` instead.

`Options.compensate` corrects values (emission.correction). It also corrects biases that are parameters of only one
layer, under their names. A layer without a bias gets none, because nodes stay unchanged.

With the session option session.disable_quant_qdq set to 1, ONNX Runtime computes the product once, when it loads the
model. Activations are then never quantized, so the rows of a batch do not affect each other, and first and last layers
are quantized too. Without the option it computes the product on every call, or replaces DequantizeLinear and MatMul
with MatMulNBits, which rounds activations to int8.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from onnx import helper

from actorq.quantization.calibration import Statistics
from actorq.quantization.emission.correction import Correction
from actorq.quantization.emission.layer_choice import select
from actorq.quantization.emission.skeleton import Skeleton
from actorq.quantization.emission.weights import quantize_int8
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.layers import Layer
from actorq.quantization.nodes import reads
from actorq.quantization.schemes.base import BuiltIn, Emission, Options
from actorq.quantization.training import TrainingForm


class _Int8WeightsPlan:
    """Quantizes the weights of all layers, including recurrent layers that have no integer operator."""

    def __init__(self, graph: Graph, options: Options) -> None:
        selection = select(graph, options, lambda layer: "", ends=True)
        self._layers = selection.layers
        # A weight that several layers share has one quantized form.
        self._channels = {layer.weight: layer.channels for layer in self._layers}
        self._users = {name: tuple(each for each in self._layers if each.weight == name) for name in self._channels}
        # The nodes stay unchanged. Only layers without obstacles and with their own bias are therefore corrected.
        plain = [each for each in self._layers if not each.obstacle and each.channels == self._channels[each.weight]]
        self._correction = Correction(graph, plain, options.compensate)
        self._biased = _with_own_bias(graph, plain)
        self.observed = self._correction.observed
        self._report = selection.report
        self._per_tensor_error = options.per_tensor_error if options.int8_storage else 0.0
        dequantize = [
            helper.make_node("DequantizeLinear", [f"{name}:int8", f"{name}:scale"], [name], name=name, axis=axis)
            for name, axis in self._channels.items()
        ]
        self._skeleton = Skeleton(graph, [*dequantize, *graph.model.graph.node])

    def training(self) -> Mapping[str, TrainingForm]:
        return {layer.name: TrainingForm() for layer in self._layers}

    def emit(self, parameters: Parameters, statistics: Statistics, metadata: Mapping[str, str]) -> Emission:
        values = {name: array for name, array in parameters.items() if name not in self._channels}
        forms: dict[str, str] = {}
        for name, axis in self._channels.items():
            weight, users = parameters[name].swapaxes(0, axis), self._users[name]
            feedback = self._correction.feedback(users, statistics)
            rounded = quantize_int8(weight, self._per_tensor_error, feedback=feedback)
            forms |= {layer.name: rounded.form for layer in users}
            values[f"{name}:int8"], values[f"{name}:scale"] = rounded.values.swapaxes(0, axis), rounded.scale
            for layer in self._biased & set(users):
                corrected = self._correction.biases((layer,), parameters, weight, rounded, statistics)
                values |= {str(layer.bias): bias for bias in corrected.values()}
        return Emission(self._skeleton.fill(values, metadata), self._report(forms))


def _with_own_bias(graph: Graph, layers: Iterable[Layer]) -> frozenset[Layer]:
    """The layers whose bias is a parameter that nothing else reads, under any name."""
    nodes = graph.model.graph.node
    uses = Counter(name for node in nodes for name in reads(node))
    uses.update(value.name for value in graph.model.graph.output)
    return frozenset(
        layer
        for layer in layers
        if layer.bias and uses[layer.bias] == 1 and any(layer.bias in nodes[index].input for index in layer.nodes)
    )


INT8_WEIGHTS = BuiltIn("int8-weights", _Int8WeightsPlan)
