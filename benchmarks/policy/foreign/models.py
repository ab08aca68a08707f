"""Untrained policies with discrete actions: of Stable-Baselines3, and in the forms of CleanRL and RLlib.

CleanRL's networks are plain modules in its scripts (cleanrl/dqn.py, ppo.py, c51.py, dqn_atari.py). This module has the
same layers. RLlib's networks are modules whose `forward_inference` takes and returns a dict (ray/rllib/core/rl_module).
This module has the layers of RLlib's default encoders and heads, but not ray itself, because of its size.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

SIZE, ACTIONS, ATOMS = 12, 6, 51
IMAGE = (4, 84, 84)


@dataclass(frozen=True)
class Foreign:
    """A policy of a library.

    values: observations and states -> values float32[B, actions] first.
    inputs: shapes of the data inputs without the batch; images are bytes.
    """

    library: str
    name: str
    values: nn.Module
    inputs: tuple[tuple[int, ...], ...] = ((SIZE,),)

    def rows(self, count: int, seed: int) -> list[NDArray[Any]]:
        """Random rows for each data input."""
        rng = np.random.default_rng(seed)
        return [
            rng.integers(0, 256, (count, *shape), np.uint8)
            if len(shape) == 3
            else rng.standard_normal((count, *shape), np.float32)
            for shape in self.inputs
        ]


class Values(nn.Module):
    """A policy whose first output is computed by a function of its library."""

    def __init__(self, policy: nn.Module, values: Callable[..., Any]) -> None:
        super().__init__()
        self.policy = policy
        self._values = values

    def forward(self, *inputs: Tensor) -> Any:
        """Return the result of the library's function."""
        return self._values(self.policy, *inputs)


class Actions(nn.Module):
    """The index of the action with the largest value, and the policy's other outputs."""

    def __init__(self, values: nn.Module) -> None:
        super().__init__()
        self.values = values

    def forward(self, *inputs: Tensor) -> Any:
        """Return int64[B] first."""
        outputs = self.values(*inputs)
        if isinstance(outputs, Tensor):
            return outputs.argmax(dim=1)
        return outputs[0].argmax(dim=1), *outputs[1:]


class Encoder(nn.Module):
    """A policy in RLlib's form: from a dict of inputs to a dict of outputs, with an LSTM if it has a state."""

    def __init__(self, torso: nn.Module, features: int, recurrent: bool = False) -> None:
        super().__init__()
        self.torso = torso
        self.lstm = nn.LSTM(features, features, batch_first=True) if recurrent else None
        self.head = nn.Linear(features, ACTIONS)

    def forward_inference(self, batch: dict[str, Any]) -> dict[str, Any]:
        """RLlib's method for acting without exploration. States are [B, layers, H], as in RLlib."""
        features = self.torso(batch["obs"])
        outputs = {}
        if self.lstm is not None:
            h, c = (state.transpose(0, 1) for state in batch["state_in"])
            sequence, states = self.lstm(features[:, None], (h, c))
            features = sequence[:, 0]
            outputs["state_out"] = tuple(state.transpose(0, 1) for state in states)
        return {"action_dist_inputs": self.head(features), **outputs}


def stable_baselines3() -> list[Foreign]:
    """Policies that the library itself builds. Raises ModuleNotFoundError if the library is not installed."""
    common = importlib.import_module("stable_baselines3.common.policies")
    dqn = importlib.import_module("stable_baselines3.dqn.policies")
    # Distributions check values, which do not exist during an export.
    torch.distributions.Distribution.set_default_validate_args(False)
    vector = gymnasium.spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
    images = gymnasium.spaces.Box(0, 255, IMAGE, np.uint8)
    actions = gymnasium.spaces.Discrete(ACTIONS)

    def rate(_: float) -> float:
        return 1e-4

    def logits(policy: Any, observations: Tensor) -> Any:
        return policy.get_distribution(observations).distribution.logits

    def q_values(policy: Any, observations: Tensor) -> Any:
        return policy.q_net(observations)

    made: list[tuple[str, Any, Callable[..., Any], tuple[int, ...]]] = [
        ("PPO", common.ActorCriticPolicy(vector, actions, rate), logits, (SIZE,)),
        ("PPO, CNN", common.ActorCriticCnnPolicy(images, actions, rate), logits, IMAGE),
        ("DQN", dqn.DQNPolicy(vector, actions, rate), q_values, (SIZE,)),
        ("DQN, CNN", dqn.CnnPolicy(images, actions, rate), q_values, IMAGE),
    ]
    return [Foreign("stable-baselines3", name, Values(policy, call), (shape,)) for name, policy, call, shape in made]


def cleanrl() -> list[Foreign]:
    """Networks as CleanRL's scripts define them."""

    def expected(network: nn.Module, observations: Tensor) -> Tensor:
        probabilities = network(observations).view(-1, ACTIONS, ATOMS).softmax(dim=2)
        values: Tensor = (probabilities * torch.linspace(-10, 10, ATOMS)).sum(2)
        return values

    def of_vectors(network: nn.Module, observations: Tensor) -> Any:
        return network(observations)

    def of_images(network: nn.Module, observations: Tensor) -> Any:
        return network(observations / 255.0)

    return [
        Foreign("cleanrl", "dqn", Values(_mlp((SIZE, 120, 84, ACTIONS), nn.ReLU), of_vectors)),
        Foreign("cleanrl", "ppo", Values(_mlp((SIZE, 64, 64, ACTIONS), nn.Tanh), of_vectors)),
        Foreign("cleanrl", "c51", Values(_mlp((SIZE, 120, 84, ACTIONS * ATOMS), nn.ReLU), expected)),
        Foreign(
            "cleanrl", "dqn_atari", Values(nn.Sequential(*_nature(), nn.Linear(512, ACTIONS)), of_images), (IMAGE,)
        ),
    ]


def rllib() -> list[Foreign]:
    """Modules in RLlib's form."""

    def logits(module: Any, observations: Tensor) -> Any:
        return module.forward_inference({"obs": observations})["action_dist_inputs"]

    def recurrent(module: Any, observations: Tensor, h: Tensor, c: Tensor) -> Any:
        outputs = module.forward_inference({"obs": observations, "state_in": (h, c)})
        return outputs["action_dist_inputs"], *outputs["state_out"]

    def of_images(module: Any, observations: Tensor) -> Any:
        return module.forward_inference({"obs": observations / 255.0})["action_dist_inputs"]

    def mlp(*sizes: int) -> nn.Module:
        return _mlp((SIZE, *sizes), nn.Tanh, last=nn.Tanh)

    return [
        Foreign("rllib", "PPO", Values(Encoder(mlp(256, 256), 256), logits)),
        Foreign("rllib", "PPO, three layers", Values(Encoder(mlp(128, 128, 128), 128), logits)),
        Foreign("rllib", "PPO, CNN", Values(Encoder(nn.Sequential(*_nature()), 512), of_images), (IMAGE,)),
        Foreign("rllib", "PPO, LSTM", Values(Encoder(mlp(128), 128, True), recurrent), ((SIZE,), (1, 128), (1, 128))),
    ]


def _mlp(sizes: Sequence[int], activation: type[nn.Module], last: type[nn.Module] | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, units in pairwise(sizes):
        layers += [nn.Linear(inputs, units), activation()]
    return nn.Sequential(*layers[:-1], *([last()] if last else []))


def _nature() -> list[nn.Module]:
    convolutions = (
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
    )
    return [*convolutions, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()]
