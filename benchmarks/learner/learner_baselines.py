"""The baselines of the update benchmark: Stable-Baselines3, and CleanRL's updates in plain torch."""

from collections.abc import Callable
from itertools import chain
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from actorq.domain.spaces import EnvironmentSpec
from benchmarks.harness import optional_module

Rows = dict[str, NDArray[Any]]
Updates = Callable[[], object]

_INSTALL = "pip install stable-baselines3==2.9.2"


class _Spaces(gymnasium.Env[NDArray[Any], Any]):
    """An environment with a spec's spaces, for constructors only."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        low, high = spec.actions.bounds()
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, spec.observations.shape, np.float32)
        self.action_space: gymnasium.Space[Any] = (
            gymnasium.spaces.Discrete(spec.acting_size) if spec.sizes else gymnasium.spaces.Box(low, high)
        )


def stable_baselines(
    algorithm: str, spec: EnvironmentSpec, rows: Rows, sizes: list[int], batch: int, updates: int
) -> Updates:
    """`updates` updates of Stable-Baselines3 with its defaults except the networks' sizes. Includes sampling."""
    library = optional_module("stable_baselines3", _INSTALL)
    logger = optional_module("stable_baselines3.common.logger", _INSTALL)
    model = getattr(library, algorithm.upper())(
        "MlpPolicy",
        _Spaces(spec),
        batch_size=batch,
        buffer_size=len(rows["rewards"]),
        policy_kwargs={"net_arch": sizes},
        device="cpu",
        seed=1,
    )
    model.set_logger(logger.Logger(None, []))
    buffer = model.replay_buffer
    buffer.observations[:, 0], buffer.next_observations[:, 0] = rows["observations"], rows["next_observations"]
    buffer.actions[:, 0] = rows["actions"].reshape(len(rows["actions"]), -1)
    buffer.rewards[:, 0], buffer.dones[:, 0] = rows["rewards"], rows["dones"]
    buffer.full = True
    return lambda: model.train(gradient_steps=updates, batch_size=batch)


def cleanrl(algorithm: str, spec: EnvironmentSpec, rows: Rows, sizes: list[int], batch: int, updates: int) -> Updates:
    """`updates` updates with the mathematics of CleanRL's loops (arXiv 2111.08819), written anew.

    Each network is a module and each loss has an Adam. Gradients come from `backward`. A loop over parameters updates
    the targets. Sampling is as in CleanRL's replay: random rows, with each column copied into a tensor.
    """
    torch.manual_seed(1)
    classes: dict[str, Callable[[EnvironmentSpec, list[int]], _Updated]] = {
        "dqn": _CleanRLDQN,
        "td3": _CleanRLTD3,
        "sac": _CleanRLSAC,
    }
    made = classes[algorithm](spec, sizes)
    rng, size = np.random.default_rng(1), len(rows["rewards"])

    def run() -> None:
        for _ in range(updates):
            drawn = rng.integers(size, size=batch)
            made.update(*(torch.from_numpy(rows[name][drawn]) for name in _COLUMNS))

    return run


_COLUMNS = ("observations", "actions", "rewards", "next_observations", "dones")
_DISCOUNT, _RATE, _LEARNING_RATE = 0.99, 0.005, 3e-4


