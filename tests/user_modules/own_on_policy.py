"""A small on-policy algorithm: REINFORCE on one linear layer, for tests of the way from actors to `learn`."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from actorq.config.algorithms import ActionSpace
from actorq.config.numbers import PositiveFloat, PositiveInt
from actorq.config.run_config import RunConfig
from actorq.config.settings import Settings
from actorq.domain.spaces import EnvironmentSpec
from actorq.domain.status import Sampling
from learner_service.algorithms.base import Learned, settings_of
from learner_service.batch import Batch


class ReinforceConfig(Settings):
    """Settings of `Reinforce`."""

    rollout_size: PositiveInt = 16
    batch_size: PositiveInt = 8
    epochs: PositiveInt = 2
    learning_rate: PositiveFloat = 0.1


class Logits(nn.Linear):
    """The policy: one layer."""

    output_names = ("logits",)


class Reinforce:
    """Raises the probabilities of actions with rewards. rollouts: what it has learned from, and the progress."""

    name = "reinforce"
    action_spaces: tuple[ActionSpace, ...] = ("discrete",)
    settings = ReinforceConfig
    discount = 0.9
    sampling: Sampling = "clipped"

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        own = settings_of(config, ReinforceConfig)
        self.rollout_size, self.batch_size, self.epochs = own.rollout_size, own.batch_size, own.epochs
        torch.manual_seed(config.seed)
        self._policy = Logits(spec.observations.shape[0], spec.acting_size)
        self._optimizer = torch.optim.SGD(self._policy.parameters(), own.learning_rate)
        self.rollouts: list[tuple[Sequence[Batch], float]] = []
        self.normalized: list[NDArray[np.float64]] = []

    @property
    def policy(self) -> nn.Module:
        return self._policy

    def learn(self, rollout: Sequence[Batch], progress: float) -> Learned:
        self.rollouts.append((rollout, progress))
        losses = []
        for _ in range(self.epochs):
            self._optimizer.zero_grad()
            loss = torch.stack([self._loss(trajectories) for trajectories in rollout]).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            losses.append(float(loss.detach()))
        return Learned(float(np.mean(losses)), self.epochs, {"rollouts": float(len(self.rollouts))})

    def log_probabilities(
        self, observations: NDArray[np.generic], actions: NDArray[np.generic], parameters: Mapping[str, Tensor]
    ) -> NDArray[np.float32]:
        with torch.no_grad():
            values = {**self._policy.state_dict(), **parameters}
            logits = functional_call(self._policy, values, (torch.from_numpy(observations),))
            chosen: NDArray[np.float32] = _log_probabilities(logits, torch.from_numpy(actions)).numpy()
        return chosen

    def normalize(self, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
        self.normalized.append(mean)

    def state(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._policy.state_dict().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._policy.load_state_dict(state)

    def _loss(self, trajectories: Batch) -> Tensor:
        valid = trajectories.valid
        logits = self._policy(torch.from_numpy(trajectories.observations[:-1][valid]))
        chosen = _log_probabilities(logits, torch.from_numpy(trajectories.actions[valid]))
        return -(chosen * torch.from_numpy(trajectories.rewards[valid])).mean()


def _log_probabilities(logits: Tensor, actions: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, actions[:, None]).squeeze(-1)
