"""int4: 4-bit weights in blocks that share a scale, computed in int8. For wide layers with a batch of one.

A quantized layer is one MatMulNBits of com.microsoft with accuracy_level 4. ONNX Runtime quantizes each row of the
input in blocks of the same size to symmetric int8, multiplies integers and sums the blocks in float32. The weights
come from emission.weights.quantize_int4. A block has 128 weights, or fewer if a layer has fewer inputs. With one row, a
call takes as long as one read of the weights from memory. With more rows int8 is faster. Rows do not affect each other.

Blocks with one scale each are the round-to-nearest baseline of GPTQ (Frantar et al. 2022, arXiv 2210.17323, section 4).
"""

import math

import onnx
from onnx import helper

from actorq.quantization.emission.layer_choice import unfit_for_linear
from actorq.quantization.emission.linear import LinearPlan, LinearScheme
from actorq.quantization.emission.options import Options
from actorq.quantization.emission.weights import quantize_int4
from actorq.quantization.graph import Graph
from actorq.quantization.layers import Layer
from actorq.quantization.schemes.base import BuiltIn
from actorq.quantization.training import TrainingForm

_BLOCKS = (128, 64, 32, 16)
_INT8_COMPUTE = 4


def _plan(graph: Graph, options: Options) -> LinearPlan:
    """Quantizes linear layers of at least 16 inputs that lie between other layers."""

    def node(layer: Layer, integers: str, scale: str, bias: str) -> onnx.NodeProto:
        # The empty names are the zero points, 8 by default, and an order of the inputs.
        return helper.make_node(
            "MatMulNBits",
            [layer.input, integers, scale, "", "", bias],
            [layer.output],
            K=layer.inputs,
            N=graph.parameters[layer.weight][layer.channels],
            bits=4,
            block_size=_block(layer),
            accuracy_level=_INT8_COMPUTE,
        )

    scheme = LinearScheme(
        unfit=_unfit,
        node=node,
        rounded=lambda layer, weight, feedback: quantize_int4(weight, _block(layer), feedback),
        training=lambda layer: TrainingForm(block=_block(layer)),
        widest=math.inf,
    )
    return LinearPlan(graph, options, scheme)


def _block(layer: Layer) -> int:
    """The largest block that the inputs of a layer can fill."""
    return next(block for block in _BLOCKS if block <= layer.inputs)


def _unfit(layer: Layer) -> str:
    narrow = f"fewer than {_BLOCKS[-1]} inputs" if layer.inputs < _BLOCKS[-1] else ""
    return unfit_for_linear(layer) or narrow


INT4 = BuiltIn("int4", _plan)
