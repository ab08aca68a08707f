"""Removes dead units from a policy, so that sparse weights become smaller dense weights.

A unit without live inputs has a constant output. The layers that read it absorb this constant into their biases. A unit
without readers is dropped. Each removal may make other units dead, so the removal repeats until nothing changes. Each
layer keeps at least one unit. The policy computes the same function, except for the order of float32 additions.

RLx2 (arXiv 2205.15043) trains networks with many such units. Its masks are from Evci et al. (arXiv 1911.11134).
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from actorq.quantization.emission.linear import units_first
from actorq.quantization.graph import Graph, Parameters
from actorq.quantization.layers import Layer
from actorq.quantization.nodes import set_repeated
from actorq.quantization.units import UnitGroup, activation, find_units

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class LiveUnits:
    """The units that remain in a policy: bool[units] for each of `groups`.

    alive: the remaining units that are alive; a layer without live units keeps a dead one.
    constant: units with a constant output that biases absorb.
    biased: layers without a bias that get one for these constants.
    """

    groups: tuple[UnitGroup, ...]
    remaining: tuple[Mask, ...]
    alive: tuple[Mask, ...]
    constant: tuple[Mask, ...]
    biased: tuple[Layer, ...]

    @cached_property
    def key(self) -> bytes:
        """Compact graphs with equal keys have equal shapes and nodes."""
        parts = [np.packbits(mask).tobytes() for mask in self.remaining]
        return b"".join(parts) + "\0".join(layer.output for layer in self.biased).encode()


class Compactor:
    """Removes dead units from the versions of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.whole = graph
        self._groups = find_units(graph)
        self._made_by = {group.layer: index for index, group in enumerate(self._groups)}
        self._read_by = {reader: index for index, group in enumerate(self._groups) for reader in group.readers}
        self._layers = tuple(dict.fromkeys((*self._made_by, *self._read_by)))

    def live_units(self, parameters: Parameters) -> LiveUnits | None:
        """The remaining units of this version; None if all are alive. Needs microseconds for dense weights."""
        if not any(self._may_have_dead(group, parameters) for group in self._groups):
            return None
        used = {layer: units_first(layer, parameters) != 0 for layer in self._layers}
        alive = [np.ones(len(used[group.layer]), np.bool_) for group in self._groups]
        constant = [np.zeros(len(each), np.bool_) for each in alive]
        while self._settle(used, alive, constant):
            pass
        if all(each.all() for each in alive):
            return None
        # Each layer keeps at least one unit.
        remaining = [each if each.any() else np.arange(len(each)) == 0 for each in alive]
        folded = [layer for layer, index in self._read_by.items() if layer.bias is None and constant[index].any()]
        return LiveUnits(self._groups, tuple(remaining), tuple(alive), tuple(constant), tuple(folded))

    def parameters(self, parameters: Parameters, live: LiveUnits) -> dict[str, NDArray[Any]] | None:
        """The parameters of the compact graph, computed in float64; None if a new bias exceeds float32."""
        result = dict(parameters)
        biases = self._folded(parameters, live)
        if biases is None:
            return None
        for layer in self._layers:
            weight = units_first(layer, parameters)
            bias = biases.get(layer, parameters[layer.bias] if layer.bias else None)
            if (index := self._read_by.get(layer)) is not None:
                weight = weight[:, live.remaining[index]]
                # If a layer keeps a dead unit, the unit must not affect the readers.
                if not (alive := live.alive[index][live.remaining[index]]).all():
                    weight = weight * alive
            if (index := self._made_by.get(layer)) is not None:
                weight = weight[live.remaining[index]]
                bias = None if bias is None else bias[live.remaining[index]]
            result[layer.weight] = np.ascontiguousarray(weight.swapaxes(0, layer.channels))
            if bias is not None:
                result[layer.bias or _bias_name(layer)] = bias
        return result

    def graph(self, live: LiveUnits) -> Graph:
        """The graph without the removed units: same nodes and names, plus biases for `LiveUnits.biased`."""
        shapes = {name: list(shape) for name, shape in self.whole.parameters.items()}
        for group, remaining in zip(self._groups, live.remaining, strict=True):
            units = int(remaining.sum())
            shapes[group.layer.weight][group.layer.channels] = units
            if group.layer.bias:
                shapes[group.layer.bias] = [units]
            for reader in group.readers:
                shapes[reader.weight][1 - reader.channels] = units
        shapes |= {_bias_name(layer): [shapes[layer.weight][layer.channels]] for layer in live.biased}
        model = deepcopy(self.whole.model)
        body = model.graph
        # The stored shapes of intermediate values include removed units.
        body.ClearField("value_info")
        data = list(body.input)[: len(self.whole.inputs)]
        parameters = (helper.make_tensor_value_info(each, onnx.TensorProto.FLOAT, shapes[each]) for each in shapes)
        set_repeated(body, "input", [*data, *parameters])
        set_repeated(body, "node", _with_biases(body.node, live.biased))
        source = replace(self.whole.source, model=model.SerializeToString(deterministic=True))
        sizes = {name: tuple(shape) for name, shape in shapes.items()}
        return replace(self.whole, source=source, model=model, parameters=sizes)

    def widths(self, live: LiveUnits) -> dict[str, tuple[int, int]]:
        """The numbers of units before and after, by name, of each layer that loses units."""
        return {
            group.layer.name: (len(remaining), int(remaining.sum()))
            for group, remaining in zip(self._groups, live.remaining, strict=True)
            if not remaining.all()
        }

    def _may_have_dead(self, group: UnitGroup, parameters: Parameters) -> bool:
        """Whether a unit might have no inputs or no readers."""
        # For nearly all units, one column proves that they have an input, and one row that they have a reader. Only the
        # remaining units need a full check.
        weight = units_first(group.layer, parameters)
        if np.count_nonzero(first := weight[:, 0]) < len(first) and not weight[first == 0].any(axis=1).all():
            return True
        candidates = np.ones(len(weight), np.bool_)
        for reader in group.readers:
            weight = units_first(reader, parameters)
            if np.count_nonzero(weight[0]) == len(candidates):
                return False
            candidates[candidates] = ~weight[:, candidates].any(axis=0)
        return bool(candidates.any())

    def _settle(self, used: Mapping[Layer, Mask], alive: list[Mask], constant: list[Mask]) -> bool:
        """Find more units without inputs, then more units without readers. Returns whether it found any."""
        before = sum(int(each.sum()) for each in alive)
        for index, group in enumerate(self._groups):
            inputs = used[group.layer]
            source = self._read_by.get(group.layer)
            fed = (inputs if source is None else inputs[:, alive[source]]).any(axis=1)
            constant[index] |= alive[index] & ~fed
            alive[index] &= fed
        for index, group in reversed(list(enumerate(self._groups))):
            wanted = np.zeros(len(alive[index]), np.bool_)
            for reader in group.readers:
                made = self._made_by.get(reader)
                wanted |= (used[reader] if made is None else used[reader][alive[made]]).any(axis=0)
            alive[index] &= wanted
        return sum(int(each.sum()) for each in alive) < before

    def _folded(self, parameters: Parameters, live: LiveUnits) -> dict[Layer, NDArray[np.float32]] | None:
        """The biases of all units with absorbed constants, by layer; None if one exceeds float32."""
        biases: dict[Layer, NDArray[np.float32]] = {}
        for index, group in enumerate(self._groups):
            if not (constant := live.constant[index]).any():
                continue
            own = group.layer
            bias = biases.get(own, parameters[own.bias] if own.bias else np.zeros(len(constant), np.float32))
            values = self._values(index, bias[constant])
            for reader, value in zip(group.readers, values, strict=True):
                weight = units_first(reader, parameters)[:, constant]
                with np.errstate(over="ignore", invalid="ignore"):
                    total = weight.astype(np.float64) @ value.astype(np.float64)
                    before = parameters[reader.bias] if reader.bias else np.float32(0)
                    biases[reader] = (before + total).astype(np.float32)
                if not np.isfinite(biases[reader]).all():
                    return None
        return biases

    def _values(self, index: int, bias: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Each reader's input from a group whose units have the sums `bias`."""
        group = self._groups[index]
        with np.errstate(all="ignore"):
            found: list[Any] = self._evaluators[index].run(None, {group.layer.output: bias[None]})
        names = list(dict.fromkeys(reader.input for reader in group.readers))
        return [found[names.index(reader.input)][0] for reader in group.readers]

    @cached_property
    def _evaluators(self) -> list[Any]:
        # Imported here, because only policies with constant units need it, and the import is slow.
        from onnx.reference import ReferenceEvaluator

        return [ReferenceEvaluator(activation(self.whole, group)) for group in self._groups]


def _bias_name(layer: Layer) -> str:
    return f"{layer.name}:folded"


def _with_biases(nodes: Any, biased: tuple[Layer, ...]) -> Iterator[onnx.NodeProto]:
    """The nodes, with a bias added to each of these layers."""
    products = {layer.nodes[0]: layer for layer in biased}
    for index, original in enumerate(nodes):
        node, layer = deepcopy(original), products.get(index)
        if layer is None:
            yield node
        elif node.op_type == "Gemm":
            del node.input[2:]
            node.input.append(_bias_name(layer))
            yield node
        else:
            node.output[0] = f"{layer.output}:product"
            yield node
            yield helper.make_node("Add", [node.output[0], _bias_name(layer)], [layer.output], name=_bias_name(layer))
