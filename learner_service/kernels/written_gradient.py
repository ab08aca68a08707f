"""Gradients of large parameters, which a layer's backward pass writes where the optimizer reads them.

autograd adds what it gets to a gradient that was zeroed before. For 2048 x 2048 weights that reads and writes 48 MB
more than writing the gradient once.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor


class WrittenGradient:
    """Where the gradient of a parameter belongs, `parameter.grad`, for a layer that writes it itself.

    Between `begin` and `finish` the first backward pass of the layer takes the place and fills it. All other gradients
    of the parameter go through autograd, and `finish` adds them.

    parameter: whose gradient it is.
    """

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self._place = parameter.grad
        self._free = False

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """A copied network leaves its gradients to autograd."""

    def begin(self) -> None:
        """Gradients are about to be computed. What the place holds does not count anymore."""
        self.parameter.grad = None
        self._free = True

    def take(self) -> Tensor | None:
        """The place, of which the caller must write every number; None where it returns its gradient instead."""
        free, self._free = self._free, False
        return self._place if free else None

    def finish(self) -> None:
        """All gradients are computed: `parameter.grad` is the place again, with the sum of them."""
        place, other = self._place, self.parameter.grad
        assert place is not None
        if self._free and other is None:
            place.zero_()
        elif self._free and other is not None:
            place.copy_(other)
        elif other is not None:
            place.add_(other)
        self._free, self.parameter.grad = False, place


@runtime_checkable
class WritesGradients(Protocol):
    """A layer that writes gradients of its parameters itself."""

    def write_gradients(self) -> list[WrittenGradient]:
        """From now on write them into the present `grad` of the parameters; returns one object for each."""
        ...


def write(gradient: Tensor, written: WrittenGradient | None) -> Tensor | None:
    """Write a gradient to its place; returns it as float32, for autograd, where there is none."""
    place = None if written is None else written.take()
    if place is None:
        return gradient.float()
    place.copy_(gradient)
    return None
