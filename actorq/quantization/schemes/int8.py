"""int8: int8 weights, and uint8 activations with a range computed at each call. First and last layers stay in float.

A quantized layer is one DynamicQuantizeMatMul of com.microsoft. ONNX Runtime computes the following, bit for bit (a
test compares). x float32[B, K] is the layer's input. W int8[K, N] and s_W float32[] or [N] come from quantize_int8
in emission.weights. Everything is float32 except the sum.

    low = min(0, min x), high = max(0, max x)                 over the whole tensor: every row of the batch
    s_x = (high - low) / 255, or 1 where high = low
    z_x = rint(clip(0 - low / s_x, 0, 255))
    q_x = clip(rint(x / s_x) + z_x, 0, 255)
    y   = float32(sum_k (q_x - z_x) W) * (s_x * s_W) + bias    the sum in int32, exact

rint rounds half to even. `Options.compensate` corrects W and bias (emission.correction).

The quantization of x is ONNX's operator DynamicQuantizeLinear: the affine quantization of Jacob et al. 2018 (arXiv
1712.05877), eq. 1 and 3 and section 3.

First layers stay in float because raw observations have the widest ranges. One range for all of them would cause most
of the error. The rows of a batch share an activation range, so float also reduces their effect on each other. Last
layers stay in float because no later layer reduces their error. `Options.ends` quantizes both. Convolutions stay in
float because ConvInteger, their dynamic form, is twice as slow. emission.recurrent describes LSTMs and GRUs.
"""

import ctypes
import math

import onnx
from onnx import helper

from actorq.quantization.emission.layer_choice import unfit_for_linear
from actorq.quantization.emission.linear import LinearPlan, LinearScheme
from actorq.quantization.emission.options import Options
from actorq.quantization.emission.recurrent import unfit_for_recurrence
from actorq.quantization.emission.weights import SMALLEST_SCALE, UINT8_LARGEST, quantize_int8
from actorq.quantization.graph import Graph
from actorq.quantization.layers import RECURRENT, Layer
from actorq.quantization.schemes.base import BuiltIn
from actorq.quantization.training import TrainingForm, Uint8


def dynamic_grid(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point of an input with values from low to high; see the module."""
    # Python floats, rounded to float32 after each operation, give the same result ten times faster than numpy.
    first, last = _float32(min(low, 0.0)), _float32(max(high, 0.0))
    scale = _float32(_float32(last - first) / UINT8_LARGEST)
    if not SMALLEST_SCALE <= scale < math.inf:
        return 1.0, 0
    # round() also rounds half to even. The result may be too high by one if the scale was rounded down.
    return scale, min(round(_float32(-first / scale)), int(UINT8_LARGEST))


def _float32(value: float) -> float:
    return ctypes.c_float(value).value


def _plan(graph: Graph, options: Options) -> LinearPlan:
    """Quantizes LSTMs, GRUs, and linear layers between other layers, or all linear layers with `Options.ends`."""
    unfit_recurrent = unfit_for_recurrence(graph, options)
    scheme = LinearScheme(
        unfit=lambda layer: unfit_recurrent(layer) if layer.kind == RECURRENT else unfit_for_linear(layer),
        node=_node,
        rounded=lambda layer, weight, feedback: quantize_int8(weight, options.per_tensor_error, feedback=feedback),
        training=lambda layer: TrainingForm(inputs=Uint8(dynamic_grid)),
    )
    return LinearPlan(graph, options, scheme)


def _node(layer: Layer, integers: str, scale: str, bias: str) -> onnx.NodeProto:
    # The empty name is the weights' zero point, 0 by default.
    return helper.make_node("DynamicQuantizeMatMul", [layer.input, integers, scale, "", bias], [layer.output])


INT8 = BuiltIn("int8", _plan)
