"""A small on-policy algorithm for tests of the way from actors to `learn`: REINFORCE, without and with memory."""

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
from learner_service.rollouts.sequences import begins_of, stored_states


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
        self._policy = self._make_policy(config, spec)
        self._optimizer = torch.optim.SGD(self._policy.parameters(), own.learning_rate)
        self.rollouts: list[tuple[Sequence[Batch], float]] = []
        self.normalized: list[NDArray[np.float64]] = []

    def _make_policy(self, config: RunConfig, spec: EnvironmentSpec) -> nn.Module:
        return Logits(spec.observations.shape[0], spec.acting_size)

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


class RememberingLogits(nn.Module):
    """A policy with an own cell: each unit mixes its state with a new value. The gate decides how much it keeps."""

    output_names = ("logits",)

    def __init__(self, observations: int, units: int, actions: int) -> None:
        super().__init__()
        self.state_size = units
        self.of_observation, self.of_state = nn.Linear(observations, 2 * units), nn.Linear(units, units)
        self.head = nn.Linear(units, actions)
        with torch.no_grad():
            # A new gate keeps more than a half.
            self.of_observation.bias[:units].add_(1.0)

    def forward(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """float32[B, observations], float32[B, S] -> logits float32[B, actions], the next state float32[B, S]."""
        gate, value = self.of_observation(observations).chunk(2, dim=1)
        new = torch.tanh(value)
        following = new + torch.sigmoid(gate + self.of_state(state)) * (state - new)
        return self.head(following), following


class RecurrentReinforce(Reinforce):
    """`Reinforce` for runs with memory, with an own cell. Gradients go back through all steps of a trajectory."""

    name = "recurrent-reinforce"
    has_memory = True

    def _make_policy(self, config: RunConfig, spec: EnvironmentSpec) -> nn.Module:
        self._size = config.memory.state_size
        return RememberingLogits(spec.observations.shape[0], self._size, spec.acting_size)

    def log_probabilities(
        self,
        observations: NDArray[np.generic],
        actions: NDArray[np.generic],
        parameters: Mapping[str, Tensor],
        states: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        assert states is not None
        with torch.no_grad():
            values = {**self._policy.state_dict(), **parameters}
            inputs = torch.from_numpy(observations), torch.from_numpy(states)
            logits, _ = functional_call(self._policy, values, inputs)
            chosen: NDArray[np.float32] = _log_probabilities(logits, torch.from_numpy(actions)).numpy()
        return chosen

    def states(self, steps: Batch) -> NDArray[np.float32]:
        with torch.no_grad():
            found: NDArray[np.float32] = self._unrolled(steps)[1].numpy()
        return found

    def _loss(self, trajectories: Batch) -> Tensor:
        valid = torch.from_numpy(trajectories.valid)
        logits, _ = self._unrolled(trajectories)
        chosen = _log_probabilities(logits[valid], torch.from_numpy(trajectories.actions)[valid])
        return -(chosen * torch.from_numpy(trajectories.rewards)[valid]).mean()

    def _unrolled(self, steps: Batch) -> tuple[Tensor, Tensor]:
        """The logits float32[T, N, actions], and the states before each step float32[T, N, S]."""
        observations, keeps = torch.from_numpy(steps.observations), torch.from_numpy(~begins_of(steps))
        state, logits, states = torch.from_numpy(stored_states(steps, self._size)), [], []
        for t in range(len(steps.valid)):
            # An episode begins with a state of zeros.
            states.append(state * keeps[t, :, None])
            told, state = self._policy(observations[t], states[-1])
            logits.append(told)
        return torch.stack(logits), torch.stack(states)


def _log_probabilities(logits: Tensor, actions: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, actions[:, None]).squeeze(-1)
