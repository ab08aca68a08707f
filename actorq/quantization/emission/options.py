"""What is asked of a plan besides its scheme, and what it emits."""

from dataclasses import dataclass

from actorq.domain.policy import LayerReport


@dataclass(frozen=True)
class Options:
    """What is asked of a plan besides its scheme.

    ends: quantize the first and last layers too.
    per_tensor_error: relative error of a layer's weights, as a Frobenius norm for each channel, root mean square over
        them, up to which one scale for all of its channels is good enough; 0 gives each channel its own.
    keep_float: names of layers that must stay in float.
    compensate: make up for the rounding of weights by what the calibration batch tells of each layer's inputs
        (emission.correction). Without it weights are rounded to nearest and biases are as they were published.
    """

    ends: bool = False
    per_tensor_error: float = 0.01
    keep_float: frozenset[str] = frozenset()
    compensate: bool = True


@dataclass(frozen=True)
class Emission:
    """A version of a policy in one scheme: an ONNX model with its parameters inside, and how it holds each layer.

    layers: in the order of the graph; also those that the scheme cannot quantize, with the reason.
    """

    model: bytes
    layers: tuple[LayerReport, ...]
