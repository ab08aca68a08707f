"""How a quantized layer rounds, told to a learner that trains with the rounding. Each scheme's plan tells it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """A layer's output, or its input, by the layer's name."""

    layer: str
    output: bool


@dataclass(frozen=True)
class Uint8:
    """Activations in uint8: real = scale (q - zero_point).

    grid: scale, a float32 value, and zero point for values from low to high.
    place: whose range on the calibration batch gives them; None for the layer's own input at each call.
    """

    grid: Callable[[float, float], tuple[float, int]]
    place: Place | None = None


@dataclass(frozen=True)
class TrainingForm:
    """What a quantized layer computes. Weights are int8, or have 4 bits in blocks.

    inputs: how its inputs are rounded; None where they are float, or rounded in blocks.
    outputs: how its outputs are rounded; None where they are float.
    block: inputs of a row that share a scale, of 4-bit weights and of int8 inputs; 0 for int8 weights.
    largest_bias: of a bias that is an integer in units of the input's and the weight's scales, and bounds these below;
        0 for a bias in float.
    per_channel: int8 weights have a scale for each output channel, not one for all.
    """

    inputs: Uint8 | None = None
    outputs: Uint8 | None = None
    block: int = 0
    largest_bias: float = 0.0
    per_channel: bool = True

    @property
    def places(self) -> tuple[Place, ...]:
        """Those whose ranges it takes."""
        return tuple(each.place for each in (self.inputs, self.outputs) if each is not None and each.place is not None)
