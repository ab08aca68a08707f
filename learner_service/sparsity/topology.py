"""The topology of a sparse network: only active weights are trained, and all others are exactly 0."""

from collections.abc import Sequence

import torch
from torch import Tensor

from learner_service.kernels.sparse_products import ActiveWeights
from learner_service.sparsity.evolution import Growth, Layers
from learner_service.sparsity.schedule import CosineSchedule
from learner_service.sparsity.weights import Weight


class Topology:
    """The mask of a network, as one vector like that of its parameters, and its changes.

    The network's Minimizer owns it. Inactive weights get no gradient, so their moments in Adam and their values stay 0.
    This costs one multiplication per step. When a change is due, the step's dense gradient decides which weights grow.
    The optimizer then makes no step (arXiv 1911.11134, algorithm 1). Dropped weights become 0 in the network, in its
    targets and in the moments. Grown weights start at 0. Adam's bias correction is over by then, so their first steps
    are 3 to 6 learning rates, until their mean square has settled (docs/decisions/0011-grown-weights.md).

    mask: float32[parameters], 1 for active weights and for parameters that are never masked, else 0.
    active: number of active weights of each maskable layer.
    """

    def __init__(
        self,
        weights: tuple[Weight, ...],
        layers: Layers,
        vector: Tensor,
        targets: Sequence[Tensor],
        products: Sequence[ActiveWeights | None],
        growth: Growth | None,
        schedule: CosineSchedule,
        generator: torch.Generator,
        updates_per_step: int,
        signature: tuple[int, ...],
    ) -> None:
        """Mask the network and its targets at random.

        vector: the network's parameters, float32[parameters]; targets: those of its target networks.
        products: the sparse products of each weight and its targets; None for dense products.
        growth: None for masks that never change. updates_per_step: updates of the run for each step of this network.
        signature: must be equal in a saved topology.
        """
        self._weights = weights
        self._layers = layers
        self._vector = vector
        self._targets = tuple(targets)
        self._products = tuple(products)
        self._growth = growth
        self._schedule = schedule
        self._generator = generator
        self._updates_per_step = updates_per_step
        self._signature = torch.tensor(signature, dtype=torch.int64)
        self._updates = 0
        self._share = 0.0
        mask = torch.ones(vector.shape)
        layers.initial(mask, generator)
        self.mask = mask.to(vector.device)
        self._apply(())

    def begin(self) -> None:
        """Begin a step, before its gradients: decide which weights get gradients."""
        before, self._updates = self._updates, self._updates + self._updates_per_step
        self._share = 0.0 if self._growth is None else self._schedule.share(before, self._updates)
        for product in self._products:
            if product is not None:
                product.whole_gradient = self._share > 0.0

    def prepare(self, gradient: Tensor, moments: Sequence[Tensor]) -> bool:
        """Mask the step's gradient, float32[parameters], and return True; or use it to change the topology.

        moments: of Adam, float32[parameters] each. Returns False after a change: then there is no optimizer step.
        """
        if self._growth is None or self._share == 0.0:
            gradient.mul_(self.mask)
            return True
        self._layers.change(self.mask, self._vector, gradient, self._share, self._growth)
        self._apply(moments)
        return False

    def _apply(self, moments: Sequence[Tensor]) -> None:
        # Filled, because a multiplication would leave -0.
        self._inactive = self.mask == 0
        for vector in (self._vector, *self._targets, *moments):
            vector.masked_fill_(self._inactive, 0.0)
        self.active = tuple(int(weight.of(self.mask).count_nonzero()) for weight in self._weights)
        for weight, product in zip(self._weights, self._products, strict=True):
            if product is not None:
                product.set(weight.of(self.mask))

    def state(self) -> dict[str, Tensor]:
        """Copies of the mask (bool), the number of updates, the generator and the signature."""
        return {
            "mask": self.mask.to(torch.bool),
            "updates": torch.tensor(self._updates),
            "generator": self._generator.get_state(),
            "signature": self._signature.clone(),
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned. Raises KeyError or RuntimeError when the topology differs."""
        mask, signature = state["mask"], state["signature"].cpu()
        if mask.shape != self.mask.shape or not torch.equal(signature, self._signature):
            raise RuntimeError("the saved networks have another sparsity.method, sparsity or structure")
        self.mask.copy_(mask)
        self._updates = int(state["updates"])
        self._generator.set_state(state["generator"].cpu())
        self._apply(())
