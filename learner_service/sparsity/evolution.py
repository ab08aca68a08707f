"""Creates the masks of layers at random, and evolves them: drops weak weights and grows promising weights."""

from collections.abc import Callable

import torch
from torch import Tensor

from learner_service.sparsity.weights import Weight

Growth = Callable[[Tensor], Tensor]
"""Returns scores of 0 or more for a layer's weights, from its dense gradient; both float32[units, inputs]."""


def by_gradient(gradient: Tensor) -> Tensor:
    """Growth of RigL and RLx2: the magnitude of the dense gradient (arXiv 1911.11134, sec. 3)."""
    return gradient.abs()


def at_random(generator: torch.Generator) -> Growth:
    """Growth of SET: random scores (arXiv 1707.04780), drawn on the CPU, so that every device gets the same scores."""
    return lambda gradient: torch.rand(gradient.shape, generator=generator).to(gradient.device)


class Unstructured:
    """Masks without structure, with as many weights as each layer's budget (algorithm 1 of arXiv 2205.15043).

    Masks are parts of vectors over the network's parameters.
    """

    def __init__(self, weights: tuple[Weight, ...], budgets: tuple[int, ...]) -> None:
        self._layers = tuple(zip(weights, budgets, strict=True))

    def initial(self, mask: Tensor, generator: torch.Generator) -> None:
        """Activate weights at random. mask: 1 everywhere."""
        for weight, budget in self._layers:
            layer = torch.zeros(weight.size)
            layer[torch.randperm(weight.size, generator=generator)[:budget]] = 1.0
            weight.of(mask).copy_(layer.view(weight.units, weight.inputs))

    def change(self, mask: Tensor, vector: Tensor, gradient: Tensor, share: float, growth: Growth) -> None:
        """Replace `share` of each layer's active weights: drop the smallest, then grow the inactive weights of highest
        score.

        As in the paper, a weight that was just dropped may grow again, with its value.
        """
        for weight, budget in self._layers:
            replaced = round(share * budget)
            if replaced == 0 or budget == weight.size:
                continue
            active = weight.of(mask).flatten()
            magnitudes = weight.of(vector).abs().flatten().masked_fill(active == 0, -1.0)
            kept = magnitudes.topk(budget - replaced).indices
            scores = growth(weight.of(gradient)).flatten()
            scores[kept] = -1.0
            grown = scores.topk(replaced).indices
            active.zero_()
            active[kept] = 1.0
            active[grown] = 1.0
