"""Distributes the weights of a sparse network over its layers: Erdos-Renyi, as in SET, RigL and RLx2."""

import math
from collections.abc import Sequence

from actorq.errors import UserError
from learner_service.sparsity.weights import Weight


def erdos_renyi(layers: Sequence[Weight], density: float) -> tuple[float, ...]:
    """Densities in (0, 1] of the layers, with `density` as the density of all their weights together.

    A layer of I inputs and O units has the density eps (I + O) / (I O) (arXiv 1707.04780). Larger layers are therefore
    sparser. A convolution has the density eps (I + O + kernel sizes) / (I O kernel) (arXiv 1911.11134, sec. 3). eps
    is solved for the total density. A layer with a result above 1 is dense, and eps is solved again for the others.
    """
    wanted = density * sum(layer.size for layer in layers)
    dense: set[int] = set()
    while len(dense) < len(layers):
        sparse = [index for index in range(len(layers)) if index not in dense]
        left = wanted - sum(layers[index].size for index in dense)
        scale = left / sum(_sides(layers[index]) for index in sparse)
        full = {index for index in sparse if scale * _sides(layers[index]) > layers[index].size}
        if not full:
            return tuple(
                1.0 if index in dense else scale * _sides(layer) / layer.size for index, layer in enumerate(layers)
            )
        dense |= full
    return (1.0,) * len(layers)


def budgets(layers: Sequence[Weight], sparsity: float, setting: str) -> tuple[int, ...]:
    """Active weights of each layer at this sparsity of the trained layers.

    Raises UserError with `setting` if a layer has none.
    """
    shares = iter(erdos_renyi([layer for layer in layers if layer.trained], 1.0 - sparsity))
    counts = tuple(round(next(shares) * layer.size) if layer.trained else layer.size for layer in layers)
    for layer, count in zip(layers, counts, strict=True):
        if count == 0:
            raise UserError(
                f"{setting}: expected a sparsity that leaves every layer some weights, got {sparsity:g}, which leaves "
                f"none of the {layer.units} x {layer.inputs} in {layer.name}; use a lower sparsity or wider layers"
            )
    return counts


def _sides(layer: Weight) -> int:
    return layer.units + layer.inputs // math.prod(layer.kernel) + sum(layer.kernel)
