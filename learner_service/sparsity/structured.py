"""Sparse layers that become narrow: constant fan-in and neuron ablation (SRigL, arXiv 2305.02299, sec. 3).

All units of a layer have the same number of inputs. Units with few salient weights are ablated permanently. Their
inputs go to the other units, and no unit reads them any more, so the quantizer can remove them.

Policies have few and small layers. Three rules therefore differ from the paper:
- A unit is ablated when it has fewer salient weights than the average unit, not than a fixed share of its inputs.
- The share of units ablated at a change is at most half of the share of replaced weights.
- Ablation ends at the width with half of the remaining weights active, or at an eighth of the units.

After each ablation, Erdos-Renyi distributes the network's number of weights again over the living units. Each layer
drops the remainder of the division by its units: about 1% of the weights at 256 units.
"""

from dataclasses import replace

import torch
from torch import Tensor

from actorq.errors import UserError
from learner_service.sparsity.densities import erdos_renyi
from learner_service.sparsity.evolution import Growth
from learner_service.sparsity.weights import Weight

# Density between living units at which ablation ends.
_FILLED = 0.5
# Largest share of units that is ablated at once, relative to the share of replaced weights.
_HASTE = 0.5
# Smallest share of units that a layer keeps.
_LEAST = 0.125
# Steps of the bisection for the narrowest layers.
_STEPS = 24


