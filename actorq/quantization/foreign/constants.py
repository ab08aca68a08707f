"""Computes weights that nodes derive from constants: weight norm, pruning masks, low-rank updates, reordered gates."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from actorq.errors import InvalidInputError
from actorq.quantization.footprint import Footprint
from actorq.quantization.nodes import STANDARD, live_nodes, reads, rename_tensors, set_repeated
from actorq.text import reason_of

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
# A model with these operators is already quantized.
_QUANTIZING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
# A computed weight may have this many times more values than its constants. In int8 it is then no larger.
_LARGEST_GROWTH = 4


def fold_weights(model: onnx.ModelProto) -> None:
    """Replace nodes that compute float32 weights from constants with the computed weights, in place.

    A computed weight gets the name of its largest float constant, unless that constant remains in use or belongs to
    several computed weights. Raises InvalidInputError when a weight cannot be computed, or needs too much memory or
    time (see Footprint).
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes, made = _constant_nodes(graph, constants.keys())
    others = [node for node in graph.node if made.isdisjoint(node.output)]
    wanted = {name for node in others for name in reads(node)} | {value.name for value in graph.output}
    # The constants from which each tensor is computed, the largest first.
    behind: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for node in nodes for name in node.output if name in wanted):
        makers, read = live_nodes(nodes, [name])
        found = [each for each in constants if each in read]
        if any(_is_weight(constants[each]) for each in found) and not _is_transposed(makers, constants, found):
            behind[name] = sorted(found, key=lambda each: -math.prod(constants[each].dims))
    if not behind:
        return
    kept, read = live_nodes(nodes, behind)
    values = _computed(model, kept, list(behind), [constants[name] for name in read if name in constants])
    folded = {}
    for name, value in values.items():
        sources = sum(math.prod(constants[each].dims) for each in behind[name] if _is_weight(constants[each]))
        if value.dtype == np.float32 and 1 < value.size <= _LARGEST_GROWTH * sources:
            folded[name] = value
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in folded.items())
    # Remove the nodes that compute these weights, and everything that no other node reads.
    remaining = [node for node in graph.node if folded.keys().isdisjoint(node.output)]
    live, names = live_nodes(remaining, [value.name for value in graph.output])
    set_repeated(graph, "node", live)
    set_repeated(graph, "initializer", [tensor for tensor in graph.initializer if tensor.name in names])
    _rename(graph, {name: behind[name] for name in folded}, constants)


def _constant_nodes(graph: onnx.GraphProto, constants: Iterable[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes that depend on constants alone, in order, and their outputs."""
    known, nodes = set(constants), []
    for node in graph.node:
        plain = node.domain in STANDARD and node.op_type not in _QUANTIZING
        if plain and all(name in known for name in reads(node)):
            nodes.append(node)
            known.update(filter(None, node.output))
    return nodes, {name for node in nodes for name in node.output if name}


def _is_weight(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _FLOATS and math.prod(tensor.dims) > 1


def _is_transposed(
    makers: Sequence[onnx.NodeProto], constants: Mapping[str, onnx.TensorProto], found: Sequence[str]
) -> bool:
    """Whether a tensor is a matrix, possibly transposed, that layers can read directly."""
    return all(node.op_type in ("Transpose", "Identity") for node in makers) and len(constants[found[0]].dims) == 2


def _computed(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], names: list[str], constants: Sequence[onnx.TensorProto]
) -> dict[str, NDArray[np.generic]]:
    # Few policies need this import, and it is slow.
    from onnx.reference import ReferenceEvaluator

    results = [onnx.ValueInfoProto(name=name) for name in names]
    graph = helper.make_graph(nodes, "weights", [], results, constants)
    part = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        Footprint(part, ())
        with np.errstate(all="ignore"):
            return dict(zip(names, map(np.asarray, ReferenceEvaluator(part).run(None, {})), strict=True))
    except Exception as error:  # Operators of damaged models raise numpy's errors, KeyError and others.
        raise InvalidInputError(
            f"model: the weight {names[0]!r} cannot be computed from its constants ({reason_of(error)}); is the file "
            "complete?"
        ) from None


def _rename(graph: onnx.GraphProto, behind: dict[str, list[str]], constants: dict[str, onnx.TensorProto]) -> None:
    names = {weight: next(name for name in found if _is_weight(constants[name])) for weight, found in behind.items()}
    outputs = {value.name for value in graph.output}
    remaining = {tensor.name for tensor in graph.initializer} | outputs
    claims = Counter(names.values())
    free = {name for name, times in claims.items() if times == 1} - remaining
    rename_tensors(graph, {weight: name for weight, name in names.items() if name in free and weight not in outputs})
