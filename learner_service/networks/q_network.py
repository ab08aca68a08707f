"""The network of DQN: values of discrete actions."""

from collections.abc import Sequence

from torch import Tensor, nn

from actorq.domain.spaces import EnvironmentSpec
from learner_service.kernels.linear import Linear, keep_fp32, mlp
from learner_service.networks.normalizer import Normalizer
from learner_service.networks.observations import Observations, input_size


class QNetwork(nn.Module):
    """Hidden layers and one head, or two dueling heads (arXiv 1511.06581, eq. 9).

    hidden_sizes: units of a ReLU MLP's layers.
    layers: the user's layers in place of the MLP, with the number of their features.
    forward: observations [B, *policy_observations] of the environment's dtype -> q_values float32[B, actions].
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        hidden_sizes: Sequence[int],
        dueling: bool,
        normalizer: Normalizer | None = None,
        layers: tuple[nn.Module, int] | None = None,
    ) -> None:
        super().__init__()
        self.observe = Observations(spec, normalizer, flatten=layers is None)
        self.torso, features = layers or (mlp((input_size(spec), *hidden_sizes)), hidden_sizes[-1])
        self.advantage = keep_fp32(Linear(features, spec.discrete_actions))
        self.value = keep_fp32(Linear(features, 1)) if dueling else None

    def forward(self, observations: Tensor) -> Tensor:
        """Return the value of each action."""
        x = self.torso(self.observe(observations))
        advantage: Tensor = self.advantage(x)
        if self.value is None:
            return advantage
        return self.value(x) + advantage - advantage.mean(dim=-1, keepdim=True)  # type: ignore[no-any-return]
