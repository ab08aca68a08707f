"""Which units of a policy are left in what actors run: the quantizer takes out those that do not count.

It does so before it rounds (docs/schemes.md, sparse policies), so that scales and ranges are those of what is left. A
unit none of whose inputs counts is a constant, which is folded into the biases of its readers; one that nothing reads
is dropped; of each layer one unit stays.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from learner_service.sparsity.trace import Traced

Mask = NDArray[np.bool_]
Compute = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Survivors:
    """What is left of a linear layer's inputs or outputs, as indices on its device.

    kept: those that stay. counted: float32[kept], 0 for one that is kept for its layer's sake, else 1.
    rest: those that do not count.
    """

    kept: Tensor
    counted: Tensor
    rest: Tensor


@dataclass(frozen=True)
class Left:
    """What is left of a linear layer; None where that is all."""

    inputs: Survivors | None = None
    outputs: Survivors | None = None

    def weight(self, weight: Tensor) -> Tensor:
        """What is left of float32[units, inputs]."""
        if self.outputs is not None:
            weight = weight.index_select(0, self.outputs.kept)
        if self.inputs is not None:
            weight = weight.index_select(1, self.inputs.kept) * self.inputs.counted
        return weight

    def around(self, compute: Compute, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What a layer gives, float32[..., units], when `compute` gives what is left of it.

        x: float32[..., inputs]. Outputs that do not count are float, and gradients are those of the whole layer: what
        has no weights yet may grow some.
        """
        if self.outputs is None:
            return self._of_inputs(compute, x, weight, bias)
        kept, rest = self.outputs.kept, self.outputs.rest
        own, others = (None if bias is None else bias.index_select(0, each) for each in (kept, rest))
        y = self._of_inputs(compute, x, weight.index_select(0, kept), own)
        outputs = y.new_zeros((*y.shape[:-1], len(weight))).index_copy(-1, kept, y)
        return outputs.index_copy(-1, rest, functional.linear(x, weight.index_select(0, rest), others))

    def _of_inputs(self, compute: Compute, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.inputs is None:
            return compute(x, weight, bias)
        kept, rest = self.inputs.kept, self.inputs.rest
        # Inputs are constants, the same in every row, or have weights of 0.
        constant = functional.linear(x.index_select(-1, rest), weight.index_select(1, rest))
        folded = constant.detach().flatten(0, -2)[0]
        left = weight.index_select(1, kept) * self.inputs.counted
        y = compute(x.index_select(-1, kept), left, folded if bias is None else bias + folded)
        return y + (constant - constant.detach()) if torch.is_grad_enabled() else y


def surviving_units(policy: nn.Module, traced: Mapping[str, Traced]) -> dict[str, Left]:
    """What is left of the linear layers of a policy that lose units, by name; empty when all units count."""
    modules = {name: policy.get_submodule(name) for name in traced}
    weights = {name: module.weight for name, module in modules.items() if isinstance(module, nn.Linear)}
    used = {name: weight.detach().cpu().numpy() != 0 for name, weight in weights.items()}
    sources = {name: traced[name].source for name in used}
    readers = {
        source: [name for name in used if sources[name] == source] for source in used if source in sources.values()
    }
    counted = {name: np.ones(len(used[name]), np.bool_) for name in readers}
    while _settle(used, sources, readers, counted):
        pass
    lost = {name: _survivors(counted[name], weights[name].device) for name in readers if not counted[name].all()}
    left: dict[str, Left] = {}
    for name, survivors in lost.items():
        left[name] = replace(left.get(name, Left()), outputs=survivors)
        for reader in readers[name]:
            left[reader] = replace(left.get(reader, Left()), inputs=survivors)
    return left


def _settle(
    used: Mapping[str, Mask],
    sources: Mapping[str, str | None],
    readers: Mapping[str, list[str]],
    counted: dict[str, Mask],
) -> bool:
    """Find further units without inputs, then further ones that nothing reads; whether there were any."""
    before = sum(int(each.sum()) for each in counted.values())
    for name in readers:
        source = sources[name]
        counted[name] &= (used[name] if source is None else used[name][:, counted[source]]).any(axis=1)
    for name in reversed(list(readers)):
        wanted = np.zeros(len(counted[name]), np.bool_)
        for reader in readers[name]:
            wanted |= (used[reader][counted[reader]] if reader in counted else used[reader]).any(axis=0)
        counted[name] &= wanted
    return sum(int(each.sum()) for each in counted.values()) < before


def _survivors(counted: Mask, device: torch.device) -> Survivors:
    kept = counted.copy()
    kept[0] |= not kept.any()
    return Survivors(
        kept=torch.from_numpy(np.flatnonzero(kept)).to(device),
        counted=torch.from_numpy(counted[kept].astype(np.float32)).to(device),
        rest=torch.from_numpy(np.flatnonzero(~counted)).to(device),
    )
