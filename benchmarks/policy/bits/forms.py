"""Rounded forms of a policy for any number of bits: the FP32 graph with rounded weights and rounding nodes."""

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from actorq.domain.policy import FP32
from actorq.domain.signature import METADATA, Role
from actorq.quantization.calibration import Batch, Observed, Statistic
from actorq.quantization.emission.correction import Correction
from actorq.quantization.emission.skeleton import Skeleton
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.layers import CONVOLUTION
from benchmarks.policy.bits import quantizers
from benchmarks.policy.bits.quantizers import Grid
from quantizer_service.emission.reference import Reference

# Lowest and highest action, [components] each.
Bounds = tuple[NDArray[Any], NDArray[Any]]
# The bits of the parts that are not reduced, where parts are reduced apart.
_OTHERS = 8


@dataclass(frozen=True)
class Form:
    """Bits of each part of a policy; None leaves the part in float.

    weights: the weights of all layers; biases stay in float. inner: the inputs of all layers after another layer.
    inputs: the observations, over each component's range. outputs: continuous actions, over each component's bounds.
    quarl: round weights by QuaRL's quantizer instead of this project's.
    corrected: correct weights and biases as the quantizer does (actorq.quantization.emission.correction), instead of
        rounding to nearest.
    """

    weights: int | None = None
    inner: int | None = None
    inputs: int | None = None
    outputs: int | None = None
    quarl: bool = False
    corrected: bool = False


QUARL, WEIGHTS, OURS = "QuaRL: weights", "weights", "weights and activations"
CORRECTED = "weights, corrected"
INPUT, CORE, OUTPUT = "input only", "core only", "output only"
FORMS: Mapping[str, Callable[[int], Form]] = {
    QUARL: lambda bits: Form(weights=bits, quarl=True),
    WEIGHTS: lambda bits: Form(weights=bits),
    CORRECTED: lambda bits: Form(weights=bits, corrected=True),
    OURS: lambda bits: Form(weights=bits, inner=bits, corrected=True),
    INPUT: lambda bits: Form(_OTHERS, _OTHERS, bits, _OTHERS, corrected=True),
    CORE: lambda bits: Form(bits, bits, _OTHERS, _OTHERS, corrected=True),
    OUTPUT: lambda bits: Form(_OTHERS, _OTHERS, _OTHERS, bits, corrected=True),
}
"""The forms by name. In the last three, one part is reduced and the others have 8 bits (arXiv 2511.07046)."""


def forms_of(graph: Graph) -> list[str]:
    """The names of the forms that differ for this policy. The best discrete action has no output bits."""
    return [name for name in FORMS if name != OUTPUT or not graph.signature.is_discrete]


