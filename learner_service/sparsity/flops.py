"""How many floating-point operations networks cost, counted as RLx2 does (arXiv 2205.15043, appendix C.3)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """A layer of O units with I inputs each; positions: how often a row multiplies its weights."""

    units: int
    inputs: int
    positions: int


@dataclass(frozen=True)
class Cost:
    """FLOPs of something as it is, and of the same with dense networks of the configured size."""

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
    """What an algorithm's networks cost, as they are now.

    action: of the policy, for one observation.
    update: of one gradient update, all rows of it. A backward pass costs twice a forward pass. Activations, losses,
        optimizer, target updates, masks and their changes are not counted, nor is the gradient of a critic by its
        actions, as in the paper.
    """

    action: Cost
    update: Cost


def forward_cost(layers: Sequence[Layer], active: Sequence[int], full: Sequence[Layer]) -> Cost:
    """FLOPs of a forward pass of one row: sum over layers (1 - S) (2 I - 1) O, for each position.

    active: weights of each layer that are not masked. full: the layers of the network that would be dense.
    """
    now = sum(count / (layer.units * layer.inputs) * _dense(layer) for layer, count in zip(layers, active, strict=True))
    return Cost(now, sum(map(_dense, full)))


def _dense(layer: Layer) -> float:
    return float((2 * layer.inputs - 1) * layer.units * layer.positions)
