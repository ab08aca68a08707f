"""Policy graphs as learners publish them."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from actorq.domain.policy import PolicyGraph
from tests.builders.graphs import graph_of, resigned

Tensors = dict[str, NDArray[Any]]
OBSERVATION_SIZE, ACTIONS = 5, 3


def policy_graph(
    nodes: list[onnx.NodeProto],
    parameters: dict[str, list[int]],
    observation: tuple[int | str, ...] = ("batch", OBSERVATION_SIZE),
    output: str = "q_values",
    discrete_actions: bool = True,
    pixels: bool = False,
    more_inputs: dict[str, list[int | str]] | None = None,
    more_outputs: tuple[str, ...] = (),
    constants: dict[str, NDArray[Any]] | None = None,
    opset: int = 20,
) -> PolicyGraph:
    """A graph with the data input `observation`, further data inputs, and then the parameters as inputs."""
    kind = TensorProto.UINT8 if pixels else TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("observation", kind, observation)]
    further = more_inputs or {}
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in further.items()]
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in parameters.items()]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", f"units of {name}"])
        for name in (output, *more_outputs)
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    body = helper.make_graph(nodes, "policy", inputs, outputs, initializers)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return graph_of(model.SerializeToString(), ("observation", *further), discrete_actions)


def mlp(*hidden: int) -> PolicyGraph:
    """Gemm (weights [N, K], as torch has them) and Relu in turn."""
    sizes = (OBSERVATION_SIZE, *hidden, ACTIONS)
    nodes, parameters, value = [], {}, "observation"
    for i, (inputs, units) in enumerate(pairwise(sizes)):
        last = i == len(sizes) - 2
        output = "q_values" if last else f"linear_{i}"
        names = [f"layers.{i}.weight", f"layers.{i}.bias"]
        parameters.update({names[0]: [units, inputs], names[1]: [units]})
        nodes.append(helper.make_node("Gemm", [value, *names], [output], transB=1))
        if not last:
            value = f"relu_{i}"
            nodes.append(helper.make_node("Relu", [output], [value]))
    return policy_graph(nodes, parameters)


def matmul_mlp(width: int = 16) -> PolicyGraph:
    """Three layers of MatMul and Add (weights [K, N]), the middle one without a bias."""
    nodes = [
        helper.make_node("MatMul", ["observation", "a.weight"], ["a_product"]),
        helper.make_node("Add", ["a_product", "a.bias"], ["a"]),
        helper.make_node("Tanh", ["a"], ["a_tanh"]),
        helper.make_node("MatMul", ["a_tanh", "b.weight"], ["b_product"]),
        helper.make_node("Add", ["b.bias", "b_product"], ["b"]),
        helper.make_node("Tanh", ["b"], ["b_tanh"]),
        helper.make_node("MatMul", ["b_tanh", "c.weight"], ["c"]),
        helper.make_node("Tanh", ["c"], ["c_tanh"]),
        helper.make_node("MatMul", ["c_tanh", "d.weight"], ["q_values"]),
    ]
    parameters = {"a.weight": [OBSERVATION_SIZE, width], "a.bias": [width], "b.weight": [width, width]}
    return policy_graph(nodes, {**parameters, "b.bias": [width], "c.weight": [width, 8], "d.weight": [8, ACTIONS]})


def dueling(width: int = 16) -> PolicyGraph:
    """Two layers, then a value and an advantage head: Q = V + A - mean A."""
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("Gemm", ["observation", "torso.0.weight", "torso.0.bias"], ["t0"], transB=1),
        helper.make_node("Relu", ["t0"], ["r0"]),
        helper.make_node("Gemm", ["r0", "torso.1.weight", "torso.1.bias"], ["t1"], transB=1),
        helper.make_node("Relu", ["t1"], ["r1"]),
        helper.make_node("Gemm", ["r1", "value.weight", "value.bias"], ["value"], transB=1),
        helper.make_node("Gemm", ["r1", "advantage.weight", "advantage.bias"], ["advantage"], transB=1),
        helper.make_node("Constant", [], ["axis"], value=axis),
        helper.make_node("ReduceMean", ["advantage", "axis"], ["mean"], keepdims=1),
        helper.make_node("Add", ["value", "advantage"], ["sum"]),
        helper.make_node("Sub", ["sum", "mean"], ["q_values"]),
    ]
    units = {"torso.0": (width, OBSERVATION_SIZE), "torso.1": (width, width), "value": (1, width)}
    units["advantage"] = (ACTIONS, width)
    parameters: dict[str, list[int]] = {}
    for name, (rows, columns) in units.items():
        parameters |= {f"{name}.weight": [rows, columns], f"{name}.bias": [rows]}
    return policy_graph(nodes, parameters)


def d4pg(width: int = 32) -> PolicyGraph:
    """LayerNormalization and Tanh after the first layer, Elu between the others, Tanh at the end, as in Acme."""
    nodes = [
        helper.make_node("Gemm", ["observation", "0.weight", "0.bias"], ["l0"], transB=1),
        helper.make_node("LayerNormalization", ["l0", "1.weight", "1.bias"], ["n0"]),
        helper.make_node("Tanh", ["n0"], ["h0"]),
        helper.make_node("Gemm", ["h0", "2.weight", "2.bias"], ["l1"], transB=1),
        helper.make_node("Elu", ["l1"], ["h1"]),
        helper.make_node("Gemm", ["h1", "3.weight", "3.bias"], ["l2"], transB=1),
        helper.make_node("Elu", ["l2"], ["h2"]),
        helper.make_node("Gemm", ["h2", "4.weight", "4.bias"], ["l3"], transB=1),
        helper.make_node("Tanh", ["l3"], ["actions"]),
    ]
    shapes = {"0": (width, OBSERVATION_SIZE), "2": (width, width), "3": (width, width), "4": (ACTIONS, width)}
    parameters: dict[str, list[int]] = {"1.weight": [width], "1.bias": [width]}
    for name, (rows, columns) in shapes.items():
        parameters |= {f"{name}.weight": [rows, columns], f"{name}.bias": [rows]}
    return policy_graph(nodes, parameters, output="actions", discrete_actions=False)


def nature_cnn(size: int = 36) -> PolicyGraph:
    """Frames uint8[4, size, size] divided by 255, three convolutions, a hidden layer (Mnih et al. 2015)."""
    side = ((size - 8) // 4 + 1 - 4) // 2 + 1 - 2
    nodes = [
        helper.make_node("Cast", ["observation"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["float", "white"], ["r0"]),
    ]
    parameters: dict[str, list[int]] = {}
    convolutions = [(32, 4, 8, 4), (64, 32, 4, 2), (64, 64, 3, 1)]
    for i, (units, channels, kernel, stride) in enumerate(convolutions, 1):
        names = [f"conv{i}.weight", f"conv{i}.bias"]
        parameters |= {names[0]: [units, channels, kernel, kernel], names[1]: [units]}
        conv = helper.make_node(
            "Conv", [f"r{i - 1}", *names], [f"c{i}"], strides=[stride] * 2, kernel_shape=[kernel] * 2
        )
        nodes += [conv, helper.make_node("Relu", [f"c{i}"], [f"r{i}"])]
    nodes += [
        helper.make_node("Flatten", ["r3"], ["flat"]),
        helper.make_node("Gemm", ["flat", "torso.weight", "torso.bias"], ["t"], transB=1),
        helper.make_node("Relu", ["t"], ["r4"]),
        helper.make_node("Gemm", ["r4", "head.weight", "head.bias"], ["q_values"], transB=1),
    ]
    parameters |= {"torso.weight": [64, 64 * side**2], "torso.bias": [64], "head.weight": [ACTIONS, 64]}
    return policy_graph(
        nodes,
        {**parameters, "head.bias": [ACTIONS]},
        ("batch", 4, size, size),
        pixels=True,
        constants={"white": np.array(255, np.float32)},
    )


def two_inputs(width: int = 32) -> PolicyGraph:
    """An observation and a goal, each with its own layer, joined by Concat, with a residual connection."""
    nodes = [
        helper.make_node("Gemm", ["observation", "o.weight", "o.bias"], ["o"], transB=1),
        helper.make_node("Gemm", ["goal", "g.weight", "g.bias"], ["g"], transB=1),
        helper.make_node("Concat", ["o", "g"], ["joined"], axis=1),
        helper.make_node("Relu", ["joined"], ["x"]),
        helper.make_node("Gemm", ["x", "a.weight", "a.bias"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["ar"]),
        helper.make_node("Gemm", ["ar", "b.weight", "b.bias"], ["b"], transB=1),
        helper.make_node("Add", ["b", "x"], ["sum"]),
        helper.make_node("Gemm", ["sum", "head.weight", "head.bias"], ["q_values"], transB=1),
    ]
    both = 2 * width
    shapes = {"o": (width, OBSERVATION_SIZE), "g": (width, 2), "a": (both, both), "b": (both, both)}
    parameters: dict[str, list[int]] = {}
    for name, (rows, columns) in {**shapes, "head": (ACTIONS, both)}.items():
        parameters |= {f"{name}.weight": [rows, columns], f"{name}.bias": [rows]}
    return policy_graph(nodes, parameters, more_inputs={"goal": ["batch", 2]})


def two_outputs(width: int = 32) -> PolicyGraph:
    """Mean and log standard deviation, and the last hidden layer too; the input of a quantized layer is an output."""
    nodes = [
        helper.make_node("Gemm", ["observation", "a.weight", "a.bias"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["ar"]),
        helper.make_node("Gemm", ["ar", "b.weight", "b.bias"], ["b"], transB=1),
        helper.make_node("Relu", ["b"], ["br"]),
        helper.make_node("Gemm", ["br", "c.weight", "c.bias"], ["c"], transB=1),
        helper.make_node("Relu", ["c"], ["features"]),
        helper.make_node("Gemm", ["features", "mean.weight", "mean.bias"], ["mean"], transB=1),
        helper.make_node("Gemm", ["features", "std.weight", "std.bias"], ["log_std"], transB=1),
    ]
    shapes = {"a": (width, OBSERVATION_SIZE), "b": (width, width), "c": (width, width)}
    parameters: dict[str, list[int]] = {}
    for name, (rows, columns) in {**shapes, "mean": (ACTIONS, width), "std": (ACTIONS, width)}.items():
        parameters |= {f"{name}.weight": [rows, columns], f"{name}.bias": [rows]}
    return policy_graph(nodes, parameters, output="mean", discrete_actions=False, more_outputs=("log_std", "br"))


def tanh_layers(output: str, width: int) -> tuple[list[onnx.NodeProto], dict[str, list[int]]]:
    """Nodes and parameters of three layers, with Tanh behind the first two."""
    nodes: list[onnx.NodeProto] = []
    parameters: dict[str, list[int]] = {}
    value = "observation"
    for i, (inputs, units) in enumerate(pairwise((OBSERVATION_SIZE, width, width, ACTIONS))):
        name = f"{2 * i}"
        parameters |= {f"{name}.weight": [units, inputs], f"{name}.bias": [units]}
        made = output if i == 2 else f"l{i}"
        nodes.append(helper.make_node("Gemm", [value, f"{name}.weight", f"{name}.bias"], [made], transB=1))
        if i < 2:
            value = f"h{i}"
            nodes.append(helper.make_node("Tanh", [made], [value]))
    return nodes, parameters


def categorical(width: int = 32) -> PolicyGraph:
    """Logits of discrete actions."""
    return policy_graph(*tanh_layers("logits", width), output="logits")


def gaussian(width: int = 32) -> PolicyGraph:
    """Actions in [-2, 2], mean and log standard deviation, which is a parameter of no layer, repeated for each row."""
    nodes, parameters = tanh_layers("mean", width)
    nodes += [
        helper.make_node("Shape", ["mean"], ["shape"]),
        helper.make_node("Expand", ["log_std.value", "shape"], ["log_std"]),
        helper.make_node("Clip", ["mean", "low", "high"], ["clipped"]),
        helper.make_node("Mul", ["clipped", "half_range"], ["actions"]),
    ]
    constants = {"low": -1.0, "high": 1.0, "half_range": 2.0}
    source = policy_graph(
        nodes,
        parameters | {"log_std.value": [ACTIONS]},
        output="actions",
        discrete_actions=False,
        more_outputs=("mean", "log_std"),
        constants={name: np.array(value, np.float32) for name, value in constants.items()},
    )
    return resigned(source, spans=(4.0,) * ACTIONS)


def shared_weights(width: int = 32) -> PolicyGraph:
    """One weight used three times: as it is, again, and transposed."""
    nodes = [
        helper.make_node("MatMul", ["observation", "in.weight"], ["h0"]),
        helper.make_node("Gemm", ["h0", "tied.weight"], ["h1"], transB=1),
        helper.make_node("Tanh", ["h1"], ["t1"]),
        helper.make_node("Gemm", ["t1", "tied.weight", "tied.bias"], ["h2"], transB=1),
        helper.make_node("Tanh", ["h2"], ["t2"]),
        helper.make_node("MatMul", ["t2", "tied.weight"], ["h3"]),
        helper.make_node("MatMul", ["h3", "out.weight"], ["q_values"]),
    ]
    shapes = {"in.weight": [OBSERVATION_SIZE, width], "tied.weight": [width, width], "tied.bias": [width]}
    return policy_graph(nodes, {**shapes, "out.weight": [width, ACTIONS]})


def pooled(size: int = 16) -> PolicyGraph:
    """Float images, a grouped and padded convolution without a bias, MaxPool and Reshape on the way to a layer."""
    nodes = [
        helper.make_node("Conv", ["observation", "a.weight", "a.bias"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["ar"]),
        helper.make_node("MaxPool", ["ar"], ["ap"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["ap", "b.weight"], ["b"], group=2, pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["b"], ["bp"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Relu", ["bp"], ["br"]),
        helper.make_node("Reshape", ["br", "flat"], ["x"]),
        helper.make_node("Gemm", ["x", "c.weight", "c.bias"], ["c"], transB=1),
        helper.make_node("Gemm", ["c", "head.weight"], ["q_values"], transB=1),
    ]
    features = 16 * (size // 4) ** 2
    parameters = {"a.weight": [8, 2, 3, 3], "a.bias": [8], "b.weight": [16, 4, 3, 3], "c.weight": [32, features]}
    return policy_graph(
        nodes,
        {**parameters, "c.bias": [32], "head.weight": [ACTIONS, 32]},
        ("batch", 2, size, size),
        constants={"flat": np.array([0, -1])},
    )


def residual(size: int = 12) -> PolicyGraph:
    """Float images, and a block of convolutions whose shortcut is a convolution too (He et al. 2016)."""
    nodes = [
        helper.make_node("Conv", ["observation", "in.weight", "in.bias"], ["x"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["x"], ["xr"]),
        helper.make_node("Conv", ["xr", "a.weight", "a.bias"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["ar"]),
        helper.make_node("Conv", ["ar", "b.weight", "b.bias"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["xr", "shortcut.weight", "shortcut.bias"], ["s"], strides=[2, 2]),
        helper.make_node("Add", ["b", "s"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["sr"]),
        helper.make_node("Flatten", ["sr"], ["flat"]),
        helper.make_node("Gemm", ["flat", "head.weight", "head.bias"], ["q_values"], transB=1),
    ]
    shapes = {"in": [8, 2, 3, 3], "a": [16, 8, 3, 3], "b": [16, 16, 3, 3], "shortcut": [16, 8, 1, 1]}
    parameters: dict[str, list[int]] = {}
    for name, shape in {**shapes, "head": [ACTIONS, 16 * (size // 2) ** 2]}.items():
        parameters |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return policy_graph(nodes, parameters, ("batch", 2, size, size))


def recurrent(operator: str = "LSTM", width: int = 32, **attributes: Any) -> PolicyGraph:
    """A layer, an LSTM, GRU or RNN whose states are batch first, float32[B, 1, width], and a head."""
    gates, states = {"LSTM": (4, ["h", "c"]), "GRU": (3, ["h"]), "RNN": (1, ["h"])}[operator]
    made = [f"{name}_after" for name in states]
    nodes = [
        helper.make_node("Gemm", ["observation", "in.weight", "in.bias"], ["x"], transB=1),
        helper.make_node("Relu", ["x"], ["xr"]),
        helper.make_node("Unsqueeze", ["xr", "first"], ["step"]),
        *(helper.make_node("Transpose", [name], [f"{name}_turned"], perm=[1, 0, 2]) for name in states),
        helper.make_node(
            operator,
            ["step", "w", "r", "", "", *(f"{name}_turned" for name in states)],
            ["", *(f"{name}_turned" for name in made)],
            hidden_size=width,
            **attributes,
        ),
        *(helper.make_node("Transpose", [f"{name}_turned"], [name], perm=[1, 0, 2]) for name in made),
        helper.make_node("Squeeze", [f"{made[0]}_turned", "first"], ["features"]),
        helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["q_values"], transB=1),
    ]
    parameters = {"in.weight": [width, OBSERVATION_SIZE], "in.bias": [width]}
    parameters |= {"w": [1, gates * width, width], "r": [1, gates * width, width]}
    parameters |= {"head.weight": [ACTIONS, width], "head.bias": [ACTIONS]}
    source = policy_graph(
        nodes,
        parameters,
        more_inputs={name: ["batch", 1, width] for name in states},
        constants={"first": np.array([0])},
    )
    model = onnx.ModelProto.FromString(source.model)
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 1, width]) for name in made
    )
    return resigned(replace(source, model=model.SerializeToString()))


def recurrent_cell(width: int = 32) -> PolicyGraph:
    """h' = tanh(W x + R h), as exporters unroll a cell: two layers read data inputs, one of them the hidden state."""
    nodes = [
        helper.make_node("Gemm", ["observation", "w.weight", "w.bias"], ["x"], transB=1),
        helper.make_node("Gemm", ["h", "r.weight", "r.bias"], ["y"], transB=1),
        helper.make_node("Add", ["x", "y"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["h_after"]),
        helper.make_node("Gemm", ["h_after", "head.weight", "head.bias"], ["q_values"], transB=1),
    ]
    shapes = {"w": [width, OBSERVATION_SIZE], "r": [width, width], "head": [ACTIONS, width]}
    parameters: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        parameters |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    source = policy_graph(nodes, parameters, more_inputs={"h": ["batch", width]})
    model = onnx.ModelProto.FromString(source.model)
    model.graph.output.append(helper.make_tensor_value_info("h_after", TensorProto.FLOAT, ["batch", width]))
    return resigned(replace(source, model=model.SerializeToString()))


def sequence(width: int = 32) -> PolicyGraph:
    """Seven steps of an observation through layers on three dimensions, as TorchScript exports them, then the mean."""
    nodes = [
        helper.make_node("Identity", ["a.weight"], ["a.copy"]),
        helper.make_node("Transpose", ["a.copy"], ["a.turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["observation", "a.turned"], ["a0"]),
        helper.make_node("Add", ["a.bias", "a0"], ["a1"]),
        helper.make_node("Elu", ["a1"], ["a2"]),
        helper.make_node("Transpose", ["b.weight"], ["b.turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["a2", "b.turned"], ["b0"]),
        helper.make_node("Add", ["b0", "a.bias"], ["b1"]),
        helper.make_node("Elu", ["b1"], ["b2"]),
        helper.make_node("ReduceMean", ["b2", "step"], ["b3"], keepdims=0),
        helper.make_node("Gemm", ["b3", "head.weight", "head.bias"], ["q_values"], transB=1),
    ]
    parameters = {"a.weight": [width, OBSERVATION_SIZE], "a.bias": [width], "b.weight": [width, width]}
    return policy_graph(
        nodes,
        {**parameters, "head.weight": [ACTIONS, width], "head.bias": [ACTIONS]},
        ("batch", 7, OBSERVATION_SIZE),
        constants={"step": np.array([1])},
    )


# One of every kind, for properties that all must have.
GRAPHS = {
    "mlp": mlp(32, 32, 32),
    "dueling": dueling(32),
    "matmul": matmul_mlp(32),
    "one layer": mlp(),
    "d4pg": d4pg(),
    "nature cnn": nature_cnn(),
    "two inputs": two_inputs(),
    "two outputs": two_outputs(),
    "categorical": categorical(),
    "gaussian": gaussian(),
    "shared weights": shared_weights(),
    "pooled": pooled(),
    "residual": residual(),
    "lstm": recurrent(),
    "cell": recurrent_cell(),
    "sequence": sequence(),
}
