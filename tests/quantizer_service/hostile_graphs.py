"""Small graphs that need too much time or memory, or have parts that no policy has."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from actorq.domain.policy import PolicyGraph
from tests.quantizer_service.policy_graphs import ACTIONS, OBSERVATION_SIZE, policy_graph

Change = Callable[[onnx.ModelProto], None]
_WEIGHT = {"weight": [OBSERVATION_SIZE, ACTIONS]}


def _node(operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, outputs, **attributes)


def _after(
    nodes: list[onnx.NodeProto], value: str, constants: dict[str, NDArray[np.generic]] | None = None
) -> PolicyGraph:
    """A layer to which the sum of `value` is added, so that nothing is dead."""
    every = [
        *nodes,
        _node("Cast", [value], ["cast"], to=TensorProto.FLOAT),
        _node("ReduceSum", ["cast"], ["sum"], keepdims=0),
        _node("MatMul", ["observation", "weight"], ["product"]),
        _node("Add", ["product", "sum"], ["q_values"]),
    ]
    return policy_graph(every, _WEIGHT, constants=constants)


def _changed(change: Change) -> PolicyGraph:
    source = policy_graph([_node("MatMul", ["observation", "weight"], ["q_values"])], _WEIGHT)
    model = onnx.ModelProto.FromString(source.model)
    change(model)
    return PolicyGraph(model.SerializeToString(), source.signature)


def loop() -> PolicyGraph:
    """2^62 turns."""
    float_value = helper.make_tensor_value_info
    body = helper.make_graph(
        [_node("Identity", ["go"], ["go_on"]), _node("Identity", ["x"], ["y"])],
        "body",
        [
            float_value("turn", TensorProto.INT64, []),
            float_value("go", TensorProto.BOOL, []),
            float_value("x", TensorProto.FLOAT, []),
        ],
        [float_value("go_on", TensorProto.BOOL, []), float_value("y", TensorProto.FLOAT, [])],
    )
    constants = {"turns": np.array(2**62), "yes": np.array(True), "zero": np.array(0, np.float32)}
    return _after([_node("Loop", ["turns", "yes", "zero"], ["z"], body=body)], "z", constants)


def branch() -> PolicyGraph:
    """If."""
    constant = helper.make_graph(
        [_node("Constant", [], ["one"], value_float=1.0)],
        "branch",
        [],
        [helper.make_tensor_value_info("one", TensorProto.FLOAT, [])],
    )
    node = _node("If", ["yes"], ["z"], then_branch=constant, else_branch=constant)
    return _after([node], "z", {"yes": np.array(True)})


def filled(elements: int) -> PolicyGraph:
    """ConstantOfShape, whose size is a constant."""
    return _after([_node("ConstantOfShape", ["shape"], ["z"])], "z", {"shape": np.array([elements])})


def filled_after_arithmetic() -> PolicyGraph:
    """The size follows from constants by operators that shape inference does not follow."""
    constants = {"a": np.array([2**20]), "b": np.array([2**13]), "yes": np.array([True])}
    nodes = [
        _node("Mul", ["a", "b"], ["a_b"]),
        _node("Where", ["yes", "a_b", "b"], ["shape"]),
        _node("ConstantOfShape", ["shape"], ["z"]),
    ]
    return _after(nodes, "z", constants)


def with_a_lie() -> PolicyGraph:
    """A declared shape for a tensor whose size depends on the observations."""
    nodes = [
        _node("ReduceMax", ["observation"], ["largest"], keepdims=0),
        _node("Cast", ["largest"], ["size"], to=TensorProto.INT64),
        _node("Reshape", ["size", "one"], ["shape"]),
        _node("ConstantOfShape", ["shape"], ["z"]),
    ]
    source = _after(nodes, "z", {"one": np.array([1])})
    model = onnx.ModelProto.FromString(source.model)
    model.graph.value_info.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [4]))
    return PolicyGraph(model.SerializeToString(), source.signature)


def doubled(times: int) -> PolicyGraph:
    """Each node doubles the output of the previous one."""
    nodes = [_node("Concat", [f"x{i}" if i else "observation"] * 2, [f"x{i + 1}"], axis=1) for i in range(times)]
    return _after(nodes, f"x{times}")


def copies(times: int) -> PolicyGraph:
    """A tensor of 168 MB, again and again."""
    nodes = [_node("Concat", [f"x{i}" if i else "observation"] * 2, [f"x{i + 1}"], axis=1) for i in range(22)]
    nodes += [_node("Neg", [f"x{i}"], [f"x{i + 1}"]) for i in range(22, 22 + times)]
    return _after(nodes, f"x{22 + times}")


def squares(side: int, times: int) -> PolicyGraph:
    """Products of square matrices, which need much time and little memory."""
    nodes = [
        _node("ConstantOfShape", ["shape"], ["zeros"]),
        _node("ReduceSum", ["observation"], ["level"], keepdims=0),
        _node("Add", ["zeros", "level"], ["x0"]),
    ]
    nodes += [_node("MatMul", [f"x{i}"] * 2, [f"x{i + 1}"]) for i in range(times)]
    return _after(nodes, f"x{times}", {"shape": np.array([side, side])})


def squares_of_constants(side: int, times: int) -> PolicyGraph:
    """The same of constants alone: ONNX Runtime computes these when it opens a session, which nothing can end."""
    nodes = [_node("ConstantOfShape", ["shape"], ["x0"])]
    nodes += [_node("MatMul", [f"x{i}"] * 2, [f"x{i + 1}"]) for i in range(times)]
    return _after(nodes, f"x{times}", {"shape": np.array([side, side])})


def many(nodes: int) -> PolicyGraph:
    """A long chain."""
    return _after([_node("Neg", [f"x{i}" if i else "observation"], [f"x{i + 1}"]) for i in range(nodes)], f"x{nodes}")


def _function(model: onnx.ModelProto) -> None:
    node = _node("Identity", ["x"], ["y"])
    model.functions.append(helper.make_function("own", "f", ["x"], ["y"], [node], [helper.make_opsetid("", 20)]))


def _sparse_initializer(model: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.array([1.0], np.float32), "sparse")
    indices = numpy_helper.from_array(np.array([0]), "indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2**40]))


def _sparse_constant(model: onnx.ModelProto) -> None:
    _sparse_initializer(model)
    sparse = model.graph.sparse_initializer.pop()
    model.graph.node.insert(0, _node("Constant", [], ["unused"], sparse_value=sparse))


def _deep_rank(model: onnx.ModelProto) -> None:
    model.graph.input[1].type.tensor_type.shape.dim.extend(
        onnx.TensorShapeProto.Dimension(dim_value=1) for _ in range(10_000)
    )


def _sequence(model: onnx.ModelProto) -> None:
    model.graph.output.append(helper.make_tensor_sequence_value_info("sequence", TensorProto.FLOAT, [1]))


def _other_domain(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.graph.node[0].domain = "com.microsoft"


def _random(model: onnx.ModelProto) -> None:
    model.graph.node.insert(0, _node("RandomNormal", [], ["noise"], shape=[2, 2]))


def _unknown_type(model: onnx.ModelProto) -> None:
    tensor = numpy_helper.from_array(np.ones(2, np.float32))
    tensor.data_type = 60
    model.graph.node.insert(0, _node("Constant", [], ["unused"], value=tensor))


def with_other_bytes() -> PolicyGraph:
    """A constant of one number with the bytes of two, in a graph that also computes a shape."""
    nodes = [_node("Shape", ["observation"], ["shape"]), _node("Reshape", ["observation", "shape"], ["same"])]
    source = _after(nodes, "constant", {"constant": np.ones(2, np.float32)})
    model = onnx.ModelProto.FromString(source.model)
    model.graph.initializer[0].dims[0] = 1
    return replace(source, model=model.SerializeToString())


def largest_of_shapes(*sizes: int) -> PolicyGraph:
    """The maximum of small tensors, each with one long dimension, in a graph that also computes a shape."""
    constants: dict[str, NDArray[np.generic]] = {
        f"c{i}": np.zeros([1] * i + [size] + [1] * (len(sizes) - 1 - i)) for i, size in enumerate(sizes)
    }
    nodes = [
        _node("Shape", ["observation"], ["shape"]),
        _node("Reshape", ["observation", "shape"], ["same"]),
        _node("Max", list(constants), ["z"]),
    ]
    return _after(nodes, "z", constants)


def with_states(count: int, nodes: int) -> PolicyGraph:
    """So many data inputs with the form of as many outputs, none of which depends on one, and a chain of nodes."""
    names = [f"state {i}" for i in range(count)]
    after = tuple(f"{name} after" for name in names)
    chain = [_node("Relu", [f"x{i}"], [f"x{i + 1}"]) for i in range(nodes)]
    every = [
        _node("MatMul", ["observation", "weight"], ["x0"]),
        *chain,
        *(_node("Relu", [f"x{nodes}"], [name]) for name in ("q_values", *after)),
    ]
    states: dict[str, list[int | str]] = {name: ["batch", ACTIONS] for name in names}
    source = policy_graph(every, _WEIGHT, more_inputs=states, more_outputs=after)
    model = onnx.ModelProto.FromString(source.model)
    for value in model.graph.output:
        value.type.tensor_type.shape.dim[1].dim_value = ACTIONS
    return replace(source, model=model.SerializeToString())


def with_outputs(count: int, units: int) -> PolicyGraph:
    """This many outputs in addition to the actions, with this many components."""
    names = tuple(f"output {i}" for i in range(count))
    nodes = [_node("MatMul", ["observation", "weight"], ["q_values"]), _node("MatMul", ["observation", "wide"], ["x"])]
    nodes += [_node("Relu", ["x"], [name]) for name in names]
    return policy_graph(nodes, {**_WEIGHT, "wide": [OBSERVATION_SIZE, units]}, more_outputs=names)


def with_layers(count: int) -> PolicyGraph:
    """So many products of one weight each."""
    tensors = ["observation", *(f"x{i}" for i in range(1, count)), "q_values"]
    weights = {f"w{i}": [OBSERVATION_SIZE, OBSERVATION_SIZE] for i in range(count)}
    return policy_graph([_node("MatMul", [tensors[i], f"w{i}"], [tensors[i + 1]]) for i in range(count)], weights)


def with_weight(name: str) -> PolicyGraph:
    """A layer whose weight has this name."""
    return policy_graph([_node("MatMul", ["observation", name], ["q_values"])], {name: [OBSERVATION_SIZE, ACTIONS]})


# By their demand: the graph, and a pattern in its refusal.
REFUSED: dict[str, tuple[PolicyGraph, str]] = {
    "a loop": (loop(), r"node 'z' \(Loop\)"),
    "a branch": (branch(), r"node 'z' \(If\)"),
    "a local function": (_changed(_function), "local functions"),
    "another domain": (_changed(_other_domain), r"com\.microsoft\.MatMul"),
    "random numbers": (_changed(_random), r"node 'noise' \(RandomNormal\)"),
    "4 GiB in one tensor": (filled(2**30), "'z' of 4,294,967,296 bytes"),
    "2^64 bytes": (filled(2**62), "'z' of 18,446,744,073,709,551,616 bytes"),
    "a size by arithmetic": (filled_after_arithmetic(), "'z' of 34,359,738,368 bytes"),
    "a size of the observations": (with_a_lie(), "'z' with a size"),
    "2^40 by doubling": (doubled(40), r"\(Concat\) .*bytes"),
    "many products": (squares(4096, 100), "multiplications .*2 rows"),
    "many products of constants": (squares_of_constants(512, 100), "multiplications of constants"),
    "many tensors": (copies(8), "tensors take"),
    "many nodes": (many(5000), "nodes, .*5004"),
    "a sparse initializer": (_changed(_sparse_initializer), "dense"),
    "a sparse constant": (_changed(_sparse_constant), "'sparse_value'"),
    "10,000 dimensions": (_changed(_deep_rank), "16 dimensions"),
    "a constant of an unknown type": (_changed(_unknown_type), "for 2 rows: Invalid"),
    "a constant of other bytes": (with_other_bytes(), "for 2 rows"),
    "a maximum of shapes": (largest_of_shapes(64, 64, 64, 64, 4), "'z' of 536,870,912 bytes"),
    "wide outputs": (with_outputs(2, 40_000), "outputs: .*65536, .*80003"),
    "many layers": (with_layers(1025), "layers: .*1024 .*1025"),
    "a long name": (with_weight("w" * 1025), "name .*1024 bytes"),
    "a name of two lines": (with_weight("w\n1"), "name .*printable"),
    "a sequence": (_changed(_sequence), "'sequence'"),
}
