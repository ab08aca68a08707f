"""Writes the ONNX graph of a policy with well-known operations, in milliseconds.

PyTorch's exporter knows more operations, but needs seconds; see docs/decisions/0027-written-and-kept-graphs.md.
"""

from collections.abc import Sequence

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from learner_service.policy.graph_operations import Nodes, UnknownOperationError, require
from learner_service.policy.recorded_calls import record

OPSET = 21
_IR_VERSION = 10
_TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.uint8: TensorProto.UINT8,
    torch.bool: TensorProto.BOOL,
    torch.int32: TensorProto.INT32,
}
# Numbers of rows of the two examples.
_ROWS = (5, 7)


def write_graph(policy: nn.Module, inputs: dict[str, Tensor], outputs: Sequence[str]) -> onnx.ModelProto:
    """The graph of a policy, with its parameters as graph inputs under their names.

    policy: a copy on the CPU in eval mode. This function changes its parameters. inputs: example rows, by name and in
        order; the graph accepts any number of rows. outputs: names of the outputs.
    The graph is written twice, with different rows, numbers of rows and parameters. Raises UnknownOperationError when
    the two graphs differ, and when a torch call is not in the table.
    """
    try:
        first, second = (_write(policy, inputs, outputs, rows) for rows in _ROWS)
    except UnknownOperationError:
        raise
    except Exception as error:
        # PyTorch's exporter then reports the error of a user's policy.
        raise UnknownOperationError(f"{type(error).__name__}: {error}") from error
    require(first == second, "code that depends on the number of rows or on values")
    return first


def _write(policy: nn.Module, inputs: dict[str, Tensor], outputs: Sequence[str], rows: int) -> onnx.ModelProto:
    parameters = policy.state_dict(keep_vars=True)
    generator = torch.Generator().manual_seed(rows)
    with torch.no_grad():
        for tensor in parameters.values():
            tensor.uniform_(-1.0, 1.0, generator=generator)
    examples = {
        # Integers are categories. Two different values are enough.
        name: torch.rand((rows, *each.shape[1:]), generator=generator)
        .mul(2 if each.dtype == torch.int32 else 255)
        .to(each.dtype)
        for name, each in inputs.items()
    }
    calls, returned = record(policy, examples)
    nodes = Nodes({**examples, **parameters})
    for call in calls:
        nodes.write(call)
    tensors = returned if isinstance(returned, tuple) else (returned,)
    require(len(tensors) == len(outputs), "another number of outputs")
    for name, tensor in zip(outputs, tensors, strict=True):
        _rename(nodes.written, nodes.tensor(tensor), name)
    require(nodes.used >= parameters.keys(), "parameters that are not used")
    graph = helper.make_graph(
        nodes.written,
        "main_graph",
        [_described(name, tensor, name in examples) for name, tensor in (examples | parameters).items()],
        [_described(name, tensor) for name, tensor in zip(outputs, tensors, strict=True)],
        list(nodes.constants.values()),
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=[opset], producer_name="actorq")


def _rename(nodes: Sequence[onnx.NodeProto], old: str, new: str) -> None:
    """Rename a tensor that a node returns."""
    require(any(old in node.output for node in nodes), f"output {new}, which no call returns, or which appears twice")
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def _described(name: str, tensor: Tensor, rows: bool = True) -> onnx.ValueInfoProto:
    require(tensor.dtype in _TYPES, f"{tensor.dtype}")
    shape = ["batch", *tensor.shape[1:]] if rows else list(tensor.shape)
    return helper.make_tensor_value_info(name, _TYPES[tensor.dtype], shape)
