"""Lists the operators that a policy's graph may contain: the operators of networks, without control flow.

A graph comes from a peer and runs here. An operator is allowed only if the shapes of its tensors determine its cost
(see footprint). This excludes loops, branches, subgraphs, sequences, strings and random numbers.
"""

import onnx

from actorq.errors import InvalidInputError
from actorq.quantization.nodes import STANDARD

MAX_NODES = 4096
# Inputs and outputs of all nodes together.
MAX_EDGES = 65_536
MAX_RANK = 16

# Activations, arithmetic, layers, normalizations, pooling, reductions, shapes and quantization, in this order.
_ALLOWED = """
    Celu Elu Erf Gelu HardSigmoid HardSwish Hardmax LeakyRelu LogSoftmax Mish PRelu Relu Selu Shrink Sigmoid
    Softmax Softplus Softsign Swish Tanh ThresholdedRelu
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil
    Clip Cos Cosh Div Equal Exp Floor Greater GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Log Max Mean
    Min Mod Mul Neg Not Or Pow Reciprocal Round Sign Sin Sinh Sqrt Sub Sum Tan Where Xor
    Conv ConvTranspose Einsum GRU Gemm LSTM MatMul RNN
    BatchNormalization Dropout GroupNormalization InstanceNormalization LayerNormalization LpNormalization
    MeanVarianceNormalization RMSNormalization
    AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool
    ArgMax ArgMin CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare TopK
    Concat Constant ConstantOfShape DepthToSpace Expand EyeLike Flatten Gather GatherElements GatherND OneHot
    Pad Range Reshape Resize ScatterElements ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile
    Transpose Trilu Unsqueeze Upsample
    DequantizeLinear DynamicQuantizeLinear QuantizeLinear
"""
ALLOWED = frozenset(_ALLOWED.split())

_Kind = onnx.AttributeProto
_ATTRIBUTES = frozenset((_Kind.FLOAT, _Kind.INT, _Kind.STRING, _Kind.TENSOR, _Kind.FLOATS, _Kind.INTS, _Kind.STRINGS))


def check_operators(model: onnx.ModelProto) -> None:
    """Raise InvalidInputError that names the first forbidden node or the exceeded bound."""
    nodes = model.graph.node
    if len(nodes) > MAX_NODES:
        raise InvalidInputError(f"graph: expected at most {MAX_NODES} nodes, got {len(nodes)}")
    if (edges := sum(len(node.input) + len(node.output) for node in nodes)) > MAX_EDGES:
        raise InvalidInputError(f"graph: expected at most {MAX_EDGES} inputs and outputs of nodes, got {edges}")
    if model.graph.sparse_initializer:
        raise InvalidInputError("graph: expected dense constants, got a sparse one; export the policy without")
    for node in nodes:
        _check_node(node)
    for tensor in model.graph.initializer:
        check_rank(tensor.name, len(tensor.dims))
    for value in (*model.graph.input, *model.graph.output):
        if value.type.WhichOneof("value") not in (None, "tensor_type"):
            raise InvalidInputError(f"graph: expected {value.name!r} to be a tensor, got another type")
        check_rank(value.name, len(value.type.tensor_type.shape.dim))


def check_rank(name: str, rank: int) -> None:
    """Raise InvalidInputError for a tensor of too many dimensions."""
    if rank > MAX_RANK:
        raise InvalidInputError(f"graph: expected at most {MAX_RANK} dimensions, {name!r} has {rank}")


def node_name(node: onnx.NodeProto) -> str:
    """A node's name for errors."""
    return f"node {node.name or (node.output[0] if node.output else '')!r} ({node.op_type})"


def _check_node(node: onnx.NodeProto) -> None:
    if node.domain not in STANDARD or node.op_type not in ALLOWED:
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        raise InvalidInputError(
            f"graph: {node_name(node)} has the operator {operator}, which is not allowed; export the policy with "
            "ONNX's own operators and without control flow (actorq/quantization/operators.py lists the operators)"
        )
    for attribute in node.attribute:
        if attribute.type not in _ATTRIBUTES or attribute.ref_attr_name:
            kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
            raise InvalidInputError(
                f"graph: {node_name(node)} has the attribute {attribute.name!r} of type {kind}; expected numbers, text "
                "or a dense tensor"
            )
        if attribute.type == _Kind.TENSOR:
            check_rank(f"{node_name(node)}.{attribute.name}", len(attribute.t.dims))
