"""int4: weights of 4 bits in blocks that share a scale, computed in int8. For wide layers at a batch of one.

A quantized layer is one MatMulNBits of com.microsoft with accuracy_level 4: ONNX Runtime quantizes each row of the
input in blocks of the same size to symmetric int8, multiplies integers and sums the blocks in float32. The weights are
as emission.weights.quantize_int4 gives them. A block has 128 of them, fewer where a layer has fewer inputs. With one
row the weights are read from memory once, and that is all that counts; with more rows int8 is faster. A row's result
does not depend on the other rows.

Blocks with a scale each are the round-to-nearest baseline of GPTQ (Frantar et al. 2022, arXiv 2210.17323, section 4);
with `Options.compensate` weights and biases are corrected as emission.correction says.
First and last layers stay in float as in int8, and `Options.ends` quantizes them.
"""

import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from onnx import helper

from actorq.domain.policy import INT4_PER_BLOCK
from actorq.quantization.emission.correction import Correction
from actorq.quantization.emission.linear import forms_of, held_name, replaced, units_first
from actorq.quantization.emission.selection import select, unfit_for_linear
from actorq.quantization.emission.skeleton import Skeleton
from actorq.quantization.emission.weights import quantize_int4
from actorq.quantization.graph import Graph
from actorq.quantization.layers import Layer
from actorq.quantization.schemes.base import Emission, Options
from actorq.quantization.statistics import Statistics
from actorq.quantization.training import TrainingForm

_DOMAIN = "com.microsoft"
_BLOCKS = (128, 64, 32, 16)
_INT8_COMPUTE = 4


class Int4:
    """Quantizes linear layers of at least 16 inputs that have a layer before and after them."""

    name = "int4"

    def plan(self, graph: Graph, options: Options) -> "_Int4Plan":
        """Choose the layers and rewrite their nodes."""
        return _Int4Plan(graph, options)


class _Int4Plan:
    def __init__(self, graph: Graph, options: Options) -> None:
        selection = select(graph, options, _unfit, options.ends)
        self._layers = selection.report({layer.name: INT4_PER_BLOCK for layer in selection.layers})
        self._correction = Correction(graph, selection.layers, options.compensate, widest=math.inf)
        self.observed = self._correction.observed
        self._forms = forms_of(selection.layers)
        nodes = {}
        for layer in selection.layers:
            # The empty names are zero points, which are 8 when absent, and an order of the inputs.
            held = held_name(layer)
            inputs = [layer.input, f"{held}:int4", f"{held}:scale", "", "", self._correction.bias_name(layer)]
            nodes[layer] = helper.make_node(
                "MatMulNBits",
                inputs,
                [layer.output],
                name=f"{layer.name}:{layer.nodes[0]}",
                domain=_DOMAIN,
                K=layer.inputs,
                N=graph.parameters[layer.weight][layer.channels],
                bits=4,
                block_size=_block(layer.inputs),
                accuracy_level=_INT8_COMPUTE,
            )
        tensors = [f"{held}:{part}" for held in self._forms for part in ("int4", "scale")]
        tensors += self._correction.bias_names
        self._skeleton = Skeleton(graph, replaced(graph, nodes), tensors, {_DOMAIN: 1} if nodes else {})

    def training(self) -> Mapping[str, TrainingForm]:
        layers = (layer for several in self._forms.values() for layer in several)
        return {layer.name: TrainingForm(block=_block(layer.inputs)) for layer in layers}

    def emit(
        self, parameters: Mapping[str, NDArray[Any]], statistics: Statistics, metadata: Mapping[str, str]
    ) -> Emission:
        values = dict(parameters)
        for held, layers in self._forms.items():
            weight = units_first(layers[0], parameters)
            feedback = self._correction.feedback(layers, statistics)
            rounded = quantize_int4(weight, _block(layers[0].inputs), feedback)
            values[f"{held}:int4"], values[f"{held}:scale"] = rounded.packed, rounded.scale
            values |= self._correction.biases(layers, parameters, weight, rounded, statistics)
        return Emission(self._skeleton.fill(values, metadata), self._layers)


def _block(inputs: int) -> int:
    """The largest block that a layer fills."""
    return next(block for block in _BLOCKS if block <= inputs)


def _unfit(layer: Layer) -> str:
    narrow = f"fewer than {_BLOCKS[-1]} inputs" if layer.inputs < _BLOCKS[-1] else ""
    return unfit_for_linear(layer) or narrow