class Structured:
    """Masks of constant fan-in for all layers of a network.

    budgets: initial number of active weights of each layer. The remainder of the division by its units is dropped.
    sources: for each layer the index of the layer whose units are its inputs; None when it is none of these.
    """

    def __init__(self, weights: tuple[Weight, ...], budgets: tuple[int, ...], sources: tuple[int | None, ...]) -> None:
        self._weights = weights
        self._budgets = budgets
        self._sources = sources
        self._hidden = frozenset(source for source in sources if source is not None)
        self._order = sorted(range(len(weights)), key=self._depth)
        self._narrowest = self._narrow()

    def check(self, setting: str) -> None:
        """Raise UserError when outputs of the network would have no inputs. setting: name of the sparsity in errors."""
        for index, (weight, budget) in enumerate(zip(self._weights, self._budgets, strict=True)):
            is_head = index not in self._hidden and self._sources[index] is not None
            if is_head and budget < weight.units:
                raise UserError(
                    f"{setting}: expected a sparsity that leaves each of the {weight.units} units of {weight.name} an "
                    f"input, got {budget} weights for them; use a lower sparsity, or leave out sparsity.structured"
                )

    def initial(self, mask: Tensor, generator: torch.Generator) -> None:
        """Give every unit random inputs. With fewer weights than units, random units get one input each."""
        living: dict[int, Tensor] = {}
        for index in self._order:
            weight, budget = self._weights[index], self._budgets[index]
            living[index] = torch.zeros(weight.units, dtype=torch.bool)
            living[index][torch.randperm(weight.units, generator=generator)[:budget]] = True
            scores = torch.rand((weight.units, weight.inputs), generator=generator)
            weight.of(mask).copy_(_best_inputs(scores, living[index], self._inputs(index, living, mask), budget))

    def change(self, mask: Tensor, vector: Tensor, gradient: Tensor, share: float, growth: Growth) -> None:
        """Drop the smallest weights, ablate units, and grow the best inputs of the others."""
        scores: dict[int, Tensor] = {}
        salience: dict[int, Tensor] = {}
        living: dict[int, Tensor] = {}
        for index in self._order:
            weight = self._weights[index]
            magnitudes, promise = weight.of(vector).abs(), growth(weight.of(gradient))
            inputs, active = self._inputs(index, living, mask), weight.of(mask) > 0
            alive, connected = active.any(1), active & inputs
            count = int(connected.count_nonzero())
            kept = _largest(magnitudes, connected, count - round(share * count))
            grown = _largest(promise, alive.unsqueeze(1) & inputs & ~kept, round(share * count))
            scores[index] = torch.where(kept, 2.0 + _to_one(magnitudes), _to_one(promise))
            # Magnitudes break ties between units with equally many salient weights.
            salience[index] = (kept | grown).sum(1) + _to_one((magnitudes * kept).sum(1)) / 2
            living[index] = self._without_weak(index, alive, salience[index], share)
        for index, budget in self._spread(living, salience).items():
            best = _best_inputs(scores[index], living[index], self._inputs(index, living, mask), budget)
            self._weights[index].of(mask).copy_(best)

    def _without_weak(self, index: int, alive: Tensor, salience: Tensor, share: float) -> Tensor:
        """The units that stay alive, bool[units]."""
        count = int(alive.count_nonzero())
        most = min(int(_HASTE * share * count), count - self._narrowest[index])
        if index not in self._hidden or most <= 0:
            return alive
        weak = alive & (salience < salience[alive].mean())
        gone = _largest(-salience, weak, min(most, int(weak.count_nonzero())))
        return alive & ~gone

    def _spread(self, living: dict[int, Tensor], salience: dict[int, Tensor]) -> dict[int, int]:
        """The weights of each layer. Removes the least salient units from `living` if units would get no weights."""
        while True:
            layers: dict[int, Weight] = {}
            for index in self._order:
                inputs = self._inputs(index, living, salience[index])
                units = int(living[index].count_nonzero())
                layers[index] = replace(self._weights[index], units=units, inputs=int(inputs.count_nonzero()))
            density = min(1.0, sum(self._budgets) / sum(layer.size for layer in layers.values()))
            shares = zip(layers, erdos_renyi([*layers.values()], density), strict=True)
            budgets = {index: int(share * layers[index].size + 1e-6) for index, share in shares}
            crowded = [index for index in layers if index in self._hidden and 0 < budgets[index] < layers[index].units]
            if not crowded:
                return budgets
            for index in crowded:
                living[index] = _largest(salience[index], living[index], budgets[index])

    def _inputs(self, index: int, living: dict[int, Tensor], like: Tensor) -> Tensor:
        """The inputs of a layer that come from living units, bool[inputs] on the device of `like`."""
        source = self._sources[index]
        if source is not None:
            return living[source]
        return torch.ones(self._weights[index].inputs, dtype=torch.bool, device=like.device)

    def _depth(self, index: int) -> int:
        source = self._sources[index]
        return 0 if source is None else 1 + self._depth(source)

    def _narrow(self) -> dict[int, int]:
        """The smallest number of units of each layer. All hidden layers shrink by the same factor."""

        def units(share: float) -> dict[int, int]:
            return {
                index: max(1, round(share * weight.units)) if index in self._hidden else weight.units
                for index, weight in enumerate(self._weights)
            }

        def size(share: float) -> int:
            widths = units(share)
            return sum(
                widths[index] * (weight.inputs if source is None else widths[source])
                for index, (weight, source) in enumerate(zip(self._weights, self._sources, strict=True))
            )

        low, high = _LEAST, 1.0
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if _FILLED * size(middle) >= sum(self._budgets) else (middle, high)
        return units(high)


def _largest(values: Tensor, allowed: Tensor, count: int) -> Tensor:
    """The positions of the largest `count` allowed values, or of all of them if fewer; bool of the same shape."""
    order = values.masked_fill(~allowed, -torch.inf).flatten().topk(min(count, int(allowed.count_nonzero()))).indices
    chosen = torch.zeros_like(allowed).flatten()
    chosen[order] = True
    return chosen.view(allowed.shape)


def _to_one(values: Tensor) -> Tensor:
    """Scale values of 0 or more to at most 1."""
    return values / values.max().clamp(min=torch.finfo(values.dtype).tiny)


def _best_inputs(scores: Tensor, living: Tensor, inputs: Tensor, budget: int) -> Tensor:
    """A mask float32[units, inputs]. Each living unit gets equally many inputs, those of highest score."""
    fan_in = min(int(inputs.count_nonzero()), max(1, budget // max(1, int(living.count_nonzero()))))
    best = scores.masked_fill(~inputs, -1.0).topk(fan_in, dim=1).indices
    mask = torch.zeros_like(scores).scatter_(1, best, 1.0)
    return mask * living.unsqueeze(1)
