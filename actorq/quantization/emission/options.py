"""The options and the result of a plan."""

from dataclasses import dataclass

from actorq.domain.policy import LayerReport


@dataclass(frozen=True)
class Options:
    """Options of a plan besides its scheme.

    ends: also quantize the first and last layers.
    per_tensor_error: relative error of a layer's weights up to which all channels share one scale. It is the Frobenius
        norm for each channel, then the root mean square over channels. 0 gives each channel its own scale.
    keep_float: names of layers that must stay in float.
    int8_storage: store the weights of layers that stay in float as int8, but compute in float32 (emission.storage). The
        scheme fp32 does not, nor do layers in `keep_float`. In int8-weights, `per_tensor_error` counts.
    compensate: correct the rounding of weights with statistics of the calibration batch (emission.correction). If
        False, weights are rounded to nearest, and biases are unchanged.
    """

    ends: bool = False
    per_tensor_error: float = 0.01
    keep_float: frozenset[str] = frozenset()
    compensate: bool = True
    int8_storage: bool = False


@dataclass(frozen=True)
class Emission:
    """A version of a policy in one scheme: an ONNX model, and the formats of its layers in the order of the graph."""

    model: bytes
    layers: tuple[LayerReport, ...]
