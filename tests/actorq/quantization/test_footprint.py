"""The cost of a graph, compared with sizes and products counted by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from actorq.errors import InvalidInputError
from actorq.quantization.footprint import Footprint
from tests.quantizer_service.policy_graphs import GRAPHS

Shape = Sequence[int | str]


def model_of(
    nodes: list[onnx.NodeProto], row: Sequence[int], constants: Mapping[str, Sequence[int]] | None = None
) -> onnx.ModelProto:
    """A data input "x" float32[B, *row], float32 constants of these shapes, and the last node's first output."""
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *row])
    tensors = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in (constants or {}).items()]
    output = onnx.ValueInfoProto(name=next(filter(None, nodes[-1].output)))
    graph = helper.make_graph(nodes, "cost", [given], [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def node(operator: str, *inputs: str, to: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [to], **attributes)


# The reads, writes and multiplications of a node for two rows.
WORK = [
    pytest.param(node("Relu", "x"), (5,), {}, (10, 10, 0), id="Relu"),
    pytest.param(node("MatMul", "x", "w"), (5,), {"w": (5, 3)}, (10 + 15, 6, 2 * 3 * 5), id="MatMul"),
    pytest.param(
        node("Gemm", "x", "w", "b", transB=1), (5,), {"w": (3, 5), "b": (3,)}, (10 + 15 + 3, 6, 2 * 3 * 5), id="Gemm"
    ),
    pytest.param(
        node("Gemm", "x", "w", transA=1), (5,), {"w": (2, 3)}, (10 + 6, 15, 5 * 3 * 2), id="Gemm of a transposed input"
    ),
    pytest.param(node("Conv", "x", "w"), (3, 6, 6), {"w": (4, 3, 3, 3)}, (216 + 108, 128, 128 * 3 * 3 * 3), id="Conv"),
    pytest.param(
        node("Conv", "x", "w", group=3), (3, 6, 6), {"w": (6, 1, 3, 3)}, (216 + 54, 192, 192 * 3 * 3), id="grouped Conv"
    ),
    pytest.param(
        node("ConvTranspose", "x", "w"), (3, 4, 4), {"w": (3, 5, 2, 2)}, (96 + 60, 250, 96 * 5 * 4), id="ConvTranspose"
    ),
    pytest.param(
        node("LSTM", "x", "w", "r", hidden_size=3),
        (4, 5),
        {"w": (1, 12, 5), "r": (1, 12, 3)},
        (40 + 60 + 36, 2 * 1 * 4 * 3, 2 * 4 * (60 + 36)),
        id="LSTM of two steps and four rows",
    ),
    pytest.param(
        node("MaxPool", "x", kernel_shape=[2, 3], strides=[2, 3]), (1, 6, 6), {}, (72, 12, 12 * 6), id="MaxPool"
    ),
    pytest.param(
        node("Resize", "x", "r", "s"),
        (1, 2, 2),
        {"r": (8,), "s": (4,)},
        (8 + 8 + 4, 8, 16 * 8),
        id="Resize of sixteen neighbors",
    ),
    # The products of all sizes, for each input.
    pytest.param(
        node("Einsum", "x", "w", equation="bi, ij -> bj"), (5,), {"w": (5, 3)}, (25, 6, 2 * (2 * 5 * 3)), id="Einsum"
    ),
    pytest.param(
        node("Einsum", "x", "w", equation="...ij,...jk->...ik"),
        (7, 3, 4),
        {"w": (1, 7, 4, 5)},
        (2 * 7 * 12 + 7 * 20, 2 * 7 * 15, 2 * (2 * 7 * 3 * 4 * 5)),
        id="Einsum of more dimensions",
    ),
    pytest.param(
        node("Einsum", "x", "w", equation="i...j,j...->i..."),
        (7, 4),
        {"w": (4, 7)},
        (2 * 28 + 28, 14, 2 * (2 * 7 * 4)),
        id="Einsum with dimensions between",
    ),
]


@pytest.mark.parametrize(("operator", "row", "constants", "counts"), WORK)
def test_work_counts_reads_writes_and_multiplications(
    operator: onnx.NodeProto,
    row: Sequence[int],
    constants: Mapping[str, Sequence[int]],
    counts: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of([operator], row, constants)
    footprint, work = Footprint(model, ["x"]), sum(counts)

    monkeypatch.setattr("actorq.quantization.footprint.MAX_WORK", work)
    footprint.check(2)
    monkeypatch.setattr("actorq.quantization.footprint.MAX_WORK", work - 1)

    with pytest.raises(InvalidInputError, match=f"graph: {work:,} multiplications for 2 rows"):
        footprint.check(2)


def test_work_on_constants_has_a_separate_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of([node("MatMul", "a", "b", to="w"), node("MatMul", "x", "w")], (5,), {"a": (5, 8), "b": (8, 3)})
    footprint = Footprint(model, ["x"])
    constant, variable = 40 + 24 + 15 + 15 * 8, 10 + 15 + 6 + 30

    for name, work in (("MAX_CONSTANT_WORK", constant), ("MAX_WORK", variable)):
        monkeypatch.setattr(f"actorq.quantization.footprint.{name}", work)
    footprint.check(2)
    monkeypatch.setattr("actorq.quantization.footprint.MAX_CONSTANT_WORK", constant - 1)

    with pytest.raises(InvalidInputError, match=f"{constant} multiplications of constants"):
        footprint.check(2)


@pytest.mark.parametrize(
    ("kind", "size"),
    [(TensorProto.DOUBLE, 8), (TensorProto.FLOAT, 4), (TensorProto.FLOAT16, 2), (TensorProto.INT8, 1)],
)
def test_bytes_follow_from_element_types(kind: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("Cast", "x", to="cast"), node("Neg", "cast")]
    nodes[0].attribute.append(helper.make_attribute("to", kind))
    footprint = Footprint(model_of(nodes, (5,)), ["x"])

    monkeypatch.setattr("actorq.quantization.footprint.MAX_TENSOR_BYTES", 3 * 5 * size)
    monkeypatch.setattr("actorq.quantization.footprint.MAX_BYTES", 2 * 3 * 5 * size)
    footprint.check(3)
    monkeypatch.setattr("actorq.quantization.footprint.MAX_BYTES", 2 * 3 * 5 * size - 1)
    with pytest.raises(InvalidInputError, match=f"its tensors take {2 * 3 * 5 * size} bytes for 3 rows"):
        footprint.check(3)
    monkeypatch.setattr("actorq.quantization.footprint.MAX_TENSOR_BYTES", 3 * 5 * size - 1)
    with pytest.raises(InvalidInputError, match=f"'cast' of {3 * 5 * size} bytes for 3 rows"):
        footprint.check(3)


def test_a_batch_that_takes_too_much_is_halved_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    footprint = Footprint(model_of([node("Relu", "x")], (5,)), ["x"])
    batch = {"x": np.arange(100 * 5, dtype=np.float32).reshape(100, 5)}

    monkeypatch.setattr("actorq.quantization.footprint.MAX_BYTES", 30 * 5 * 4)
    fitting = footprint.fitting(batch)["x"]

    np.testing.assert_array_equal(fitting, batch["x"][np.linspace(0, 99, 25).round().astype(int)])


def test_keeps_two_rows_of_a_batch_at_any_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    footprint = Footprint(model_of([node("Relu", "x")], (5,)), ["x"])
    monkeypatch.setattr("actorq.quantization.footprint.MAX_BYTES", 0)

    assert len(footprint.fitting({"x": np.zeros((9, 5), np.float32)})["x"]) == 2


def test_text_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="expected numbers in 'y'"):
        Footprint(model_of([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)], (5,)), ["x"])


def test_computed_tensors_of_many_dimensions_are_refused() -> None:
    axes = helper.make_node("Constant", [], ["axes"], value_ints=list(range(2, 17)))

    with pytest.raises(InvalidInputError, match="at most 16 dimensions, 'y' has 17"):
        Footprint(model_of([axes, node("Unsqueeze", "x", "axes")], (5,)), ["x"])


def test_an_einsum_of_many_dimensions_is_refused() -> None:
    einsum = node("Einsum", "x", equation="abcdefghi->a")

    with pytest.raises(InvalidInputError, match="at most 8 dimensions"):
        Footprint(model_of([einsum], (1,) * 8), ["x"])


def test_ignores_declared_shapes_of_intermediate_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of([node("Relu", "x", to="h"), node("Neg", "h")], (5,))
    model.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [1]))
    footprint = Footprint(model, ["x"])
    monkeypatch.setattr("actorq.quantization.footprint.MAX_BYTES", 79)

    with pytest.raises(InvalidInputError, match="80 bytes for 2 rows"):
        footprint.check(2)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_check_leaves_the_model_as_it_was(name: str) -> None:
    model = onnx.ModelProto.FromString(GRAPHS[name].model)

    Footprint(model, [port.name for port in GRAPHS[name].signature.inputs]).check(3)

    assert model.SerializeToString(deterministic=True) == GRAPHS[name].model
