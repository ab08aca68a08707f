"""Base class of algorithms that train on sequences from the replay.

The first `burn_in` steps of a sequence compute the state from its stored one, without gradient (Kapturowski et al.
2019, "Recurrent Experience Replay in Distributed Reinforcement Learning", section 3). The policy on its way has other
parameters than the policy that acted, so its states differ from the stored ones. The later steps are trained.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learner_service.algorithms.base import Losses, on_device
from learner_service.algorithms.gradient import GradientAlgorithm
from learner_service.algorithms.trained import Minimizer, TrainedNetwork
from learner_service.batch import Batch

# Share of the largest error in a sequence's priority (Kapturowski et al. 2019, section 2.3).
_ETA = 0.9
# Columns that have no steps.
_ONCE = ("states", "weights")


class SequenceAlgorithm(GradientAlgorithm):
    """A `GradientAlgorithm` that trains on sequences; see `replay.recurrent.assemble_sequences`.

    Time is the first dimension of a minibatch. P is the number of observations after the burn-in, R that of trained
    steps. The columns `observations` and `begins` are cut into those before the training, with the prefix `early_`,
    and the others.
    """

    has_memory: ClassVar[bool] = True

    @cached_property
    def can_record(self) -> bool:
        """Never, because each step of a cell would be an operation of the recording."""
        return False

    @property
    def sequences(self) -> int:
        """Sequences per gradient update."""
        return self._config.memory.sequences(self.batch_size)

    def states(self, batch: Batch) -> NDArray[np.float32]:
        """The present policy's states before each observation of a batch from the replay, float32[B, L + 1, S]."""
        columns = (batch.observations, batch.states, batch.begins)
        observations, states, begins = (torch.from_numpy(column).to(self._device) for column in columns)
        network: Any = self.policy
        with torch.no_grad():
            unrolled = network.unrolled(self._unpacked(observations).transpose(0, 1), states, begins.transpose(0, 1))
        found: NDArray[np.float32] = unrolled.states[:-1].transpose(0, 1).cpu().numpy()
        return found

    @staticmethod
    def descend_together(
        networks: Sequence[TrainedNetwork[Any]], loss: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Make one gradient step of several networks on one loss. Returns the further tensors of `loss`."""

        def differentiate() -> tuple[Tensor, ...]:
            total, *others = loss()
            with ExitStack() as gradients:
                for network in networks:
                    gradients.enter_context(network.parameters[0].new_gradient())
                torch.autograd.backward(total)
            return tuple(others)

        return Minimizer.step_together(networks, differentiate, None)

    def update(self, batch: Batch, weights: NDArray[np.float32]) -> Losses:
        """One gradient update for each `sequences` rows of `batch`; `weights` float32[rows] scale the losses."""
        return self.losses(map(self.step, self.minibatches(batch, weights)))

    def minibatches(self, batch: Batch, weights: NDArray[np.float32]) -> Iterator[Batch]:
        """The sequences of each update, with time first."""
        rows = on_device(batch, weights, self.sequences, self._device)
        rows = rows.with_columns(observations=self._unpacked(rows.observations))
        for part in rows.split(self.sequences):
            yield self._with_time_first(part)

    def _with_time_first(self, part: Batch) -> Batch:
        burn_in = self._config.memory.burn_in
        columns = {
            name: column if name in _ONCE else column.transpose(0, 1).contiguous()
            for name, column in part.columns.items()
        }
        for name in ("observations", "begins"):
            columns[f"early_{name}"], columns[name] = columns[name][:burn_in], columns[name][burn_in:]
        columns["bootstrap_steps"] = columns["bootstrap_steps"] - burn_in
        columns["mask"] = columns["mask"].to(torch.float32)
        return Batch(**columns)

    def _unpacked(self, observations: Tensor) -> Tensor:
        """Observations [B, L + 1, *policy_observation], unpacked if they consist of several arrays."""
        if self._leaves is None:
            return observations
        unpacked: Tensor = self._leaves.unpacked(observations.flatten(0, 1))
        return unpacked.view(*observations.shape[:2], *unpacked.shape[1:])


def remembered(network: Any, batch: Batch) -> Tensor:
    """The outputs of a network's cell after the burn-in, float32[P, B, U]. The burn-in has no gradient."""
    states: Tensor = batch.states
    if len(batch.early_begins):
        with torch.no_grad():
            states = network.unrolled(batch.early_observations, states, batch.early_begins).states[-1]
    outputs: Tensor = network.unrolled(batch.observations, states, batch.begins).outputs
    return outputs


def bootstrapped(values: Tensor, batch: Batch) -> Tensor:
    """The values after the windows of trained steps, [R, B], of values at all observations, [P, B]."""
    return values.gather(0, batch.bootstrap_steps)


def mean_of_trained(losses: Tensor, batch: Batch, weighted: bool = True) -> Tensor:
    """The mean over the trained steps that exist, of [R, B]. weighted: with the weights of their sequences."""
    weights = batch.mask * batch.weights if weighted else batch.mask
    mean: Tensor = (weights * losses).sum() / batch.mask.sum().clamp(min=1.0)
    return mean


def priorities_of(errors: Tensor, batch: Batch) -> Tensor:
    """One priority for each sequence, float32[B], from the errors of its trained steps, [R, B].

    eta max |delta| + (1 - eta) mean |delta| with eta = 0.9 (Kapturowski et al. 2019, section 2.3).
    """
    errors = errors * batch.mask
    mean: Tensor = errors.sum(0) / batch.mask.sum(0).clamp(min=1.0)
    return _ETA * errors.amax(0) + (1 - _ETA) * mean
