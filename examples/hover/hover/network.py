"""Hidden layers with a residual block."""

from actorq.domain.spaces import EnvironmentSpec
from torch import Tensor, nn

_UNITS = 64


def residual(spec: EnvironmentSpec) -> nn.Module:
    """float32[B, observations] -> float32[B, 64]; ActorQ adds the heads."""
    (inputs,) = spec.policy_observations.shape
    return nn.Sequential(nn.Linear(inputs, _UNITS), nn.ReLU(), Residual(_UNITS), nn.LayerNorm(_UNITS))


class Residual(nn.Module):
    """x + f(x), where f has one hidden layer."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(units, units), nn.ReLU(), nn.Linear(units, units))

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, units] -> float32[B, units]."""
        y: Tensor = x + self.layers(x)
        return y
