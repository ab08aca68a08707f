"""The groups of a graph's rows: the rows of each group, and the tensors that belong to one group.

A graph for several groups of agents computes each row with the layers of all groups, and selects by the row's bits
(learner_service/networks/by_group). The bits are components of an input; see `Signature.groups`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from actorq.domain.signature import Signature
from actorq.quantization.calibration import Batch, evenly_spaced, rows_of
from actorq.quantization.nodes import STANDARD, attributes_of, constant_of, reached, reads

Rows = NDArray[np.bool_]
# Operators that keep each column of a tensor [B, N] in its place.
_BY_COLUMN = ("Add", "Sub", "Mul", "Div", "Clip", "Cast", "Identity")


def rows_by_group(batch: Batch, signature: Signature) -> dict[str, Rows]:
    """The rows of each group that has any, bool[B], by the group's name."""
    found = {
        group.name: np.asarray(batch[group.input].reshape(rows_of(batch), -1)[:, group.component] > 0)
        for group in signature.groups
    }
    return {name: rows for name, rows in found.items() if rows.any()}


def chosen_rows(batch: Batch, signature: Signature, count: int) -> Batch:
    """About `count` evenly spaced rows. Each group keeps at least its share of `count`, or all of its rows."""
    groups = rows_by_group(batch, signature)
    if not groups or count >= rows_of(batch):
        return evenly_spaced(batch, count)
    share, chosen = max(1, count // len(groups)), list[NDArray[np.intp]]()
    for rows in groups.values():
        own = np.flatnonzero(rows)
        chosen.append(evenly_spaced({"": own}, share)[""])
    order = np.unique(np.concatenate(chosen))
    return {name: array[order] for name, array in batch.items()}


def sources_of(model: onnx.ModelProto, signature: Signature) -> dict[str, tuple[int, ...]]:
    """For tensors [B, N] whose columns follow from one column of the input with the bits: these columns, by name."""
    name = signature.groups[0].input
    constants = constants_of(model.graph)
    width = next(value for value in model.graph.input if value.name == name).type.tensor_type.shape.dim[1].dim_value
    found: dict[str, tuple[int, ...]] = {name: tuple(range(width))}
    data = {port.name for port in signature.inputs}
    fixed = {value.name for value in model.graph.input if value.name not in data} | constants.keys()
    for node in model.graph.node:
        known = [each for each in reads(node) if each in found]
        if node.domain not in STANDARD or len(known) != 1:
            continue
        columns = found[known[0]]
        # A single column times a vector has other columns.
        if node.op_type in _BY_COLUMN and len(columns) > 1 and {*reads(node)} - {*known} <= fixed:
            found[node.output[0]] = columns
        elif node.op_type == "Split" and (sizes := split_sizes(node, columns, constants)):
            stops = np.cumsum(sizes).tolist()
            for output, size, stop in zip(node.output, sizes, stops, strict=True):
                found[output] = columns[stop - size : stop]
    return found


def split_sizes(node: onnx.NodeProto, columns: Sequence[int], constants: Mapping[str, NDArray[Any]]) -> tuple[int, ...]:
    """The number of columns of each output of a Split along the columns; empty if it has another form."""
    if attributes_of(node).get("axis", 0) not in (1, -1) or len(node.input) < 2 or node.input[1] not in constants:
        return ()
    sizes = tuple(int(each) for each in constants[node.input[1]])
    return sizes if sum(sizes) == len(columns) and len(sizes) == len(node.output) else ()


def constants_of(graph: onnx.GraphProto) -> dict[str, NDArray[Any]]:
    """The constants of a graph by name."""
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    tensors = ((node, constant_of(node)) for node in graph.node)
    return found | {node.output[0]: numpy_helper.to_array(each) for node, each in tensors if each is not None}


def owners_of(model: onnx.ModelProto, signature: Signature) -> dict[str, str]:
    """The group of each tensor that depends on the bit of one group only, by the tensor's name."""
    if not signature.groups:
        return {}
    sources = sources_of(model, signature)
    by_group = {
        group.name: reached(model.graph.node, {name for name, columns in sources.items() if columns == (bit,)})
        for group in signature.groups
        for bit in (group.component,)
    }
    owners: dict[str, str] = {}
    shared = set[str]()
    for name, tensors in by_group.items():
        shared |= tensors & owners.keys()
        owners |= dict.fromkeys(tensors, name)
    return {tensor: name for tensor, name in owners.items() if tensor not in shared}
