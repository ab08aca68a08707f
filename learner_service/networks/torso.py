"""Hidden layers with one linear head: the base of most policies and of the value network."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from actorq.domain.spaces import EnvironmentSpec
from learner_service.kernels.linear import Linear, keep_fp32
from learner_service.networks.encoders import Observed
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.observations import Observations, hidden_layers

# Gain of the orthogonal initial weights of hidden layers.
_HIDDEN_GAIN = math.sqrt(2)
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


class Torso(nn.Module):
    """Observations, hidden layers, and a linear head with `outputs(spec)` outputs.

    hidden_sizes: units of an MLP's layers. activation: a key of `ACTIVATIONS`, for the MLP.
    layers: the user's layers or convolutions instead of the MLP, with the number of their features.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: Sequence[int],
        normalizer: Normalizer | None = None,
        layers: tuple[nn.Module, int] | None = None,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        self.observe = Observations(spec, normalizer, flatten=layers is None)
        self.torso, features = hidden_layers(spec, hidden_sizes, layers, ACTIVATIONS[activation])
        self.head = keep_fp32(Linear(features, self.outputs(spec)))

    def outputs(self, spec: EnvironmentSpec) -> int:
        """The number of outputs of the head; one by default."""
        return 1

    def make_orthogonal(self, gain: float, hidden: bool) -> None:
        """Give all layers orthogonal initial weights, and biases of 0.

        gain: of the head; sqrt(2) for hidden layers. hidden: whether to change hidden layers. The gains are those of
        Huang et al. 2022, "The 37 Implementation Details of Proximal Policy Optimization", detail 2.
        """
        layers = {layer: _HIDDEN_GAIN for layer in self.torso.modules() if hidden} | {self.head: gain}
        for layer, own in layers.items():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.orthogonal_(layer.weight, own)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def computed(self, observations: Observed) -> Tensor:
        """The outputs of the last layer, float32[B, outputs]."""
        outputs: Tensor = self.head(self.torso(self.observe(observations)))
        return outputs
