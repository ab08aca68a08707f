"""Writes the models that test which products ONNX Runtime computes exactly on a processor (actorq.arithmetic).

The models are files, because actors work without onnx. Run this module to write them again. Each model has the products
that schemes emit, and the same products in float32, which are exact for integers below 2^24. Its outputs are the
largest differences between the two. Weights and inputs are extreme: if pairs of products are added in 16 bits,
sums such as 127 x 255 + 127 x 255 saturate.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from actorq.arithmetic import INT4_INPUTS, INT8_INPUTS, PIXELS, PROBES
from actorq.domain.policy import SIGNED
from actorq.quantization.emission.weights import INT4_LOWEST, INT8_LARGEST
from actorq.quantization.nodes import MICROSOFT

_UNITS = 48
_OPSETS = (helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1))
_IR_VERSION = 8
# The scale of a convolution's uint8 outputs: a power of two at which the largest sums fit.
_STEP = 2.0**16


def int8_probe() -> bytes:
    """The products of int8 and int8-static with signed weights: inputs rows float32[B, 64], pixels uint8[B, 16, 4, 4].

    Each input row contains both 0 and 255 as integers, so DynamicQuantizeLinear changes nothing.
    """
    linear, kernels = _extreme((_UNITS, INT8_INPUTS)), _extreme((32, *PIXELS[:1], 3, 3))
    constants = {
        "one": np.float32(1),
        "step": np.float32(_STEP),
        "zero": np.uint8(0),
        "middle": np.uint8(128),
        "signed": np.int8(0),
        "bias": np.zeros(_UNITS, np.int32),
        "dynamic weights": np.ascontiguousarray(linear.T),
        "static weights": linear,
        "kernels": kernels,
        "integers of linear": np.ascontiguousarray(linear.T),
        "integers of kernels": kernels,
        "half of the outputs": np.float32(128),
        "lowest": np.float32(0),
        "largest": np.float32(255),
    }
    static = ["quantized rows", "one", "zero", "static weights", "one", "signed", "bias"]
    convolution = ["pixels", "one", "zero", "kernels", "one", "signed", "step", "middle"]
    nodes = [
        helper.make_node("DynamicQuantizeMatMul", ["rows", "dynamic weights", "one", "", ""], ["y0"], domain=MICROSOFT),
        helper.make_node("QuantizeLinear", ["rows", "one", "zero"], ["quantized rows"]),
        helper.make_node("QGemm", static, ["y1"], domain=MICROSOFT, transB=1),
        helper.make_node("QLinearConv", convolution, ["quantized y2"]),
        helper.make_node("Cast", ["quantized y2"], ["y2"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["integers of linear"], ["exact linear"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["rows", "exact linear"], ["exact sums"]),
        helper.make_node("Cast", ["integers of kernels"], ["exact kernels"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["pixels"], ["exact pixels"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["exact pixels", "exact kernels"], ["sums of pixels"]),
        helper.make_node("Div", ["sums of pixels", "step"], ["steps"]),
        helper.make_node("Round", ["steps"], ["whole steps"]),
        helper.make_node("Add", ["whole steps", "half of the outputs"], ["shifted steps"]),
        helper.make_node("Clip", ["shifted steps", "lowest", "largest"], ["exact outputs"]),
        *_difference("y0", "exact sums", "dynamic"),
        *_difference("y1", "exact sums", "static"),
        *_difference("y2", "exact outputs", "convolution"),
    ]
    inputs = [
        helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", INT8_INPUTS]),
        helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["batch", *PIXELS]),
    ]
    return _model(nodes, inputs, ["dynamic", "static", "convolution"], constants)


def int4_probe() -> bytes:
    """The product of int4: input rows float32[B, 128] of 0 and 127, with both in each row."""
    values = np.random.default_rng(0).choice([0, 15, 15], (_UNITS, INT4_INPUTS)).astype(np.uint8)
    constants = {
        "weights": (values[:, 1::2] << 4 | values[:, 0::2])[:, None],
        "scales": np.ones((_UNITS, 1), np.float32),
        "integers": np.ascontiguousarray((values + INT4_LOWEST).T.astype(np.int8)),
    }
    sizes: dict[str, Any] = {"K": INT4_INPUTS, "N": _UNITS, "bits": 4, "block_size": INT4_INPUTS, "accuracy_level": 4}
    nodes = [
        helper.make_node("MatMulNBits", ["rows", "weights", "scales"], ["y"], domain=MICROSOFT, **sizes),
        helper.make_node("Cast", ["integers"], ["exact weights"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["rows", "exact weights"], ["exact sums"]),
        *_difference("y", "exact sums", "blocks"),
    ]
    inputs = [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", INT4_INPUTS])]
    return _model(nodes, inputs, ["blocks"], constants)


def _extreme(shape: tuple[int, ...]) -> NDArray[np.int8]:
    """Weights of -127 and 127; the first unit has only 127: int8[units, ...]."""
    weights = (np.random.default_rng(0).choice([-1, 1, 1], shape) * INT8_LARGEST).astype(np.int8)
    weights[0] = INT8_LARGEST
    return weights


def _difference(given: str, exact: str, name: str) -> tuple[onnx.NodeProto, ...]:
    """The largest absolute difference of two tensors, float32[]."""
    return (
        helper.make_node("Sub", [given, exact], [f"{name}: difference"]),
        helper.make_node("Abs", [f"{name}: difference"], [f"{name}: absolute"]),
        helper.make_node("ReduceMax", [f"{name}: absolute"], [name], keepdims=0),
    )


def _model(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str], constants: Mapping[str, Any]
) -> bytes:
    targets = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in outputs]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "probe", inputs, targets, initializers)
    model = helper.make_model(graph, opset_imports=_OPSETS, ir_version=_IR_VERSION, producer_name="actorq")
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    for name, probe in ((SIGNED, int8_probe()), ("int4", int4_probe())):
        (PROBES / f"{name}.onnx").write_bytes(probe)
