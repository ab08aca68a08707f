"""How many weights each layer of a sparse network has: Erdos-Renyi, as in SET, RigL and RLx2."""

from collections.abc import Sequence

from actorq.errors import UserError
from learner_service.sparsity.weights import Weight


def erdos_renyi(layers: Sequence[Weight], density: float) -> tuple[float, ...]:
    """Densities in (0, 1] of layers, whose weights together are `density` of all.

    A layer of I inputs and O units has the density eps (I + O) / (I O) (arXiv 1707.04780), so that the larger ones are
    sparser; a convolution's is eps (I + O + kernel sizes) / (I O kernel) (arXiv 1911.11134, sec. 3). eps is what makes
    the whole right. Where that gives a layer more weights than it has, the layer is dense, and eps is solved for again
    for the others.
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
    """Active weights of each layer at a sparsity of all that are trained; `setting` is what the user calls it.

    Raises UserError when a layer would be left without weights.
    """
    shares = iter(erdos_renyi([layer for layer in layers if layer.trained], 1.0 - sparsity))
    counts = tuple(round(next(shares) * layer.size) if layer.trained else layer.size for layer in layers)
    for layer, count in zip(layers, counts, strict=True):
        if count == 0:
            raise UserError(
                f"{setting}: expected a sparsity that leaves every layer weights, got {sparsity:g}, which leaves none "
                f"of the {layer.units} x {layer.inputs} of {layer.name}; use a lower one or wider layers"
            )
    return counts


def _sides(layer: Weight) -> int:
    channels = layer.inputs
    for side in layer.kernel:
        channels //= side
    return layer.units + channels + sum(layer.kernel)
