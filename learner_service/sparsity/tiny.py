"""The baseline for sparse training: a narrow dense network with as few weights as the sparse one."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from actorq.errors import UserError
from learner_service.sparsity.weights import Weight, maskable_weights

# Steps of the bisection. Hidden layers have far fewer than 2 ** 24 units.
_STEPS = 24


def tiny_sizes(
    sizes: Sequence[int], density: float, make: Callable[[Sequence[int]], nn.Module], setting: str
) -> tuple[int, ...]:
    """Units of hidden layers, all shrunk by the same factor, for a network with at most `density` of its weights.

    make: makes the network with given hidden layers; called on torch's meta device. setting: name of the sparsity in
    errors. Raises UserError when even one unit in each hidden layer is too much, or when the sizes have no effect.
    """

    def weights(units: Sequence[int]) -> int:
        return sum(weight.size for weight in weights_of(make, units))

    def shrunk(share: float) -> tuple[int, ...]:
        return tuple(max(1, round(share * units)) for units in sizes)

    allowed = density * weights(sizes)
    if weights(shrunk(0.0)) > allowed:
        raise UserError(
            f"{setting}: method tiny cannot make a network of {allowed:.0f} weights from hidden layers of "
            f"{', '.join(map(str, sizes))} units; use a lower sparsity or another sparsity.method"
        )
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if weights(shrunk(middle)) <= allowed else (low, middle)
    return shrunk(low)


def weights_of(make: Callable[[Sequence[int]], nn.Module], sizes: Sequence[int]) -> tuple[Weight, ...]:
    """The weights of a network with these hidden layers. Only their shapes are made."""
    with torch.device("meta"), torch.random.fork_rng(devices=()):
        return maskable_weights(make(sizes))
