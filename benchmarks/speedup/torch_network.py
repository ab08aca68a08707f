"""Converts an fp32 ONNX policy to a PyTorch module with the layers of torch.nn, as its author would have written it."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import nn

from actorq.errors import InvalidInputError

Constants = Mapping[str, NDArray[Any]]

_ACTIVATIONS: Mapping[str, Callable[[dict[str, Any]], nn.Module]] = {
    "Elu": lambda attributes: nn.ELU(attributes.get("alpha", 1.0)),
    "Relu": lambda _: nn.ReLU(),
    "Sigmoid": lambda _: nn.Sigmoid(),
    "Softplus": lambda _: nn.Softplus(),
    "Tanh": lambda _: nn.Tanh(),
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Div": operator.truediv,
    "Exp": torch.exp,
    "Identity": lambda value: value,
    "Mul": operator.mul,
    "Sub": operator.sub,
}


class TorchNetwork(nn.Module):
    """The layers of a policy. Each chain of layers is one nn.Sequential.

    inputs, outputs: their names in the model, in the order of `forward`.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        """Build the module. Raises InvalidInputError for an operator without a counterpart here."""
        super().__init__()
        graph = model.graph
        constants = {tensor.name: numpy_helper.to_array(tensor).copy() for tensor in graph.initializer}
        self.inputs = [value.name for value in graph.input]
        self.outputs = [value.name for value in graph.output]
        uses = [name for node in graph.node for name in node.input] + self.outputs
        self._places = {name: place for place, name in enumerate(self.inputs)}
        self._steps: list[tuple[nn.Module, list[int], int]] = []
        for node in graph.node:
            sources = [name for name in node.input if name and name not in constants]
            alone = len(sources) == 1 and len(node.output) == 1 and uses.count(sources[0]) == 1
            for index, name in enumerate(node.output):
                self._add(_layer(node, constants, index), [self._places[source] for source in sources], name, alone)
        self._results = [self._places[name] for name in self.outputs]
        self.layers = nn.ModuleList(module for module, _, _ in self._steps)

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """All outputs, [B, ...]."""
        values = [*inputs, *inputs[:1] * len(self._steps)]
        for module, sources, place in self._steps:
            values[place] = module(*[values[source] for source in sources])
        return [values[place] for place in self._results]

    def _add(self, module: nn.Module, sources: list[int], name: str, alone: bool) -> None:
        """Add a layer. It joins its input's chain if nothing else reads that chain's output."""
        if alone and self._steps and self._steps[-1][2] == sources[0]:
            chain = self._steps[-1][0]
            if isinstance(chain, nn.Sequential):
                chain.append(module)
                self._places[name] = sources[0]
                return
        place = len(self.inputs) + len(self._steps)
        self._steps.append((nn.Sequential(module) if len(sources) == 1 else module, sources, place))
        self._places[name] = place


class _Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """The function's result."""
        return self._function(*inputs)


def _layer(node: onnx.NodeProto, constants: Constants, output: int) -> nn.Module:
    """The module for one output of a node. Its arguments are the inputs that are not constant."""
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    fixed = {place: torch.from_numpy(constants[name]) for place, name in enumerate(node.input) if name in constants}
    kind = node.op_type
    if kind in _ACTIVATIONS:
        return _ACTIVATIONS[kind](attributes)
    if kind in _FUNCTIONS:
        return _Function(_with(_FUNCTIONS[kind], fixed, len(node.input)))
    if kind == "Gemm" and attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0 and 1 in fixed:
        return _linear(fixed[1] if attributes.get("transB") else fixed[1].T, fixed.get(2))
    if kind == "MatMul" and 1 in fixed:
        return _linear(fixed[1].T, None)
    if kind == "LayerNormalization" and attributes.get("axis", -1) == -1:
        layer = nn.LayerNorm(fixed[1].shape, eps=attributes.get("epsilon", 1e-5))
        layer.weight, layer.bias = nn.Parameter(fixed[1]), nn.Parameter(fixed[2])
        return layer
    if kind == "Conv":
        return _convolution(fixed, attributes)
    if kind == "Clip":
        low, high = fixed.get(1), fixed.get(2)
        return _Function(lambda value: torch.clamp(value, low, high))
    if kind == "Cast" and attributes["to"] == onnx.TensorProto.FLOAT:
        return _Function(lambda value: value.to(torch.float32))
    if kind == "Flatten" and attributes.get("axis", 1) == 1:
        return nn.Flatten()
    if kind == "Reshape" and 1 in fixed:
        shape = fixed[1].tolist()
        return _Function(lambda value: value.reshape(shape))
    if kind == "ReduceMean" and 1 in fixed:
        axes, keep = fixed[1].tolist(), bool(attributes.get("keepdims", 1))
        return _Function(lambda value: value.mean(axes, keep))
    if kind == "Split" and "num_outputs" in attributes:
        parts, axis = attributes["num_outputs"], attributes.get("axis", 0)
        return _Function(lambda value: value.chunk(parts, axis)[output])
    raise InvalidInputError(
        f"a policy in PyTorch: expected layers of the built-in algorithms, got the operator {kind}: compare without "
        "the scheme torch, or add the operator to torch_network.py"
    )


def _with(function: Callable[..., Any], fixed: Mapping[int, torch.Tensor], arity: int) -> Callable[..., Any]:
    """The function with its constant inputs fixed."""
    if not fixed:
        return function

    def applied(*values: torch.Tensor) -> Any:
        given = iter(values)
        return function(*[fixed[place] if place in fixed else next(given) for place in range(arity)])

    return applied


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.contiguous())
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer


def _convolution(fixed: Mapping[int, torch.Tensor], attributes: Mapping[str, Any]) -> nn.Conv2d:
    weight, pads = fixed[1], attributes.get("pads", [0, 0, 0, 0])
    layer = nn.Conv2d(
        weight.shape[1] * attributes.get("group", 1),
        weight.shape[0],
        (weight.shape[2], weight.shape[3]),
        stride=tuple(attributes.get("strides", [1, 1])),
        padding=tuple(pads[:2]),
        dilation=tuple(attributes.get("dilations", [1, 1])),
        groups=attributes.get("group", 1),
        bias=2 in fixed,
        device="meta",
    )
    layer.weight = nn.Parameter(weight)
    if 2 in fixed:
        layer.bias = nn.Parameter(fixed[2])
    return layer
