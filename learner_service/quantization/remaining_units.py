"""The remaining and the dead units of a linear layer, for training with rounded weights.

The quantizer removes dead units before it rounds (docs/concepts/sparse-policies.md). Scales and ranges therefore cover
only the remaining units. Training computes the dead units in float.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from actorq.quantization.compaction import LiveUnits

Compute = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Units:
    """The remaining and dead units among a linear layer's inputs or outputs, as indices on its device.

    remaining: indices that the quantizer keeps. alive: float32[remaining], 0 for a dead unit among them, else 1.
    rest: indices of dead units.
    """

    remaining: Tensor
    alive: Tensor
    rest: Tensor


@dataclass(frozen=True)
class Remaining:
    """The remaining units of a linear layer; None if all remain."""

    inputs: Units | None = None
    outputs: Units | None = None

    def weight(self, weight: Tensor) -> Tensor:
        """The remaining part of a weight float32[units, inputs]."""
        if self.outputs is not None:
            weight = weight.index_select(0, self.outputs.remaining)
        if self.inputs is not None:
            weight = weight.index_select(1, self.inputs.remaining) * self.inputs.alive
        return weight

    def around(self, compute: Compute, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output of the whole layer, float32[..., units], with `compute` for its remaining units.

        x: float32[..., inputs]. Dead outputs are computed in float. Gradients cover the whole layer, because dead units
            may grow weights.
        """
        if self.outputs is None:
            return self._of_inputs(compute, x, weight, bias)
        remaining, rest = self.outputs.remaining, self.outputs.rest
        own, others = (None if bias is None else bias.index_select(0, each) for each in (remaining, rest))
        y = self._of_inputs(compute, x, weight.index_select(0, remaining), own)
        outputs = y.new_zeros((*y.shape[:-1], len(weight))).index_copy(-1, remaining, y)
        return outputs.index_copy(-1, rest, functional.linear(x, weight.index_select(0, rest), others))

    def _of_inputs(self, compute: Compute, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.inputs is None:
            return compute(x, weight, bias)
        remaining, rest = self.inputs.remaining, self.inputs.rest
        # Dead inputs are the same in every row, or have weights of 0.
        constant = functional.linear(x.index_select(-1, rest), weight.index_select(1, rest))
        folded = constant.detach().flatten(0, -2)[0]
        left = weight.index_select(1, remaining) * self.inputs.alive
        y = compute(x.index_select(-1, remaining), left, folded if bias is None else bias + folded)
        return y + (constant - constant.detach()) if torch.is_grad_enabled() else y


def remaining_units(live: LiveUnits | None, device: torch.device) -> dict[str, Remaining]:
    """The remaining units of each layer that loses units or inputs, by name."""
    found: defaultdict[str, Remaining] = defaultdict(Remaining)
    masks = zip(live.groups, live.remaining, live.alive, strict=True) if live else ()
    for group, remaining, alive in masks:
        if alive.all():
            continue
        units = Units(
            remaining=torch.from_numpy(np.flatnonzero(remaining)).to(device),
            alive=torch.from_numpy(alive[remaining].astype(np.float32)).to(device),
            rest=torch.from_numpy(np.flatnonzero(~alive)).to(device),
        )
        found[group.layer.name] = replace(found[group.layer.name], outputs=units)
        for reader in group.readers:
            found[reader.name] = replace(found[reader.name], inputs=units)
    return found