def _mlp(inputs: int, sizes: list[int], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in sizes:
        layers += [nn.Linear(inputs, size), nn.ReLU()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def _follow(target: nn.Module, online: nn.Module) -> None:
    for theirs, ours in zip(target.parameters(), online.parameters(), strict=True):
        theirs.data.copy_(_RATE * ours.data + (1 - _RATE) * theirs.data)


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()


class _Updated(Protocol):
    def update(
        self, observations: Tensor, actions: Tensor, rewards: Tensor, following: Tensor, dones: Tensor
    ) -> None: ...


class _CleanRLDQN:
    def __init__(self, spec: EnvironmentSpec, sizes: list[int]) -> None:
        inputs = spec.observations.shape[0]
        self._online, self._target = (_mlp(inputs, sizes, spec.acting_size) for _ in range(2))
        self._target.load_state_dict(self._online.state_dict())
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=_LEARNING_RATE)

    def update(self, observations: Tensor, actions: Tensor, rewards: Tensor, following: Tensor, dones: Tensor) -> None:
        with torch.no_grad():
            targets = rewards + _DISCOUNT * (1 - dones) * self._target(following).max(1).values
        values = self._online(observations).gather(1, actions.unsqueeze(1)).squeeze(1)
        _descend(self._optimizer, functional.mse_loss(values, targets))


class _CleanRLTD3:
    def __init__(self, spec: EnvironmentSpec, sizes: list[int]) -> None:
        inputs, actions = spec.observations.shape[0], spec.actions.shape[0]
        self._policy, self._target_policy = (_mlp(inputs, sizes, actions) for _ in range(2))
        self._critics, self._targets = (
            nn.ModuleList(_mlp(inputs + actions, sizes, 1) for _ in range(2)) for _ in range(2)
        )
        self._target_policy.load_state_dict(self._policy.state_dict())
        self._targets.load_state_dict(self._critics.state_dict())
        self._policy_optimizer = torch.optim.Adam(self._policy.parameters(), lr=_LEARNING_RATE)
        self._critic_optimizer = torch.optim.Adam(self._critics.parameters(), lr=_LEARNING_RATE)
        self._updates = 0

    def update(self, observations: Tensor, actions: Tensor, rewards: Tensor, following: Tensor, dones: Tensor) -> None:
        with torch.no_grad():
            noise = (torch.randn_like(actions) * 0.2).clamp(-0.5, 0.5)
            smoothed = (torch.tanh(self._target_policy(following)) + noise).clamp(-1, 1)
            first, second = (critic(torch.cat((following, smoothed), 1)) for critic in self._targets)
            targets = rewards + _DISCOUNT * (1 - dones) * torch.min(first, second).squeeze(1)
        both = [critic(torch.cat((observations, actions), 1)).squeeze(1) for critic in self._critics]
        _descend(self._critic_optimizer, sum(functional.mse_loss(values, targets) for values in both))  # type: ignore[arg-type]
        self._updates += 1
        if self._updates % 2 == 0:
            acted = torch.tanh(self._policy(observations))
            _descend(self._policy_optimizer, -self._critics[0](torch.cat((observations, acted), 1)).mean())
            _follow(self._target_policy, self._policy)
            _follow(self._targets, self._critics)


class _CleanRLSAC:
    def __init__(self, spec: EnvironmentSpec, sizes: list[int]) -> None:
        inputs, self._actions = spec.observations.shape[0], spec.actions.shape[0]
        self._torso = nn.Sequential(_mlp(inputs, sizes[:-1], sizes[-1]), nn.ReLU())
        self._mean, self._log_deviation = (nn.Linear(sizes[-1], self._actions) for _ in range(2))
        self._critics, self._targets = (
            nn.ModuleList(_mlp(inputs + self._actions, sizes, 1) for _ in range(2)) for _ in range(2)
        )
        self._targets.load_state_dict(self._critics.state_dict())
        policy = chain(*(module.parameters() for module in (self._torso, self._mean, self._log_deviation)))
        self._policy_optimizer = torch.optim.Adam(policy, lr=_LEARNING_RATE)
        self._critic_optimizer = torch.optim.Adam(self._critics.parameters(), lr=_LEARNING_RATE)
        self._log_alpha = torch.zeros(1, requires_grad=True)
        self._alpha_optimizer = torch.optim.Adam([self._log_alpha], lr=_LEARNING_RATE)
        self._updates = 0

    def _sample(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        x = self._torso(observations)
        # From -5 to 2.
        log_deviation = 3.5 * torch.tanh(self._log_deviation(x)) - 1.5
        normal = torch.distributions.Normal(self._mean(x), log_deviation.exp())
        drawn = normal.rsample()
        actions = torch.tanh(drawn)
        log_probabilities: Tensor = normal.log_prob(drawn)  # type: ignore[no-untyped-call]
        return actions, (log_probabilities - torch.log(1 - actions.square() + 1e-6)).sum(1)

    def update(self, observations: Tensor, actions: Tensor, rewards: Tensor, following: Tensor, dones: Tensor) -> None:
        alpha = self._log_alpha.detach().exp()
        with torch.no_grad():
            next_actions, next_log_probabilities = self._sample(following)
            first, second = (critic(torch.cat((following, next_actions), 1)) for critic in self._targets)
            values = torch.min(first, second).squeeze(1) - alpha * next_log_probabilities
            targets = rewards + _DISCOUNT * (1 - dones) * values
        both = [critic(torch.cat((observations, actions), 1)).squeeze(1) for critic in self._critics]
        _descend(self._critic_optimizer, sum(functional.mse_loss(values, targets) for values in both))  # type: ignore[arg-type]
        self._updates += 1
        if self._updates % 2 == 0:
            # CleanRL's policy frequency: two policy updates after every second critic update.
            for _ in range(2):
                self._update_policy(observations)
        _follow(self._targets, self._critics)

    def _update_policy(self, observations: Tensor) -> None:
        alpha = self._log_alpha.detach().exp()
        acted, log_probabilities = self._sample(observations)
        first, second = (critic(torch.cat((observations, acted), 1)) for critic in self._critics)
        _descend(self._policy_optimizer, (alpha * log_probabilities - torch.min(first, second).squeeze(1)).mean())
        with torch.no_grad():
            _, log_probabilities = self._sample(observations)
        _descend(self._alpha_optimizer, (-self._log_alpha.exp() * (log_probabilities - self._actions)).mean())
