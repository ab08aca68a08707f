"""int8-static: int8 weights, and uint8 activations with ranges calibrated on recent observations.

A quantized linear layer is a QGemm of com.microsoft, a convolution a QLinearConv, both uint8 by int8. Nodes between two
of them that only move values (Flatten, Reshape, Transpose, MaxPool) work on uint8. Clipping at the lowest integer
computes a Relu. uint8 observations are used unchanged, so the layer that reads them need not stay in float. Everything
else is float, with a QuantizeLinear before each quantized layer.

ONNX Runtime computes the following, bit for bit (a test compares). With [low, high] the range of a tensor over the
calibration batch, in float64

    low  = MARGIN * min(0, low), high = MARGIN * max(0, high)
    s    = float32((high - low) / 255), or 1 where that is below the smallest normal float32
    z    = rint(-low / s)                                      so 0 after a Relu
    q(x) = clip(rint(x / s) + z, 0, 255)                       in float32

low and high stay within the range of the preceding operator: [-1, 1] for Tanh, [0, 1] for Sigmoid and Softmax, at least
-alpha for Elu. x is the input of a layer, W int8 and s_W come from emission.weights.quantize_int8, and b is its bias.
All are in float32 except for the sums:

    c   = rint(b / (s_x * s_W))                                int32; s_W is at least |b| / (2^30 s_x), so that it fits
    acc = sum_k (q_x - z_x) W + c                              int32, exact
    y   = float32(acc) * (s_x * s_W)                           where y is needed in float
    q_y = clip(rint(float32(acc) * (s_x * s_W / s_y)) + z_y, 0, 255)        where the next layer is quantized

rint rounds half to even. `Options.compensate` corrects W and b (emission.correction).

This is integer-only inference as in Jacob et al. 2018 (arXiv 1712.05877), sections 2.1 to 2.4, with ranges from
calibration instead of training. The range is minimum to maximum as in Krishnamoorthi 2018 (arXiv 1806.08342),
section 3.1.1. The rows of a batch do not affect each other.

Values beyond the calibrated range are clipped. The margin makes this rarer (docs/concepts/schemes.md).
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from actorq.quantization.calibration import Observed, Range, Statistic, Statistics
from actorq.quantization.emission.correction import Correction
from actorq.quantization.emission.layer_choice import select
from actorq.quantization.emission.linear import units_first
from actorq.quantization.emission.skeleton import Skeleton
from actorq.quantization.emission.storage import Storage
from actorq.quantization.emission.uint8 import MOVING, Site, Uint8Tensors, uint8_inputs
from actorq.quantization.emission.weights import SMALLEST_SCALE, UINT8_LARGEST, quantize_int8
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.layers import CONVOLUTION, Layer
from actorq.quantization.nodes import MICROSOFT
from actorq.quantization.schemes.base import BuiltIn, Emission, Options
from actorq.quantization.training import Place, TrainingForm, Uint8

# Activations may exceed the calibrated range by this factor before they are clipped.
MARGIN = 1.5
_LARGEST_BIAS = 2.0**30
# The bound above, rounded up in float32, is below this. Sums then fit into 32 bits for up to 33122 extreme inputs.
_LARGEST_CORRECTED_BIAS = 1.001 * 2.0**30


def activation_scale(seen: Range, bounds: Range = (-math.inf, math.inf)) -> tuple[np.float32, np.uint8]:
    """Scale and zero point of a tensor from its observed range and the bounds of its values; see the module."""
    low, high = max(MARGIN * min(0.0, seen[0]), bounds[0]), min(MARGIN * max(0.0, seen[1]), bounds[1])
    scale = np.float32(min((high - low) / UINT8_LARGEST, float(np.finfo(np.float32).max)))
    if scale < SMALLEST_SCALE:
        return np.float32(1), np.uint8(0)
    return scale, np.uint8(np.clip(np.rint(-low / float(scale)), 0, UINT8_LARGEST))


def _map(site: Site, low: float, high: float) -> tuple[np.float32, np.uint8]:
    """Scale and zero point of a site for a tensor with values from low to high."""
    return activation_scale((low, high), site.bounds) if site.scale is None else (np.float32(site.scale), np.uint8(0))


class _Int8StaticPlan:
    """Quantizes linear layers and convolutions that lie between other layers; see `Options.ends`."""

    def __init__(self, graph: Graph, options: Options) -> None:
        exact = uint8_inputs(graph)

        def unfit(layer: Layer) -> str:
            if layer.obstacle or layer.kind == CONVOLUTION or layer.input_rank == 2:
                return layer.obstacle
            return f"input of {layer.input_rank or 'unknown'} dimensions instead of 2"

        self._selection = select(graph, options, unfit, options.ends, frozenset(exact))
        self._per_tensor_error = options.per_tensor_error
        self._correction = Correction(graph, self._selection.layers, options.compensate)
        self._rewriting = _Rewriting(graph, self._selection.layers, self._correction)
        sites = self._rewriting.sites
        ranges = (Observed(site.name, Statistic.RANGE) for site in sites.values() if site.scale is None)
        self.observed = (*ranges, *self._correction.observed)
        self._places = _places(graph, self._rewriting)
        self._storage = Storage(self._selection.stored, options.per_tensor_error)
        self._skeleton = Skeleton(graph, [*self._storage.nodes, *self._rewriting.nodes])

    def training(self) -> Mapping[str, TrainingForm]:
        found = {}
        for layer in self._selection.layers:
            site = self._rewriting.stretches.get(layer.output)
            found[layer.name] = TrainingForm(
                inputs=self._uint8(self._rewriting.sites[self._rewriting.reads[layer]], Place(layer.name, False)),
                outputs=self._uint8(site, Place(layer.name, True)) if site else None,
                largest_bias=_LARGEST_BIAS,
            )
        return found

    def _uint8(self, site: Site, own: Place) -> Uint8:
        def grid(low: float, high: float) -> tuple[float, int]:
            scale, zero_point = _map(site, low, high)
            return float(scale), int(zero_point)

        return Uint8(grid, self._places.get(site.name, own))

    def emit(self, parameters: Parameters, statistics: Statistics, metadata: Mapping[str, str]) -> Emission:
        values, forms = {**parameters, **self._storage.values(parameters)}, {}
        for key, site in self._rewriting.sites.items():
            low, high = (0.0, 0.0) if site.scale else statistics[Observed(site.name, Statistic.RANGE)].tolist()
            scale, zero_point = _map(site, low, high)
            values[f"{key}:scale"], values[f"{key}:zero_point"] = np.asarray(scale), np.asarray(zero_point)
        for layer in self._selection.layers:
            use, input_scale = _use(layer), values[f"{self._rewriting.reads[layer]}:scale"]
            bias = parameters[layer.bias] if layer.bias else None
            least = None if bias is None else (np.abs(bias) / (input_scale * _LARGEST_BIAS)).astype(np.float32)
            weight = units_first(layer, parameters)
            feedback = self._correction.feedback((layer,), statistics)
            rounded = quantize_int8(weight, self._per_tensor_error, least, feedback)
            forms[layer.name] = rounded.form
            values[f"{use}:int8"], values[f"{use}:scale"] = rounded.values, rounded.scale
            values[f"{use}:zero_point"] = np.zeros(rounded.scale.shape, np.int8)
            for corrected in self._correction.biases((layer,), parameters, weight, rounded, statistics).values():
                units = np.rint(corrected / (input_scale * rounded.scale))
                # For inputs far outside their range, a correction could exceed the bound.
                units = np.clip(units, -_LARGEST_CORRECTED_BIAS, _LARGEST_CORRECTED_BIAS)
                values[f"{use}:bias"] = units.astype(np.int32)
        return Emission(self._skeleton.fill(values, metadata), self._selection.report(forms))


@dataclass(frozen=True)
class _Held:
    """A tensor held in uint8: its name in the emitted model, and the key of its site."""

    name: str
    key: str
    site: Site


class _Rewriting:
    """Builds the nodes of the emitted model.

    sites: scales and zero points of activations; their initializers are KEY:scale and KEY:zero_point.
    reads: the key of the site of each layer's input.
    stretches: see Uint8Tensors.
    """

    def __init__(self, graph: Graph, layers: tuple[Layer, ...], correction: Correction) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.sites: dict[str, Site] = {}
        self.reads: dict[Layer, str] = {}
        self._correction = correction
        self._uint8 = Uint8Tensors(graph, layers)
        self.stretches = self._uint8.stretches
        given = graph.inputs & self._uint8.inputs.keys()
        self._held = {name: _Held(name, name, self._uint8.inputs[name]) for name in given}
        products = {layer.nodes[0]: layer for layer in layers}
        absorbed = {index for layer in layers for index in layer.nodes[1:]}
        for index, node in enumerate(graph.model.graph.node):
            if index in products:
                self._layer(products[index], node)
            elif index not in absorbed:
                self._other(node)

    def _layer(self, layer: Layer, node: onnx.NodeProto) -> None:
        held = self._held.get(layer.input) or self._quantized(layer.input)
        self.reads[layer] = held.key
        use = _use(layer)
        source = [held.name, *self._map(held)]
        weight = [f"{use}:{part}" for part in ("int8", "scale", "zero_point")]
        bias = f"{use}:bias" if self._correction.bias_name(layer) else ""
        output, target = layer.output, list[str]()
        if layer.output in self.stretches:
            output = f"{layer.output}:uint8"
            made = _Held(output, layer.output, self.stretches[layer.output])
            self._held[layer.output] = made
            target = self._map(made)
        if layer.kind == CONVOLUTION:
            inputs = [*source, *weight, *target, bias]
            quantized = helper.make_node("QLinearConv", _trimmed(inputs), [output], name=use)
            quantized.attribute.extend(node.attribute)
        else:
            inputs = [*source, *weight, bias, *target]
            quantized = helper.make_node("QGemm", _trimmed(inputs), [output], name=use, domain=MICROSOFT, transB=1)
        self.nodes.append(quantized)
        self._leave(layer.output)

    def _other(self, node: onnx.NodeProto) -> None:
        """Add a node that is not a quantized layer."""
        held = self._held.get(node.input[0]) if node.input else None
        target = node.output[0] if node.output else ""
        site = self._uint8.inputs.get(target)
        # Nodes can still read float inputs. The skeleton drops unused nodes.
        if held is None or target not in self._uint8.tensors:
            self.nodes.append(node)
        if held is None or (site is None and target not in self._uint8.tensors):
            return
        if node.op_type in MOVING:
            moved = deepcopy(node)
            moved.input[0], moved.output[0] = held.name, f"{target}:uint8"
            self.nodes.append(moved)
            self._held[target] = replace(held, name=f"{target}:uint8")
        elif site is not None:
            # The integers stay the same and get another scale.
            self._held[target] = _Held(held.name, target, site)
        else:
            self._held[target] = held
        self._leave(target)

    def _quantized(self, tensor: str) -> _Held:
        held = self._held[tensor] = _Held(f"{tensor}:uint8", tensor, Site(tensor, bounds=self._uint8.bounds(tensor)))
        inputs = [tensor, *self._map(held)]
        self.nodes.append(helper.make_node("QuantizeLinear", inputs, [held.name], name=f"{tensor}:quantize"))
        return held

    def _leave(self, tensor: str) -> None:
        if tensor in self._uint8.exits and tensor in self._held:
            held = self._held[tensor]
            inputs = [held.name, *self._map(held)]
            self.nodes.append(helper.make_node("DequantizeLinear", inputs, [tensor], name=f"{tensor}:dequantize"))

    def _map(self, held: _Held) -> list[str]:
        """The initializers of a scale and zero point. Also adds them to the model."""
        self.sites[held.key] = held.site
        return [f"{held.key}:scale", f"{held.key}:zero_point"]


def _places(graph: Graph, rewriting: _Rewriting) -> dict[str, Place]:
    """The layer inputs and outputs that correspond to the sites' tensors."""
    outputs = {layer.output: Place(layer.name, True) for layer in graph.layers}
    # After a Relu, a tensor has the range of the preceding layer, within the site's bounds.
    relus = {site.name: outputs[output] for output, site in rewriting.stretches.items()}
    return relus | outputs | {layer.input: Place(layer.name, False) for layer in graph.layers}


def _use(layer: Layer) -> str:
    # A bias has the unit of the input's scale. It therefore exists once per node that uses the weight.
    return f"{layer.weight}:{layer.nodes[0]}"


def _trimmed(inputs: list[str]) -> list[str]:
    """The inputs without missing ones at the end."""
    while not inputs[-1]:
        inputs = inputs[:-1]
    return inputs


INT8_STATIC = BuiltIn("int8-static", _Int8StaticPlan)
