"""Lets a layer's backward pass write the gradients of large parameters where the optimizer reads them.

autograd adds to a gradient that was zeroed before. For 2048 x 2048 weights, this moves 48 MB more than a direct write.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor


class WrittenGradient:
    """The memory of `parameter.grad`, for a layer that writes the gradient itself.

    Between `begin` and `finish`, the layer's first backward pass acquires the memory and fills it. All other gradients
    of the parameter go through autograd, and `finish` adds them.
    """

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self._place = parameter.grad
        self._free = False

    def __deepcopy__(self, memo: dict[int, object]) -> None:
        """Return None: a copied network leaves its gradients to autograd."""

    def begin(self) -> None:
        """Begin a new gradient. The content of the memory no longer counts."""
        self.parameter.grad = None
        self._free = True

    def acquire(self) -> Tensor | None:
        """The memory, which the caller must fill completely; None when the gradient must go through autograd."""
        free, self._free = self._free, False
        return self._place if free else None

    def finish(self) -> None:
        """Put the sum of all gradients into the memory, and make it `parameter.grad` again."""
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
        """Write gradients into the present `grad` of the parameters in later backward passes.

        Returns one object for each parameter.
        """
        ...


def write(gradient: Tensor, written: WrittenGradient | None) -> Tensor | None:
    """Write a gradient to its memory and return None. Without such memory, return it as float32 for autograd."""
    place = None if written is None else written.acquire()
    if place is None:
        return gradient.float()
    place.copy_(gradient)
    return None
