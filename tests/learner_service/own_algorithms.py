"""What a user may bring: networks and algorithms of their own, good ones and others."""

from typing import ClassVar

from torch import nn

from actorq.trajectory import EnvironmentSpec
from learner_service.algorithms.dqn import DQN


class PatientDQN(DQN):
    """An algorithm of a user's own."""

    name = "patient-dqn"


class NoAlgorithm:
    """Acts, but cannot learn."""

    action_spaces: ClassVar[tuple[str, ...]] = ("discrete",)


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
