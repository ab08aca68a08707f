"""The topology of a sparse network: only active weights are trained, and all others are exactly 0."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learner_service.kernels.sparse_products import ActiveWeights
from learner_service.sparsity.evolution import Growth, Unstructured
from learner_service.sparsity.structured import Structured
from learner_service.sparsity.weights import Weight


@dataclass(frozen=True)
class CosineSchedule:
    """zeta_t = zeta_0 / 2 (1 + cos(pi t / T_end)) every `period` updates of the run before T_end (arXiv 1911.11134).

    replaced: zeta_0. end: T_end, in gradient updates.
    """

    period: int
    replaced: float
    end: float

    def share(self, before: int, after: int) -> float:
        """Share of a layer's weights to replace at a step from `before` updates to `after`; 0 for no change."""
        if after // self.period == before // self.period or after >= self.end:
            return 0.0
        return self.replaced / 2 * (1 + math.cos(math.pi * after / self.end))


@dataclass(eq=False)
class Topology:
    """The mask of a network, as one vector like that of its parameters, and its changes.

    The network's Minimizer owns it. Inactive weights get no gradient, so their moments in Adam and their values stay 0.
    This costs one multiplication per step. When a change is due, the step's dense gradient decides which weights grow.
    The optimizer then makes no step (arXiv 1911.11134, algorithm 1). Dropped weights become 0 in the network, in its
    targets and in the moments. Grown weights start at 0. Adam's bias correction is over by then, so their first steps
    are 3 to 6 learning rates, until their mean square has settled (docs/decisions/0011-grown-weights.md).

    vector: the network's parameters, float32[parameters]; targets: those of its target networks.
    products: the sparse products of each weight and its targets; None for dense products.
    growth: None for masks that never change. updates_per_step: updates of the run for each step of this network.
    signature: must be equal in a saved topology.
    mask: float32[parameters], 1 for active weights and for parameters that are never masked, else 0. Random at first.
    active: number of active weights of each maskable layer.
    """

    weights: Sequence[Weight]
    layers: Unstructured | Structured
    vector: Tensor
    targets: Sequence[Tensor]
    products: Sequence[ActiveWeights | None]
    growth: Growth | None
    schedule: CosineSchedule
    generator: torch.Generator
    updates_per_step: int
    signature: tuple[int, ...]

    def __post_init__(self) -> None:
        self._updates = 0
        self._share = 0.0
        mask = torch.ones(self.vector.shape)
        self.layers.initial(mask, self.generator)
        self.mask = mask.to(self.vector.device)
        self._apply(())

    def begin(self) -> None:
        """Begin a step, before its gradients: decide which weights get gradients."""
        before, self._updates = self._updates, self._updates + self.updates_per_step
        self._share = 0.0 if self.growth is None else self.schedule.share(before, self._updates)
        for product in self.products:
            if product is not None:
                product.whole_gradient = self._share > 0.0

    def prepare(self, gradient: Tensor, moments: Sequence[Tensor]) -> bool:
        """Mask the step's gradient, float32[parameters], and return True; or use it to change the topology.

        moments: of Adam, float32[parameters] each. Returns False after a change: then there is no optimizer step.
        """
        if self.growth is None or self._share == 0.0:
            gradient.mul_(self.mask)
            return True
        self.layers.change(self.mask, self.vector, gradient, self._share, self.growth)
        self._apply(moments)
        return False

    def _apply(self, moments: Sequence[Tensor]) -> None:
        # The inactive weights are filled with 0, because a multiplication could leave -0.
        inactive = self.mask == 0
        for vector in (self.vector, *self.targets, *moments):
            vector.masked_fill_(inactive, 0.0)
        self.active = tuple(int(weight.of(self.mask).count_nonzero()) for weight in self.weights)
        for weight, product in zip(self.weights, self.products, strict=True):
            if product is not None:
                product.set(weight.of(self.mask))

    def state(self) -> dict[str, Tensor]:
        """Copies of the mask (bool), the number of updates, the generator and the signature."""
        return {
            "mask": self.mask.to(torch.bool),
            "updates": torch.tensor(self._updates),
            "generator": self.generator.get_state(),
            "signature": torch.tensor(self.signature, dtype=torch.int64),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned. Raises KeyError or RuntimeError when the topology differs."""
        mask, signature = state["mask"], state["signature"]
        if mask.shape != self.mask.shape or signature.tolist() != list(self.signature):
            raise RuntimeError("the saved networks have another sparsity.method, sparsity or structure")
        self.mask.copy_(mask)
        self._updates = int(state["updates"])
        self.generator.set_state(state["generator"].cpu())
        self._apply(())

    def begin_from(self, state: Mapping[str, Tensor]) -> None:
        """Take the mask of another run's `state`. The schedule of its changes begins anew.

        The method may be another one. Raises KeyError or RuntimeError when the structure or a density differs.
        """
        mask, signature = state["mask"], state["signature"]
        if mask.shape != self.mask.shape or signature.tolist()[1:] != list(self.signature)[1:]:
            raise RuntimeError("its networks have another sparsity or structure")
        self.mask.copy_(mask)
        self._apply(())
