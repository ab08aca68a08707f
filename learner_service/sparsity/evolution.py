"""The masks of a layer: at random to begin with, then with the weakest weights in exchange for more promising ones."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from learner_service.sparsity.weights import Weight

Growth = Callable[[Tensor], Tensor]
"""Scores of 0 or more for the inactive weights of a layer, given its dense gradient; both float32[units, inputs]."""


def by_gradient(gradient: Tensor) -> Tensor:
    """RigL's and RLx2's: the magnitude of the dense gradient (arXiv 1911.11134, sec. 3)."""
    return gradient.abs()


class AtRandom:
    """SET's: all are alike (arXiv 1707.04780)."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return random numbers, drawn on the CPU so that every device gets the same."""
        return torch.rand(gradient.shape, generator=self._generator).to(gradient.device)


class Layers(Protocol):
    """Makes and changes the masks of all maskable layers of a network, in vectors over its parameters."""

    def initial(self, mask: Tensor, generator: torch.Generator) -> None:
        """Fill in the layers' part of `mask`, which is 1 everywhere."""
        ...

    def change(self, mask: Tensor, vector: Tensor, gradient: Tensor, share: float, growth: Growth) -> None:
        """Replace `share` of each layer's active weights in `mask`."""
        ...


class Unstructured:
    """Any weights of a layer, as many as its budget (algorithm 1 of arXiv 2205.15043)."""

    def __init__(self, weights: tuple[Weight, ...], budgets: tuple[int, ...]) -> None:
        self._layers = tuple(zip(weights, budgets, strict=True))

    def initial(self, mask: Tensor, generator: torch.Generator) -> None:
        """Activate weights at random."""
        for weight, budget in self._layers:
            layer = torch.zeros(weight.size)
            layer[torch.randperm(weight.size, generator=generator)[:budget]] = 1.0
            weight.of(mask).copy_(layer.view(weight.units, weight.inputs))

    def change(self, mask: Tensor, vector: Tensor, gradient: Tensor, share: float, growth: Growth) -> None:
        """Drop the smallest active weights and grow the best of all that are inactive then.

        As in the paper, one that was just dropped may grow again; it has then never been away.
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
