"""Base class of algorithms that train by gradient descent. An algorithm adds its networks, losses and update."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorq.config.run_config import RunConfig
from actorq.domain.trajectory import EnvironmentSpec
from learner_service.algorithms.base import Losses, Minibatch, minibatches, settings_of
from learner_service.algorithms.trainable import Trainable
from learner_service.networks.observations import are_frames
from learner_service.replay import NStepBatch


class GradientAlgorithm(Trainable):
    """An `Algorithm` without settings, networks and update.

    A subclass has `name`, `action_spaces` and `settings`. It makes its networks in `make_networks`, and one update in
    `step`, or all updates of a batch in `update`. The base class adds sparsity, precision, normalization and resuming.

    settings: the class of its settings, with the fields `batch_size`, `n_step` and `discount`.
    """

    stochastic: bool = False
    n_step: int

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        settings: Any = settings_of(config, self.settings)
        self.n_step = settings.n_step
        super().__init__(config, spec, device)

    def step(self, batch: Minibatch) -> tuple[Tensor, Tensor]:
        """Make one update; returns the loss float32[] and the |TD errors| float32[B], both without gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no step, and no update of its own")

    def update(self, batch: NStepBatch, weights: NDArray[np.float32]) -> Losses:
        """One gradient update for each `batch_size` rows of `batch`; `weights` float32[rows] scale the losses."""
        losses, errors = zip(*(self.step(minibatch) for minibatch in self.minibatches(batch, weights)), strict=True)
        return Losses(float(torch.stack(losses).mean()), torch.cat(errors).cpu().numpy())

    def minibatches(self, batch: NStepBatch, weights: NDArray[np.float32]) -> Iterator[Minibatch]:
        """The minibatches of a batch on the device."""
        return minibatches(batch, weights, self.batch_size, self._device)

    def between_copies(self, cut: Sequence[Minibatch], period: int) -> Iterator[Sequence[Minibatch]]:
        """Group the minibatches between two copies of the target networks, which are `period` updates apart.

        One call of a target network then serves a group. With frames on the CPU each group has one minibatch, because
        more do not fit into its caches and take longer. When masks change within a group, its later minibatches have
        targets from before the change.
        """
        alone = self._device.type == "cpu" and are_frames(self._spec)
        while cut:
            together = 1 if alone else period - self.updates % period
            yield cut[:together]
            cut = cut[together:]

    def noise(self, rows: int, components: int) -> Tensor:
        """Standard normal numbers, float32[rows, components]."""
        return torch.randn((rows, components), generator=self.generator, device=self._device)
