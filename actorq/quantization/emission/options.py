"""The options and the result of a plan."""

from dataclasses import dataclass

from actorq.domain.policy import LayerReport


@dataclass(frozen=True)
class Options:
    """Options of a plan besides its scheme.

    ends: also quantize the first and last layers.
    per_tensor_error: largest relative error of a layer's weights at which all channels share one scale. It is the
        Frobenius norm per channel, then the root mean square over channels. 0 gives each channel its own scale.
    keep_float: names of layers that must stay in float.
    int8_storage: store the weights of layers in float as int8, but compute in float32 (emission.storage). Not for the
        scheme fp32 or layers in `keep_float`. int8-weights then applies `per_tensor_error`.
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
