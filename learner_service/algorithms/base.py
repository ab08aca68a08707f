"""What the trainer asks of an algorithm."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from learner_service.replay import NStepBatch


@dataclass(frozen=True)
class Losses:
    """What some updates in a row gave.

    loss: mean over the updates.
    priorities: float32[updates * batch_size], the new |TD error| of each sampled transition.
    """

    loss: float
    priorities: NDArray[np.float32]


class Algorithm(Protocol):
    """Trains on batches of n-step transitions. Not thread-safe: one trainer owns it."""

    name: str
    batch_size: int
    n_step: int
    discount: float

    @property
    def policy(self) -> nn.Module:
        """Maps observations to what actors act on; its parameters are what is published."""
        ...

    def update(self, batch: NStepBatch, weights: NDArray[np.float32]) -> Losses:
        """One gradient update for each `batch_size` rows of `batch`; `weights` float32[rows] scale the losses."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, by name: networks, optimizers, counters."""
        ...

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned; raises KeyError or RuntimeError when names or shapes differ."""
        ...
