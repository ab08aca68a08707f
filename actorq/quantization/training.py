"""Describes the rounding of a quantized layer, for a learner that trains with simulated rounding."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple


class Place(NamedTuple):
    """A layer's input or output, by the layer's name."""

    layer: str
    output: bool


@dataclass(frozen=True)
class Uint8:
    """Activations in uint8: real = scale (q - zero_point).

    grid: computes the scale, a float32 value, and the zero point from the lowest and highest value.
    place: the tensor whose range on the calibration batch is used; None for the layer's input at each call.
    """

    grid: Callable[[float, float], tuple[float, int]]
    place: Place | None = None


@dataclass(frozen=True)
class TrainingForm:
    """The computation of a quantized layer. Weights are int8, or have 4 bits in blocks.

    inputs: rounding of its inputs; None if they are float or rounded in blocks.
    outputs: rounding of its outputs; None if they are float.
    block: number of successive inputs that share a scale, for 4-bit weights and int8 inputs; 0 for int8 weights.
    largest_bias: bound of a bias that is an integer in units of input scale times weight scale. The bound limits these
        scales from below. 0 for a float bias.
    per_channel: whether int8 weights have one scale per output channel instead of one in total.
    bits: bits of int8 weights and of uint8 inputs. Below 8 they use only a part of the integers; see `with_bits`.
    """

    inputs: Uint8 | None = None
    outputs: Uint8 | None = None
    block: int = 0
    largest_bias: float = 0.0
    per_channel: bool = True
    bits: int = 8

    @property
    def places(self) -> tuple[Place, ...]:
        """The places whose ranges the layer uses."""
        return tuple(each.place for each in (self.inputs, self.outputs) if each is not None and each.place is not None)


def with_bits(form: TrainingForm, bits: int) -> TrainingForm:
    """The form with this number of bits for weights and inputs, and a scale for each output channel.

    Raises ValueError for a form with blocks or integer biases: its kernels fix the number of bits.
    """
    if form.block or form.largest_bias:
        raise ValueError(f"expected a form without blocks and integer biases, got {form}")
    return replace(form, bits=bits, per_channel=True)
