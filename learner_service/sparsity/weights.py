"""Finds the weights of a network that may be sparse, and their positions in the vector of its parameters."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from torch import Tensor, nn

from learner_service.kernels.linear import Linear
from learner_service.kernels.sparse_products import ActiveWeights
from learner_service.networks.twin import TwinCritic

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Weight:
    """The weight matrix of one layer: [units, inputs] for a linear layer, [units, inputs * kernel] for a convolution.

    start: its first index in the vector of FlatParameters.
    kernel: sizes of a convolution's kernel, empty for linear layers; `inputs` includes them.
    trained: False for a user's frozen layer, which stays dense.
    """

    name: str
    start: int
    units: int
    inputs: int
    kernel: tuple[int, ...] = ()
    trained: bool = True

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.units * self.inputs

    def of(self, vector: Tensor) -> Tensor:
        """The view [units, inputs] of this layer in a vector of parameters, moments, gradients or a mask."""
        return vector[self.start : self.start + self.size].view(self.units, self.inputs)


def maskable_weights(*modules: nn.Module) -> tuple[Weight, ...]:
    """Weights of all linear layers and convolutions, in the order of the modules. All other parameters stay dense.

    Each stacked weight of a TwinCritic, [2, units, inputs], counts as two layers.
    """
    weights: list[Weight] = []
    for name, part in _parts(modules):
        if isinstance(part, TwinCritic):
            for layer, critic in product(range(len(part.stacked) // 2), range(2)):
                weight = part.stacked[2 * layer][critic]
                place = f"{name}.{layer}.{critic}".lstrip("."), int(weight.storage_offset())
                weights.append(Weight(*place, *weight.shape))
        else:
            weight = part.weight
            shape = len(weight), weight[0].numel(), tuple(weight.shape[2:])
            weights.append(Weight(name or "linear", int(weight.storage_offset()), *shape, weight.requires_grad))
    return tuple(weights)


def multiply_by(active: Sequence[ActiveWeights | None], *modules: nn.Module) -> None:
    """Make the modules' layers use sparse products.

    active: for each of `maskable_weights`; None for dense products, which a user's own kinds of layers keep.
    """
    start = 0
    for _, part in _parts(modules):
        own = active[start : start + (len(part.stacked) if isinstance(part, TwinCritic) else 1)]
        start += len(own)
        if isinstance(part, TwinCritic):
            part.active = (own[::2], own[1::2]) if any(own) else ()
        elif isinstance(part, Linear):
            part.active = own[0]


def _parts(modules: Sequence[nn.Module]) -> Iterator[tuple[str, Any]]:
    for module in modules:
        for name, part in module.named_modules():
            if isinstance(part, (TwinCritic, *_LAYERS)):
                yield name, part
