"""Computed sizes of a graph match the sizes in a run of ONNX Runtime."""

import math
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from actorq.errors import InvalidInputError
from actorq.quantization.folding import fold_shapes
from actorq.quantization.footprint import Footprint

Array = NDArray[Any]
END, BEGINNING = 2**63 - 1, -(2**63)
MATRIX = np.array([[1, 2], [3, 1]])
NONE = np.zeros(0, np.int64)


def integers(*values: int) -> Array:
    return np.array(values, np.int64)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def bits(*values: bool) -> Array:
    return np.array(values)


def model_of(operator: str, inputs: list[Array | None], opset: int = 20, **attributes: Any) -> onnx.ModelProto:
    """The operator's output "v", and a tensor "z" whose sizes are the positive whole parts of its values.

    The inputs are copies of constants. ONNX's own inference therefore does not know their values.
    """
    given = {f"i{index}": array for index, array in enumerate(inputs) if array is not None}
    names = ["" if array is None else f"i{index}" for index, array in enumerate(inputs)]
    nodes = [helper.make_node("Identity", [f"{name}:constant"], [name]) for name in given]
    nodes += [
        helper.make_node(operator, names, ["v"], **attributes),
        helper.make_node("Cast", ["v"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Abs", ["whole"], ["positive"]),
        helper.make_node("Reshape", ["positive", "flat"], ["sizes"]),
        helper.make_node("ConstantOfShape", ["sizes"], ["z"]),
    ]
    constants = [numpy_helper.from_array(array, f"{name}:constant") for name, array in given.items()]
    constants.append(numpy_helper.from_array(integers(-1), "flat"))
    outputs = [onnx.ValueInfoProto(name=name) for name in ("v", "z")]
    graph = helper.make_graph(nodes, "sizes", [], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def sizes_of_a_run(model: onnx.ModelProto) -> list[tuple[int, ...]]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [output.shape for output in session.run(None, {})]


def case(operator: str, *inputs: Array | None, **attributes: Any) -> tuple[str, list[Array | None], dict[str, Any]]:
    return operator, list(inputs), attributes


REDUCTIONS = [
    case(operator, MATRIX.astype(dtype), *axes, **attributes)
    for operator in ("ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum")
    for dtype in (np.int64, np.int32, np.float32)
    for axes, attributes in (
        ([integers(1)], {}),
        ([integers(-1)], {"keepdims": 0}),
        ([], {}),
        ([], {"noop_with_empty_axes": 1}),
        ([NONE], {}),
        ([NONE], {"noop_with_empty_axes": 1}),
    )
]
CASES = [
    *REDUCTIONS,
    case("ReduceProd", MATRIX, axes=[0], opset=13),
    *(
        case("Slice", integers(1, 2, 3, 4, 5), *map(integers, (start, end, 0, step)))
        for start, end, step in (
            *((1, 3, 1), (0, END, 1), (-2, END, 1), (-100, 100, 2), (2, -1, 1)),
            *((3, 0, -1), (-1, BEGINNING, -1), (-100, BEGINNING, -1), (100, -100, -2), (-3, -5, -1), (1, -6, -1)),
        )
    ),
    case("Slice", MATRIX, integers(0, 1), integers(1, 3)),
    case("Slice", MATRIX, integers(1), integers(3), integers(-1)),
    case("Slice", MATRIX, integers(1), integers(3), None, integers(1)),
    *(case("Div", integers(a), integers(b)) for a in (7, -7) for b in (2, -2)),
    *(case("Mod", integers(a), integers(b), fmod=fmod) for a in (7, -7) for b in (2, -3) for fmod in (0, 1)),
    case("Div", floats(7, -7), floats(2)),
    case("Mod", floats(-7), floats(4), fmod=1),
    *(case(name, integers(5, 2, 3), integers(2)) for name in ("Add", "Sub", "Mul", "Equal")),
    *(case(name, integers(1, 2, 3), integers(2)) for name in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
    *(case(name, integers(1, 2), integers(2), integers(0, 5)) for name in ("Max", "Min")),
    case("Max", integers(3)),
    *(case(name, bits(True, False, True), bits(True, False, False)) for name in ("And", "Or")),
    case("Not", bits(True, False)),
    case("Where", bits(True, False), integers(3, 3), integers(4)),
    *(case(name, integers(-2, 3)) for name in ("Abs", "Neg", "Identity")),
    *(case(name, floats(1.5, -2.5)) for name in ("Floor", "Ceil")),
    case("Gather", integers(4, 5, 6), np.array(-1)),
    case("Gather", MATRIX, integers(1, 0), axis=1),
    case("Concat", integers(1, 2), integers(3), axis=-1),
    case("Unsqueeze", np.array(3), integers(0)),
    case("Unsqueeze", integers(3), integers(-1)),
    case("Unsqueeze", integers(3), axes=[0], opset=11),
    case("Squeeze", integers(3)),
    case("Squeeze", np.array([[3]]), integers(0)),
    case("Squeeze", np.array([[3]]), axes=[0], opset=11),
    case("Reshape", integers(1, 2, 3, 4), integers(2, -1)),
    case("Reshape", MATRIX, integers(0, -1)),
    case("Reshape", MATRIX, integers(0, 0, 1)),
    *(
        case("Range", *(np.array(value, dtype) for value in values))
        for values in ((1, 6, 2), (5, 1, -2), (1, 1, 2), (3, 1, 2))
        for dtype in (np.int64, np.int32, np.float32)
    ),
    case("ConstantOfShape", integers(2, 2), value=numpy_helper.from_array(integers(3))),
    case("ConstantOfShape", NONE, value=numpy_helper.from_array(integers(3))),
    case("ConstantOfShape", integers(2)),
    *(
        case("Cast", array, to=to)
        for array in (floats(1.9, -1.9, 3), integers(1, 2), bits(True, False), np.array([258, 3], np.int32))
        for to in (TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.FLOAT, TensorProto.BOOL)
    ),
    case("Constant", value_int=2),
    case("Constant", value_ints=[2, 3]),
    case("Constant", value_float=2.5),
    case("Constant", value_floats=[2.5, 3.0]),
    case("Constant", value=numpy_helper.from_array(integers(2, 2))),
    case("Shape", np.zeros((2, 3, 4), np.float32)),
    case("Shape", np.zeros((2, 3, 4), np.float32), start=-2, end=2),
    case("Size", np.zeros((2, 3), np.float32)),
]


@pytest.mark.parametrize(("operator", "inputs", "attributes"), CASES)
def test_computed_sizes_match_a_run(operator: str, inputs: list[Array | None], attributes: dict[str, Any]) -> None:
    model = model_of(operator, inputs, **attributes)
    expected = sizes_of_a_run(model)

    _, shapes = fold_shapes(model)

    assert [shapes["v"], shapes["z"]] == expected


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        case("Div", integers(1), integers(0)),
        case("Gather", integers(4, 5), integers(2)),
        case("Tile", integers(2), integers(2)),
        case("Range", np.array(0), np.array(2**40), np.array(1)),
        # The difference does not fit the type.
        case("Range", np.array(-(2**15), np.int16), np.array(2**15 - 1, np.int16), np.array(1, np.int16)),
        case("ConstantOfShape", integers(2**20, 2**20)),
        case("Add", np.ones((65, 1), np.int64), np.ones((1, 65), np.int64)),
        case("Identity", np.ones(65, np.int64)),
    ],
)
def test_values_that_are_many_or_have_no_result_stay_unknown(
    operator: str, inputs: list[Array | None], attributes: dict[str, Any]
) -> None:
    _, shapes = fold_shapes(model_of(operator, inputs, **attributes))

    assert "z" not in shapes


def test_contradictory_shapes_are_refused() -> None:
    model = model_of("Identity", [integers(2)])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("v", TensorProto.INT64, [3]))

    with pytest.raises(onnx.shape_inference.InferenceError):
        fold_shapes(model)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes"),
    [
        case("ReduceSum", integers(2**30, 0), NONE),
        case("Slice", integers(2**30, 2), integers(-100), integers(BEGINNING), integers(0), integers(-1)),
    ],
)
def test_the_footprint_uses_computed_sizes(
    operator: str, inputs: list[Array | None], attributes: dict[str, Any]
) -> None:
    model = model_of(operator, inputs, **attributes)

    with pytest.raises(InvalidInputError, match=r"'z' of [0-9,]+ bytes"):
        Footprint(model, ())


def test_a_batch_is_part_of_computed_sizes() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ReduceProd", ["shape"], ["count"]),
        helper.make_node("ConstantOfShape", ["count"], ["z"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 7])
    graph = helper.make_graph(nodes, "batch", [given], [onnx.ValueInfoProto(name="z")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    assert fold_shapes(model)[1]["z"] == (math.prod((6, 7)),)
