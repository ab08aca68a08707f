"""Counts the FLOPs of networks as RLx2 does (arXiv 2205.15043, appendix C.3)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """A layer of O units with I inputs each. positions: multiplications of its weights per row."""

    units: int
    inputs: int
    positions: int


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
    update: of one gradient update, with all its rows. A backward pass counts twice a forward pass. As in the paper,
        this leaves out activations, losses, optimizer, target updates, mask changes, and action gradients of critics.
    """

    action: Cost
    update: Cost


def forward_cost(layers: Sequence[Layer], active: Sequence[int], full: Sequence[Layer]) -> Cost:
    """FLOPs of a forward pass of one row: sum over layers (1 - S) (2 I - 1) O, for each position.

    active: active weights of each layer. full: the layers of the dense network.
    """
    now = sum(count / (layer.units * layer.inputs) * _dense(layer) for layer, count in zip(layers, active, strict=True))
    return Cost(now, sum(map(_dense, full)))


def _dense(layer: Layer) -> float:
    return float((2 * layer.inputs - 1) * layer.units * layer.positions)
