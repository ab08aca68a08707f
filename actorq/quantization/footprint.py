"""Computes the cost of a graph before it runs, for a number of rows: bytes of its tensors, and multiplications.

Shapes come from ONNX's shape inference for a fixed batch size. Graphs whose shapes depend on data values are refused.
Declared shapes of intermediate tensors are ignored.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from actorq.errors import InvalidInputError
from actorq.quantization.calibration import Batch, evenly_spaced, rows_of
from actorq.quantization.folding import fold_shapes, inferable
from actorq.quantization.nodes import attributes_of, set_repeated
from actorq.quantization.operators import check_rank, node_name
from actorq.text import reason_of

MIB = 1024**2
MAX_TENSOR_BYTES = 256 * MIB
# Bound on all tensors of a run together, as if memory was never reused. Weights have a separate bound.
MAX_BYTES = 1024 * MIB
# Multiply-adds: about 20 s on one core.
MAX_WORK = 2**38
# Bound on constant computations. ONNX Runtime does them while it opens a session, which cannot be interrupted.
MAX_CONSTANT_WORK = 2**33
# More than one row, so that a graph traced for a batch of one fails.
TRIAL_ROWS = 2
# Batches of a run have few different numbers of rows.
_MOST_KNOWN = 8

Shapes = Mapping[str, tuple[int, ...]]


class Footprint:
    """The cost of a graph with these data inputs. Raises InvalidInputError when `TRIAL_ROWS` rows cost too much."""

    def __init__(self, model: onnx.ModelProto, inputs: Sequence[str]) -> None:
        self._model = inferable(model)
        self._inputs = frozenset(inputs)
        graph = self._model.graph
        graph.ClearField("value_info")
        made = {name for node in graph.node for name in node.output}
        # An output may itself be an input or a constant.
        set_repeated(graph, "output", [value for value in graph.output if value.name in made])
        for value in graph.output:
            value.type.tensor_type.ClearField("shape")
        # Requested numbers of rows, and the numbers that fit.
        self._known: dict[int, int] = {}
        self.check(TRIAL_ROWS)

    def check(self, rows: int) -> None:
        """Raise InvalidInputError that names the tensor or the bound when a batch of `rows` rows costs too much."""
        graph, shapes = self._inferred(rows)
        types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
        total, work, constant_work, live = 0, 0, 0, set(self._inputs)
        for node in graph.node:
            for name in filter(None, node.output):
                size = _itemsize(name, types[name]) * math.prod(shapes[name])
                if size > MAX_TENSOR_BYTES:
                    raise InvalidInputError(
                        f"graph: {node_name(node)} makes {name!r} of {size:,} bytes for {rows} rows; at most "
                        f"{MAX_TENSOR_BYTES:,} are allowed"
                    )
                total += size
            if live.isdisjoint(node.input):
                constant_work += _work(node, shapes)
                _check_work(node, constant_work, MAX_CONSTANT_WORK, "multiplications of constants")
            else:
                live.update(node.output)
                work += _work(node, shapes)
                _check_work(node, work, MAX_WORK, f"multiplications for {rows} rows")
        if total > MAX_BYTES:
            raise InvalidInputError(
                f"graph: its tensors take {total:,} bytes for {rows} rows; at most {MAX_BYTES:,} are allowed"
            )

    def fitting(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """The batch, or evenly spaced rows of it if the whole batch would cost too much."""
        return dict(evenly_spaced(batch, self.most(rows_of(batch))))

    def most(self, rows: int) -> int:
        """How many of `rows` rows can run at once: the first of `rows`, `rows` / 2, `rows` / 4 and so on that fits."""
        if rows not in self._known:
            while len(self._known) >= _MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[rows] = self._most(rows)
        return self._known[rows]

    def _most(self, rows: int) -> int:
        while rows > TRIAL_ROWS:
            try:
                self.check(rows)
                return rows
            except InvalidInputError:
                rows = max(TRIAL_ROWS, rows // 2)
        return rows

    def _inferred(self, rows: int) -> tuple[onnx.GraphProto, Shapes]:
        """The graph, and the shape of each of its tensors."""
        for value in self._model.graph.input:
            if value.name in self._inputs:
                value.type.tensor_type.shape.dim[0].dim_value = rows
        try:
            graph, shapes = fold_shapes(self._model)
        except Exception as error:  # Damaged constants, or unknown types, raise more than InferenceError.
            fault = f"its shapes cannot be inferred for {rows} rows: {reason_of(error)}"
            raise InvalidInputError(f"graph: {fault}") from None
        for node in graph.node:
            for name in filter(None, node.output):
                if name not in shapes:
                    raise InvalidInputError(
                        f"graph: {node_name(node)} makes {name!r} with a size that depends on data or is unknown; "
                        "export the policy with the batch as its only dynamic size"
                    )
                check_rank(name, len(shapes[name]))
        return graph, shapes


def _itemsize(name: str, element_type: int) -> int:
    try:
        itemsize = np.dtype(helper.tensor_dtype_to_np_dtype(element_type)).itemsize
    except KeyError:
        itemsize = 0
    if not itemsize or element_type == onnx.TensorProto.STRING:
        raise InvalidInputError(f"graph: expected numbers in {name!r}, got another element type")
    return itemsize


def _check_work(node: onnx.NodeProto, work: int, most: int, what: str) -> None:
    if work > most:
        raise InvalidInputError(f"graph: {work:,} {what} up to {node_name(node)}; at most {most:,} are allowed")


def _work(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Multiply-adds of a node, or the number of elements that it reads and writes."""
    outputs = sum(math.prod(shapes[name]) for name in node.output if name)
    inputs = [shapes.get(name, ()) for name in node.input]
    moved = outputs + sum(map(math.prod, inputs))
    match node.op_type:
        case "MatMul" | "Gemm":
            inner = -2 if attributes_of(node).get("transA") else -1
            return moved + outputs * (inputs[0][inner] if inputs[0] else 1)
        case "Conv":
            return moved + outputs * math.prod(inputs[1][1:])
        case "ConvTranspose":
            return moved + math.prod(inputs[0]) * math.prod(inputs[1][1:])
        case "GRU" | "LSTM" | "RNN":
            # Each weight counts once per step and row. X is [steps, rows, features].
            return moved + math.prod(inputs[0][:2]) * sum(map(math.prod, inputs[1:3]))
        case "AveragePool" | "LpPool" | "MaxPool":
            return moved + outputs * int(math.prod(attributes_of(node).get("kernel_shape", ())))
        case "Resize" | "Upsample":
            return moved + 16 * outputs
        case "Einsum":
            return moved + _einsum(node, inputs)
        case _:
            return moved


def _einsum(node: onnx.NodeProto, inputs: Sequence[tuple[int, ...]]) -> int:
    """The product of the sizes of all labels: an upper bound for every order of evaluation."""
    if any(len(shape) > 8 for shape in inputs):
        raise InvalidInputError(f"graph: expected at most 8 dimensions of the inputs of {node_name(node)}")
    equation = next(each.s.decode("ascii", "replace") for each in node.attribute if each.name == "equation")
    terms = equation.replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=False):
        before, _, after = term.partition("...")
        # The dimensions of an ellipsis have no labels. They broadcast over all terms, aligned at the end.
        unnamed = range(len(shape) - len(before) - len(after), 0, -1)
        labels = [*before, *(f"...{index}" for index in unnamed), *after]
        for label, size in zip(labels, shape, strict=False):
            sizes[label] = max(size, sizes.get(label, 1))
    return math.prod(sizes.values()) * len(inputs)
