"""The table of PyTorch calls that `graph_writer` can turn into ONNX nodes.

The nodes equal the nodes of PyTorch's exporter, because the quantizer's rules expect them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from learner_service.policy.recorded_calls import Call


class UnknownOperationError(Exception):
    """The policy uses an operation that is not in the table of this module."""


def require(condition: bool, what: str) -> None:
    """Raise UnknownOperationError(what) unless the condition holds."""
    if not condition:
        raise UnknownOperationError(what)


class Nodes:
    """Nodes and constants of a new graph. named: data inputs, parameters and buffers; other tensors are constants."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        self.written: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.used: set[str] = set()
        """Tensors that are inputs of a node."""
        # The names of tensors, by the identity of each tensor. The caller keeps all tensors alive.
        self._names = {id(tensor): name for name, tensor in named.items()}

    def tensor(self, argument: Any) -> str:
        """The name of a tensor of the graph; a number becomes a constant."""
        if not isinstance(argument, Tensor):
            require(isinstance(argument, int | float), f"argument {argument!r}")
            return self.constant(np.array(argument, np.float32))
        name = self._names.get(id(argument))
        if name is None:
            name = self._names[id(argument)] = self.constant(argument.detach().numpy())
        self.used.add(name)
        return name

    def constant(self, array: NDArray[Any]) -> str:
        """The name of a constant tensor of the graph."""
        name = f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def add(self, kind: str, call: Call, inputs: Sequence[Any], **attributes: Any) -> None:
        """Add the node for a call. inputs: tensors, numbers, or names of constants."""
        read = [each if isinstance(each, str) else self.tensor(each) for each in inputs]
        made = [f"{kind.lower()}_{len(self.written)}_{number}" for number in range(len(call.made))]
        self._names |= {id(tensor): name for tensor, name in zip(call.made, made, strict=True)}
        self.written.append(helper.make_node(kind, read, made, **attributes))

    def write(self, call: Call) -> None:
        """Add the node of a call, if it needs one."""
        if not call.made:
            require(call.name.endswith(".__get__") or call.name in _SHAPES, call.name)
            return
        require(call.name in _OPERATIONS, call.name)
        if call.result is not call.arguments[0]:
            _OPERATIONS[call.name](self, call)
        else:
            # A call such as `to` returns its argument when no conversion is necessary.
            require(call.name in _MAY_RETURN_THEIR_ARGUMENT, f"{call.name} in place")


_Write = Callable[[Nodes, Call], None]


def _elementwise(kind: str) -> _Write:
    """An operation on each element."""

    def write(nodes: Nodes, call: Call) -> None:
        require(len(call.arguments) == 1 and call.options.items() <= {"inplace": False}.items(), call.name)
        nodes.add(kind, call, call.arguments)

    return write


def _binary(kind: str) -> _Write:
    def write(nodes: Nodes, call: Call) -> None:
        tensors = [argument for argument in call.arguments if isinstance(argument, Tensor)]
        same = {tensor.dtype for tensor in tensors} == {torch.float32}
        require(len(call.arguments) == 2 and not call.options and same, f"{call.name} of other types")
        nodes.add(kind, call, call.arguments)

    return write


def _elu(nodes: Nodes, call: Call) -> None:
    require(len(call.arguments) == 1 and call.options.keys() == {"alpha", "inplace"}, call.name)
    nodes.add("Elu", call, call.arguments, alpha=call.options["alpha"])


def _clamp(nodes: Nodes, call: Call) -> None:
    require(len(call.arguments) == 3 and not call.options, f"{call.name} without two positional bounds")
    nodes.add("Clip", call, call.arguments)


def _mean(nodes: Nodes, call: Call) -> None:
    require(len(call.arguments) == 1 and call.options == {"dim": -1, "keepdim": True}, f"{call.name} over other dims")
    axes = nodes.constant(np.array([-1], np.int64))
    nodes.add("ReduceMean", call, [*call.arguments, axes], keepdims=1, noop_with_empty_axes=0)


def _chunk(nodes: Nodes, call: Call) -> None:
    require(len(call.arguments) == 2 and call.options == {"dim": 1}, f"{call.name} of other dims")
    require(len({part.shape for part in call.made}) == 1, f"{call.name} of different sizes")
    nodes.add("Split", call, call.arguments[:1], axis=1, num_outputs=len(call.made))


def _split(nodes: Nodes, call: Call) -> None:
    dimension = call.options.get("dim", call.arguments[2:])
    require(dimension in (1, (1,)) and not call.options.keys() - {"dim"}, f"{call.name} of other dims")
    sizes = nodes.constant(np.array([part.shape[1] for part in call.made], np.int64))
    nodes.add("Split", call, [call.arguments[0], sizes], axis=1)


