"""What a user may bring: networks and algorithms of their own, good ones and others."""

import threading
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from actorq.config.run_config import RunConfig
from actorq.config.settings import Settings
from actorq.domain.spaces import EnvironmentSpec
from learner_service.algorithms import Losses, minibatches, settings_of
from learner_service.algorithms.dqn import DQN
from learner_service.batch import Batch


class PatientDQN(DQN):
    """An algorithm of a user's own."""

    name = "patient-dqn"


class LinearConfig(Settings):
    """What LinearQ learns with."""

    learning_rate: float = Field(0.1, gt=0, description="size of a step down the gradient")
    n_step: int = Field(2, gt=0, description="environment steps of the return")


class LinearQ:
    """Q-learning with a linear function, without anything of ours but the interface; its own target network."""

    name = "linear-q"
    action_spaces: ClassVar[tuple[str, ...]] = ("discrete",)
    settings = LinearConfig
    takes_noise = False
    batch_size, discount = 16, 0.9

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        own = settings_of(config, LinearConfig)
        self.n_step, self._device = own.n_step, device
        self.policy = nn.Linear(spec.policy_observations.shape[0], spec.acting_size).to(device)
        self._optimizer = torch.optim.SGD(self.policy.parameters(), own.learning_rate)

    def update(self, batch: Batch, weights: NDArray[np.float32]) -> Losses:
        """Steps down the gradient of the mean squared error."""
        losses, errors = [], []
        for minibatch in minibatches(batch, weights, self.batch_size, self._device):
            with torch.no_grad():
                values = self.policy(minibatch.bootstrap_observations).amax(1)
                targets = minibatch.returns + minibatch.bootstrap_discounts * values
            chosen = self.policy(minibatch.observations).gather(1, minibatch.actions[:, None]).squeeze(1)
            loss = (minibatch.weights * (targets - chosen).square()).mean()
            self._optimizer.zero_grad()
            torch.autograd.backward(loss)
            self._optimizer.step()
            losses.append(loss.detach())
            errors.append((targets - chosen).detach().abs())
        return Losses(float(torch.stack(losses).mean()), torch.cat(errors).cpu().numpy())

    def normalize(self, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
        """Does nothing."""

    def state(self) -> dict[str, Tensor]:
        """The parameters."""
        return {name: value.clone() for name, value in self.policy.state_dict().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restores the parameters."""
        self.policy.load_state_dict(state)


class OfOtherSettings(PatientDQN):
    """Takes settings of a kind that nobody can give."""

    settings: ClassVar[Any] = dict


class NoAlgorithm:
    """Acts, but cannot learn."""

    action_spaces: ClassVar[tuple[str, ...]] = ("discrete",)


class ThatFails(DQN):
    """Raises when it is made."""

    def __init__(self, *arguments: Any) -> None:
        raise ZeroDivisionError("batches\n/ 0")


class Unfinished(DQN):
    """Has what a class can have, but sets nothing up."""

    def __init__(self, *arguments: Any) -> None:
        pass


NOT_A_CLASS = 5


def wide_and_shallow(spec: EnvironmentSpec) -> nn.Module:
    """One hidden layer of 300 units."""
    return nn.Sequential(nn.Linear(spec.observations.shape[0], 300), nn.SiLU())


def of_one_row(spec: EnvironmentSpec) -> nn.Module:
    """Forgets the batch."""
    return nn.Flatten(0)


def of_other_inputs(spec: EnvironmentSpec) -> nn.Module:
    """Takes one observation more than there is."""
    return nn.Linear(spec.observations.shape[0] + 1, 3)


def of_nothing(spec: EnvironmentSpec) -> None:
    """Returns no module."""


def that_fails(spec: EnvironmentSpec) -> nn.Module:
    """Raises."""
    raise ZeroDivisionError("units / 0")


def convolutions(spec: EnvironmentSpec) -> nn.Module:
    """For small images of two stacked frames."""
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 16))


class Branching(nn.Module):
    """Computes one thing or another, depending on numbers: no graph of operations can say that."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 8)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, inputs] -> float32[B, 8]."""
        y: Tensor = self.layer(x)
        return y if y.sum() > 0 else -y


def branching(spec: EnvironmentSpec) -> nn.Module:
    """What cannot be exported."""
    return Branching(spec.observations.shape[0])


def partly_unused(spec: EnvironmentSpec) -> nn.Module:
    """Has parameters that nothing is computed with."""
    layers = nn.Sequential(nn.Linear(spec.observations.shape[0], 8))
    layers[0].register_parameter("spare", nn.Parameter(torch.zeros(3)))
    return layers


_SHARED = nn.Sequential(nn.Linear(4, 16), nn.ReLU())


def always_the_same(spec: EnvironmentSpec) -> nn.Module:
    """One module for every network."""
    return _SHARED


def that_counts(spec: EnvironmentSpec) -> nn.Module:
    """Normalizes by statistics of its own."""
    return nn.Sequential(nn.Linear(spec.observations.shape[0], 16), nn.BatchNorm1d(16), nn.ReLU())


def that_drops_out(spec: EnvironmentSpec) -> nn.Module:
    """Leaves out half of its features."""
    return nn.Sequential(nn.LayerNorm(spec.observations.shape[0]), nn.Dropout(0.5))


class RandomFeatures(nn.Module):
    """Cosines of random projections, which are never trained and thus no parameters."""

    projections: Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("projections", torch.randn(inputs, 32))

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, inputs] -> float32[B, 32]."""
        return torch.cos(x @ self.projections)


def random_features(spec: EnvironmentSpec) -> nn.Module:
    """Other ones with every call."""
    return RandomFeatures(spec.observations.shape[0])


def half_frozen(spec: EnvironmentSpec) -> nn.Module:
    """A first layer that is not to be trained."""
    return nn.Sequential(nn.Linear(spec.observations.shape[0], 16).requires_grad_(False), nn.ReLU(), nn.Linear(16, 8))


class ThatFailsLater(DQN):
    """Begins its first update, and fails in it when it is told to."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begun, self.told = threading.Event(), threading.Event()

    def update(self, *arguments: Any) -> Any:
        self.begun.set()
        assert self.told.wait(60.0)
        raise ZeroDivisionError("losses / 0")


class ThatCannotLoad(DQN):
    """Raises when it is restored."""

    def load_state(self, state: Any) -> None:
        raise TypeError("no state is taken")


class ThatCannotUpdate(DQN):
    """Raises at each update."""

    def update(self, *arguments: Any) -> Any:
        raise ZeroDivisionError("losses / 0")
