"""Rewrites an emitted policy to operators of the ONNX standard, for runtimes other than ONNX Runtime.

The result for each scheme:

    fp32, int8-weights   nothing changes
    int8                 DynamicQuantizeLinear and MatMulInteger: the same integers, so the same results; an LSTM
                         computes in float32 with the same weights
    int8-static          QuantizeLinear and DequantizeLinear around Gemm and Conv (QDQ form)
    int4                 DequantizeLinear of int4 weights in blocks; activations stay in float32

A runtime that fuses the QDQ form computes with integers. Other runtimes compute with the same values in float32.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from actorq.errors import InvalidInputError
from actorq.quantization.nodes import MICROSOFT, STANDARD, live_nodes, set_repeated

_log = logging.getLogger(__name__)

# The oldest operator set with all operators of the built-in policies. int4 tensors need a newer set.
OPSET, INT4_OPSET = 19, 21


def standard_form(model: bytes, opset: int = 0) -> bytes:
    """The model with only operators of the ONNX standard.

    opset: version of the operator set; by default 19, or 21 for int4, or the model's if that is newer.

    Raises InvalidInputError for an operator without a standard form, and for a model that needs another opset.
    """
    parsed = onnx.ModelProto.FromString(model)
    form = _Form(parsed.graph)
    for node in parsed.graph.node:
        form.add(node)
    nodes, read = live_nodes(form.nodes, [value.name for value in parsed.graph.output])
    set_repeated(parsed.graph, "node", nodes)
    set_repeated(parsed.graph, "initializer", [form.initializers[name] for name in form.initializers if name in read])
    set_repeated(parsed, "opset_import", [entry for entry in parsed.opset_import if entry.domain != MICROSOFT])
    usual = max(_own_opset(parsed), INT4_OPSET if form.has_int4 else OPSET)
    converted = _in_opset(parsed, opset or usual, usual)
    return bytes(converted.SerializeToString(deterministic=True))


def opset_of(model: bytes) -> int:
    """The version of a model's operator set of the ONNX standard."""
    return _own_opset(onnx.ModelProto.FromString(model))


def _own_opset(model: onnx.ModelProto) -> int:
    return max(entry.version for entry in model.opset_import if entry.domain in STANDARD)


