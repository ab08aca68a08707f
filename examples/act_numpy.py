"""Act with an exported policy in numpy alone, for tiny machines: each node of its graph is one line.

    actorq export runs/mine --scheme fp32 --form standard -o policy.onnx
    python examples/act_numpy.py policy.onnx

The `onnx` package only reads the file. Save `weights` and `steps` in any format of your machine.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]
OPERATORS: dict[str, Callable[..., Array]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Relu": lambda a: np.maximum(a, 0),
    "Tanh": np.tanh,
    "Clip": lambda a, low, high: np.clip(a, low, high),
    "Div": lambda a, b: a / b,
    "Gemm": lambda a, b, c, transposed=0: a @ (b.T if transposed else b) + c,
    "ReduceMean": lambda a, axes, keepdims=1: a.mean(axis=tuple(axes), keepdims=bool(keepdims)),
}


class NumpyPolicy:
    """The graph of a file as numpy operations. Raises KeyError for an operator that is not above."""

    def __init__(self, file: str) -> None:
        graph = onnx.load(file).graph
        self.weights = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        self.steps = [
            (OPERATORS[node.op_type], list(node.input), node.output[0], _attributes(node))
            for node in graph.node
        ]
        self._output = graph.output[0].name

    def __call__(self, inputs: Mapping[str, Array]) -> Array:
        """The first output, such as the value of each action, for a batch of rows of each input."""
        values = {**self.weights, **inputs}
        for operator, names, output, attributes in self.steps:
            values[output] = operator(*(values[name] for name in names if name), **attributes)
        return values[self._output]


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    # Gemm's factors are 1 in a policy.
    names = {"transB": "transposed", "keepdims": "keepdims"}
    known = (each for each in node.attribute if each.name in names)
    return {names[each.name]: helper.get_attribute_value(each) for each in known}


if __name__ == "__main__":
    policy = NumpyPolicy(sys.argv[1])
    print(policy({"observations": np.array([[0.0, 0.1, 0.0, -0.1]], np.float32)}))