def _concatenate(nodes: Nodes, call: Call) -> None:
    require(len(call.arguments) == 2 and call.arguments[1] == 1 and not call.options, f"{call.name} of other dims")
    nodes.add("Concat", call, call.arguments[0], axis=1)


def _where(nodes: Nodes, call: Call) -> None:
    condition, *others = call.arguments
    require(len(others) == 2 and condition.dtype == torch.bool and not call.options, f"{call.name} of other types")
    nodes.add("Where", call, call.arguments)


def _embedding(nodes: Nodes, call: Call) -> None:
    indices, weight, *others = call.arguments
    plain = {None, 2.0, False} >= {*others, *call.options.values()}
    require(plain and weight.ndim == 2, f"{call.name} with options")
    nodes.add("Gather", call, [weight, indices], axis=0)


def _cast(nodes: Nodes, call: Call) -> None:
    known = call.arguments[1:] == (torch.float32,) and not call.options.keys() - {"memory_format"}
    require(known, f"{call.name} of other arguments")
    nodes.add("Cast", call, call.arguments[:1], to=TensorProto.FLOAT)


def _reshape(nodes: Nodes, call: Call) -> None:
    """Reshape each row. The number of rows stays the same."""
    require(len(call.result) == len(call.arguments[0]), f"{call.name} of rows")
    shape = nodes.constant(np.array([-1, *call.result.shape[1:]], np.int64))
    nodes.add("Reshape", call, [call.arguments[0], shape], allowzero=1)


def _permute(nodes: Nodes, call: Call) -> None:
    require(len(call.arguments) > 2 and call.arguments[1] == 0 and not call.options, f"{call.name} of rows")
    nodes.add("Transpose", call, call.arguments[:1], perm=list(call.arguments[1:]))


def _linear(nodes: Nodes, call: Call) -> None:
    given = len(call.arguments) == 3 and call.arguments[2] is not None and not call.options
    require(given and call.result.ndim == 2, f"{call.name} without bias, or on more than rows")
    nodes.add("Gemm", call, call.arguments, alpha=1.0, beta=1.0, transA=0, transB=1)


def _convolution(nodes: Nodes, call: Call) -> None:
    known = len(call.arguments) == 7 and call.arguments[2] is not None and call.result.ndim == 4
    require(known and not call.options, f"{call.name} without bias or rows")
    strides, padding, dilations, group = call.arguments[3:]
    require(not isinstance(padding, str), f"{call.name} with padding {padding!r}")
    shape = {"kernel_shape": call.arguments[1].shape[2:], "strides": strides, "dilations": dilations}
    nodes.add("Conv", call, call.arguments[:3], auto_pad="NOTSET", group=group, pads=[*padding, *padding], **shape)


def _layer_norm(nodes: Nodes, call: Call) -> None:
    known = (
        len(call.arguments) == 2 and len(call.arguments[1]) == 1 and call.options.keys() == {"weight", "bias", "eps"}
    )
    require(known and call.options["weight"] is not None and call.options["bias"] is not None, call.name)
    inputs = [call.arguments[0], call.options["weight"], call.options["bias"]]
    nodes.add("LayerNormalization", call, inputs, axis=-1, epsilon=call.options["eps"], stash_type=1)


_TENSOR, _FUNCTIONAL = "torch.Tensor.", "torch.nn.functional."
# Queries that need no node. If the graph depends on their result, it differs for another number of rows.
_SHAPES = {_TENSOR + name for name in ("__len__", "size", "dim", "numel", "stride", "is_floating_point")}
_MAY_RETURN_THEIR_ARGUMENT = {_TENSOR + name for name in ("to", "flatten", "reshape")}
_OPERATIONS: dict[str, _Write] = {
    _FUNCTIONAL + "linear": _linear,
    _FUNCTIONAL + "conv2d": _convolution,
    _FUNCTIONAL + "layer_norm": _layer_norm,
    _FUNCTIONAL + "elu": _elu,
    _FUNCTIONAL + "embedding": _embedding,
    "torch.cat": _concatenate,
    "torch.where": _where,
    "torch.functional.split": _split,
    _FUNCTIONAL + "relu": _elementwise("Relu"),
    **{_TENSOR + name: _binary(name.capitalize()) for name in ("add", "sub", "mul", "div")},
    **{
        prefix + name: _elementwise(name.capitalize())
        for prefix in ("torch.", _TENSOR)
        for name in ("relu", "tanh", "exp", "sigmoid")
    },
    **{_TENSOR + name: _reshape for name in ("flatten", "view", "reshape")},
    _TENSOR + "permute": _permute,
    _TENSOR + "clamp": _clamp,
    _TENSOR + "mean": _mean,
    _TENSOR + "chunk": _chunk,
    _TENSOR + "to": _cast,
}