class _Form:
    """The nodes and initializers of the new graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.has_int4 = False
        self._rewrite: Mapping[str, Callable[[onnx.NodeProto], None]] = {
            "DynamicQuantizeMatMul": self._dynamic,
            "QGemm": lambda node: self._between(node, "Gemm", 6, slice(7, 9)),
            "QLinearConv": lambda node: self._between(node, "Conv", 8, slice(6, 8)),
            "MatMulNBits": self._blocks,
            "DynamicQuantizeLSTM": self._lstm,
        }

    def add(self, node: onnx.NodeProto) -> None:
        """Add nodes that compute the outputs of a node."""
        if node.op_type in self._rewrite:
            self._rewrite[node.op_type](node)
        elif node.domain in STANDARD:
            self.nodes.append(node)
        else:
            raise InvalidInputError(f"operator {node.op_type} of {node.domain} has no standard form")

    def _dynamic(self, node: onnx.NodeProto) -> None:
        values, weight, weight_scale, weight_zero_point, bias = _padded(node.input, 5)
        at = node.output[0]
        integers, scale, zero_point = (f"{at}:{part}" for part in ("uint8", "scale", "zero_point"))
        self._make("DynamicQuantizeLinear", [values], [integers, scale, zero_point])
        zero_points = [zero_point, weight_zero_point] if weight_zero_point else [zero_point]
        self._make("MatMulInteger", [integers, weight, *zero_points], [f"{at}:int32"])
        self._make("Cast", [f"{at}:int32"], [f"{at}:sum"], to=TensorProto.FLOAT)
        # The operations have the same order as in ONNX Runtime.
        self._make("Mul", [scale, weight_scale], [f"{at}:unit"])
        self._make_with_bias("Mul", [f"{at}:sum", f"{at}:unit"], bias, at)

    def _between(self, node: onnx.NodeProto, operator: str, bias_input: int, target_inputs: slice) -> None:
        """A float operator between DequantizeLinear of its inputs and QuantizeLinear of its output.

        bias_input, target_inputs: the node's inputs that are its bias, and the scale and zero point of its output.
        """
        at, names = node.output[0], _padded(node.input, 9)
        # Integers, scale and zero point each.
        values, weight = names[:3], names[3:6]
        # The target is empty for a float output.
        bias, target = names[bias_input], names[target_inputs]
        inputs = [f"{at}:input", f"{at}:weight"]
        self._make("DequantizeLinear", values, inputs[:1])
        self._make("DequantizeLinear", weight, inputs[1:], axis=0)
        if bias:
            scale = self._array(values[1]) * self._array(weight[1])
            self._set(f"{at}:bias_scale", np.asarray(scale, np.float32))
            self._make("DequantizeLinear", [bias, f"{at}:bias_scale"], [f"{at}:bias"], axis=0)
            inputs.append(f"{at}:bias")
        output = f"{at}:float" if target[0] else at
        self._make(operator, inputs, [output])
        self.nodes[-1].attribute.extend(node.attribute)
        if target[0]:
            self._make("QuantizeLinear", [output, *target], [at])

    def _lstm(self, node: onnx.NodeProto) -> None:
        inputs = list(node.input[:8])
        for place, at in ((1, 8), (2, 10)):
            name, scale = inputs[place], self._array(node.input[at])
            zero_point = self._array(node.input[at + 1]).reshape(-1)[0]
            # Weights are [directions, K, 4 H]; scales [directions] or [directions, 4 H].
            self._set(f"{name}:scales", scale.reshape(len(scale), 1, -1))
            self._set(f"{name}:zero", np.array(zero_point, np.float32))
            inputs[place] = f"{name}:weight"
            self._make("Cast", [name], [f"{name}:float"], to=TensorProto.FLOAT)
            self._make("Sub", [f"{name}:float", f"{name}:zero"], [f"{name}:centered"])
            self._make("Mul", [f"{name}:centered", f"{name}:scales"], [f"{name}:scaled"])
            self._make("Transpose", [f"{name}:scaled"], [inputs[place]], perm=[0, 2, 1])
        self.nodes.append(helper.make_node("LSTM", inputs, list(node.output), name=node.name))
        self.nodes[-1].attribute.extend(node.attribute)

    def _blocks(self, node: onnx.NodeProto) -> None:
        values, packed, scale, _, _, bias = _padded(node.input, 6)
        at, size = node.output[0], {attribute.name: attribute.i for attribute in node.attribute}
        units, inputs, block = size["N"], size["K"], size["block_size"]
        pairs = self._array(packed).reshape(units, -1)
        # Low half first. [0, 15] stands for [-8, 7].
        integers = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(units, -1)[:, :inputs].astype(np.int8) - 8
        element = helper.tensor_dtype_to_np_dtype(TensorProto.INT4)
        self._set(f"{packed}:int4", np.ascontiguousarray(integers.T).astype(element))
        self._set(f"{scale}:blocks", np.ascontiguousarray(self._array(scale).reshape(units, -1).T))
        self.has_int4 = True
        weight = f"{at}:weight"
        self._make("DequantizeLinear", [f"{packed}:int4", f"{scale}:blocks"], [weight], axis=0, block_size=block)
        self._make_with_bias("MatMul", [values, weight], bias, at)

    def _make(self, operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=outputs[0], **attributes))

    def _make_with_bias(self, operator: str, inputs: list[str], bias: str, output: str) -> None:
        product = f"{output}:product" if bias else output
        self._make(operator, inputs, [product])
        if bias:
            self._make("Add", [product, bias], [output])

    def _array(self, name: str) -> NDArray[Any]:
        return numpy_helper.to_array(self.initializers[name])

    def _set(self, name: str, value: NDArray[Any]) -> None:
        self.initializers[name] = numpy_helper.from_array(value, name)


def _padded(names: Iterable[str], count: int) -> list[str]:
    """The names of inputs, with empty names for missing optional inputs."""
    given = list(names)
    return given + [""] * (count - len(given))


def _in_opset(model: onnx.ModelProto, opset: int, usual: int) -> onnx.ModelProto:
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise InvalidInputError(f"expected an opset of at most {newest}, the newest that onnx here knows, got {opset}")
    converted = _converted(model, opset)
    if converted is None:
        oldest = next((each for each in range(opset + 1, usual) if _converted(model, each) is not None), usual)
        remedy = f"choose one from {oldest} to {newest}"
        raise InvalidInputError(f"the policy cannot be in opset {opset}, which lacks its operators; {remedy}")
    return converted


def _converted(model: onnx.ModelProto, opset: int) -> onnx.ModelProto | None:
    """The model in another opset; None if the opset lacks operators of the model."""
    try:
        converted = onnx.version_converter.convert_version(model, opset)
        converted.ir_version = helper.find_min_ir_version_for(converted.opset_import)
        onnx.checker.check_model(converted, full_check=True)
    except Exception as error:  # The converter raises errors of several kinds, with texts for its developers.
        _log.debug("conversion to opset %d: %s", opset, error)
        return None
    return converted