class RoundedPolicy:
    """Makes ONNX models of the rounded forms of one policy.

    calibration: observations for the ranges, and zeros for noise; see `Graph.check_calibration`. bounds: of continuous
    actions; None for discrete ones. Only graphs with float32 vectors as observations are supported.
    """

    def __init__(self, graph: Graph, parameters: Parameters, calibration: Batch, bounds: Bounds | None) -> None:
        self._graph, self._parameters, self._bounds = graph, parameters, bounds
        roles = {port.name: port.role for port in graph.signature.inputs}
        self._observations = {name: calibration[name] for name, role in roles.items() if role is Role.OBSERVATION}
        # By the index of the node that reads the tensor.
        self._inner = {layer.nodes[0]: layer.input for layer in graph.layers if not layer.first}
        self._correction = Correction(graph, graph.layers, on=True, widest=math.inf)
        observed = {Observed(tensor, Statistic.RANGE) for tensor in self._inner.values()}
        _, self._statistics = Reference(graph).observe(parameters, calibration, {*observed, *self._correction.observed})

    def model(self, form: Form) -> bytes:
        """The complete ONNX model of this form, with weights as constants."""
        rounding = _Rounding()
        nodes = list(self._nodes(form, rounding))
        metadata = {"scheme": FP32, METADATA: self._graph.signature.to_text()}
        return Skeleton(self._graph, nodes).fill({**self.weights(form), **rounding.constants}, metadata)

    def weights(self, form: Form) -> dict[str, NDArray[Any]]:
        """All parameters, with the weights of layers rounded."""
        values = dict(self._parameters)
        if form.weights is None:
            return values
        for layer in self._graph.layers:
            # An output channel per row, for any orientation in the graph.
            weight = self._parameters[layer.weight].swapaxes(0, layer.channels)
            if form.quarl:
                rounded = quantizers.quarl(weight, form.weights, per_channel=layer.kind == CONVOLUTION)
            else:
                feedback = self._correction.feedback((layer,), self._statistics) if form.corrected else None
                rounded = quantizers.symmetric(weight, form.weights, feedback)
            values[layer.weight] = rounded.swapaxes(0, layer.channels)
            mean = self._statistics.get(Observed(layer.input, Statistic.MEAN))
            if form.corrected and layer.bias is not None and mean is not None:
                values[layer.bias] = (self._parameters[layer.bias] + (weight - rounded) @ mean).astype(np.float32)
        return values

    def _nodes(self, form: Form, rounding: "_Rounding") -> Iterator[onnx.NodeProto]:
        """The graph's nodes with rounding nodes between them, in topological order."""
        renamed: dict[str, str] = {}
        if form.inputs is not None:
            for name, rows in self._observations.items():
                renamed[name] = f"{name}:rounded"
                grid = quantizers.components(rows.min(0), rows.max(0), form.inputs)
                yield from rounding.nodes(name, renamed[name], grid)
        acting, made = self._graph.signature.acting.name, set[str]()
        for index, original in enumerate(self._graph.model.graph.node):
            node = deepcopy(original)
            reads = {name: renamed.get(name, name) for name in node.input}
            if form.inner is not None and (tensor := self._inner.get(index)):
                reads[tensor] = f"{tensor}:rounded"
                if tensor not in made:
                    yield from rounding.nodes(tensor, reads[tensor], self._inner_grid(tensor, form.inner))
                    made.add(tensor)
            node.input[:] = [reads[name] for name in node.input]
            if form.outputs is None or self._bounds is None or acting not in node.output:
                yield node
                continue
            node.output[:] = [f"{acting}:float" if name == acting else name for name in node.output]
            yield node
            yield from rounding.nodes(f"{acting}:float", acting, quantizers.components(*self._bounds, form.outputs))

    def _inner_grid(self, tensor: str, bits: int) -> Grid:
        low, high = self._statistics[Observed(tensor, Statistic.RANGE)].tolist()
        return quantizers.activations(low, high, bits)


class _Rounding:
    """Rounding nodes of one model, and their constants by name."""

    def __init__(self) -> None:
        self.constants: dict[str, NDArray[np.float32]] = {}

    def nodes(self, source: str, target: str, grid: Grid) -> list[onnx.NodeProto]:
        """Nodes that compute `target`: the values of `source` on the grid."""
        constant = partial(self._constant, target)
        offset, step = constant("offset", grid.offset), constant("step", grid.step)
        clip = ("Clip", [constant("first", grid.first), constant("last", grid.last)])
        rounded: tuple[tuple[str, list[str]], ...] = (("Sub", [offset]), ("Div", [step]), ("Round", []), clip)
        steps = (*rounded, ("Mul", [step]), ("Add", [offset]))
        nodes: list[onnx.NodeProto] = []
        value = source
        for number, (operator, further) in enumerate(steps, start=1):
            output = target if number == len(steps) else f"{target}:{number}"
            nodes.append(helper.make_node(operator, [value, *further], [output]))
            value = output
        return nodes

    def _constant(self, target: str, name: str, value: NDArray[np.float64] | int) -> str:
        key = f"{target}:{name}"
        self.constants[key] = np.asarray(value, np.float32)
        return key
