"""Base class of algorithms that train by gradient descent. A subclass adds its networks, losses and update."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actorq.config.run_config import RunConfig
from actorq.domain.spaces import EnvironmentSpec
from learner_service.algorithms.base import Losses, on_device, settings_of
from learner_service.algorithms.trainable import Trainable
from learner_service.algorithms.trained import TrainedNetwork
from learner_service.batch import Batch
from learner_service.kernels.recorded import Function, Input, Recorded
from learner_service.networks.encoders import Leaves
from learner_service.networks.observations import has_images


class GradientAlgorithm(Trainable):
    """An `Algorithm` without settings, networks and update.

    A subclass has `name`, `action_spaces` and `settings`. It makes its networks in `make_networks`. It makes one update
    in `step`, or all updates of a batch in `update`. The base class adds sparsity, precision, normalization and
    resuming.

    settings: the class of its settings, with the fields `batch_size`, `n_step` and `discount`.
    """

    takes_noise: bool = False
    n_step: int

    def __init__(self, config: RunConfig, spec: EnvironmentSpec, device: torch.device) -> None:
        settings: Any = settings_of(config, self.settings)
        self.n_step = settings.n_step
        self._reported: dict[str, list[Tensor]] = {}
        self._leaves = Leaves(spec) if spec.leaves else None
        super().__init__(config, spec, device)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Make one update; returns the loss float32[] and the |TD errors| float32[B], both without gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no step, and no update of its own")

    def descent(self, network: TrainedNetwork[Any], loss: Function) -> Function:
        """A function that makes one gradient step of a network on a loss.

        loss: has tensors, and batches of tensors, as arguments. It returns the loss, float32[], and other tensors. It
            depends only on its inputs and on parameters, because its operations are recorded if `can_record`.

        The result has the same arguments and results, without gradient.
        """

        def differentiate(*inputs: Input) -> tuple[Tensor, ...]:
            output, *others = loss(*inputs)
            return network.differentiate(output), output.detach(), *others

        gradient = self.recorded(differentiate)
        return lambda *inputs: network.step_with(lambda: gradient(*inputs))[1:]

    def recorded(self, function: Function) -> Function:
        """The function, with recorded operations if `can_record`."""
        recorded = Recorded(function, device=self._device)
        return lambda *inputs: (recorded if self.can_record else function)(*inputs)

    def update(self, batch: Batch, weights: NDArray[np.float32]) -> Losses:
        """One gradient update for each `batch_size` rows of `batch`; `weights` float32[rows] scale the losses."""
        return self.losses(map(self.step, self._on_device(batch, weights).split(self.batch_size)))

    def losses(self, steps: Iterable[tuple[Tensor, Tensor]]) -> Losses:
        """Make the updates of a batch. Each item of `steps` is the result of one `step`."""
        losses, errors = zip(*steps, strict=True)
        figures = {name: float(torch.stack(values).mean()) for name, values in self._reported.items()}
        self._reported.clear()
        return Losses(float(torch.stack(losses).mean()), torch.cat(errors).cpu().numpy(), figures)

    def report(self, **figures: Tensor) -> None:
        """Report figures of an update by name, float32[] each.

        Their means over the updates of a batch are in the run's status, TensorBoard, W&B and MLflow.
        """
        for name, value in figures.items():
            self._reported.setdefault(name, []).append(value.detach())

    def with_targets(
        self, batch: Batch, weights: NDArray[np.float32], period: int, targets: Callable[[Batch], tuple[Tensor, ...]]
    ) -> Iterator[tuple[Batch, tuple[Tensor, ...]]]:
        """The minibatches of a batch, each with its rows of the result of `targets`. Make one update with each.

        Target networks change every `period` updates. `targets` gets the rows of all updates in between, because larger
        products are faster. With images on the CPU it gets only one minibatch, because more do not fit into the caches.
        When masks change in between, later minibatches have targets from before the change.
        """
        alone = self._device.type == "cpu" and has_images(self._spec.for_critics)
        whole, size = self._on_device(batch, weights), self.batch_size
        cut, start = list(whole.split(size)), 0
        while start < len(cut):
            stop = start + (1 if alone else period - self.updates % period)
            found = targets(whole[start * size : stop * size])
            yield from zip(cut[start:stop], zip(*(torch.split(each, size) for each in found), strict=True), strict=True)
            start = stop

    def _on_device(self, batch: Batch, weights: NDArray[np.float32]) -> Batch:
        """All rows of a batch, with unpacked observations."""
        rows = on_device(batch, weights, self.batch_size, self._device)
        if self._leaves is None:
            return rows
        unpacked = self._leaves.unpacked
        if "between_observations" in rows:
            between = rows.between_observations
            between = unpacked(between.flatten(0, 1)).view(*between.shape[:2], -1)
            rows = rows.with_columns(between_observations=between)
        following = unpacked(rows.bootstrap_observations)
        return rows.with_columns(observations=unpacked(rows.observations), bootstrap_observations=following)

    def noise(self, rows: int) -> Tensor:
        """Standard normal numbers for the components of actions, float32[rows, components]."""
        components = math.prod(self._spec.actions.shape)
        return torch.randn((rows, components), generator=self.generator, device=self._device)
