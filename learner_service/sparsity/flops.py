"""Counts the FLOPs of networks as RLx2 does (arXiv 2205.15043, appendix C.3)."""

from dataclasses import dataclass

from learner_service.sparsity.weights import Weight


@dataclass(frozen=True)
class Cost:
    """FLOPs with the present networks, and with dense networks of the configured size."""

    now: float
    dense: float

    @property
    def ratio(self) -> float:
        """Share of the dense networks' FLOPs."""
        return self.now / self.dense

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.now + other.now, self.dense + other.dense)

    def __rmul__(self, times: float) -> "Cost":
        return Cost(times * self.now, times * self.dense)


@dataclass(frozen=True)
class Flops:
    """FLOPs of an algorithm's present networks.

    action: of the policy, for one observation.
    update: of one gradient update, with all its rows. A backward pass counts as two forward passes. As in the paper,
        this leaves out activations, losses, optimizer, target updates, mask changes, and action gradients of critics.
    """

    action: Cost
    update: Cost


def dense_flops(weight: Weight, positions: int) -> float:
    """FLOPs of a dense layer for one row. positions: multiplications of its weights."""
    return float((2 * weight.inputs - 1) * weight.units * positions)
