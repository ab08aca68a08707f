"""Measures the difference between the collected data and the learner's policy: rounding, staleness, and lag in
versions.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actorq.domain.columns import state_column
from learner_service.batch import Batch
from learner_service.rollouts.versions import PublishedVersions

# Number of transitions of a rollout whose probabilities are computed again.
_TRANSITIONS = 256
# Number of transitions after which the next rollout is measured. Measuring each small rollout cost a tenth of the
# trainer's time.
_PERIOD = 2048
# Number of versions whose parameters are kept. A run may allow any lag.
_MOST_VERSIONS = 66

LogProbabilities = Callable[..., NDArray[np.float32]]


class Mismatch:
    """Means over the run's used transitions, the first two over samples.

    Any thread may read it; only the trainer changes it.

    pi is an FP32 policy. mu is the quantized policy that drew the action, often of an older version.

    mismatch: mean |log pi(a|s) - log mu(a|s)| with pi of the acting version: only the rounding. It leaves out versions
        from before a restart of the learner, and versions that are 66 or more publications old.
    divergence: the same mean with pi the newest policy: rounding and staleness together.
    policy_lag: mean number of publications after the acting version.

    With memory, the samples are first steps of trajectories, because only their states are stored.
    """

    def __init__(
        self,
        log_probabilities: LogProbabilities,
        versions: PublishedVersions,
        device: torch.device,
        state_size: int = 0,
    ) -> None:
        """log_probabilities: as in `OnPolicyAlgorithm`. device: of the parameters. state_size: 0 without memory."""
        self._log_probabilities = log_probabilities
        self._state = (state_column(state_size),) if state_size else ()
        self._versions = versions
        self._device = device
        self._parameters: OrderedDict[int, Mapping[str, NDArray[Any]]] = OrderedDict()
        self._sums = dict.fromkeys(("mismatch", "divergence", "policy_lag"), (0.0, 0))
        self._unmeasured = _PERIOD

    def mean(self, name: str) -> float | None:
        """The mean "mismatch", "divergence" or "policy_lag"; None before the first."""
        total, count = self._sums[name]
        return total / count if count else None

    def published(self, version: int, parameters: Mapping[str, NDArray[Any]]) -> None:
        """Keep the parameters of a published version, and of the newest versions that may still act."""
        self._parameters[version] = parameters
        while len(self._parameters) > min(self._versions.max_lag + 2, _MOST_VERSIONS):
            self._parameters.popitem(last=False)

    def measure(self, rollout: Sequence[Batch]) -> None:
        """Count the lags of a rollout, and measure it if it is due. Call before the algorithm learns from it."""
        for trajectories in rollout:
            lags = self._versions.lag(trajectories.policy_versions[trajectories.valid])
            self._add("policy_lag", lags)
            self._unmeasured += len(lags)
        if self._unmeasured < _PERIOD:
            return
        if self._state:
            rollout = [_first_steps(each) for each in rollout]
        observations, actions, drawn, versions, *states = _samples(rollout, self._state)
        if not len(drawn):
            return
        self._unmeasured = 0
        self._add("divergence", np.abs(self._log_probabilities(observations, actions, {}, *states) - drawn))
        known = np.array(list(self._parameters), np.int64)
        # The publisher may give a snapshot a higher number if the quantizer has newer versions.
        places = np.searchsorted(known, versions, side="right") - 1
        for place in np.unique(places[places >= 0]):
            rows = places == place
            parameters = {
                name: torch.from_numpy(array).to(self._device)
                for name, array in self._parameters[int(known[place])].items()
            }
            own = [each[rows] for each in states]
            again = self._log_probabilities(observations[rows], actions[rows], parameters, *own)
            self._add("mismatch", np.abs(again - drawn[rows]))

    def state(self) -> dict[str, list[float]]:
        """The state for a checkpoint, as JSON values."""
        return {name: list(sums) for name, sums in self._sums.items()}

    def load_state(self, state: Mapping[str, Sequence[float]]) -> None:
        """Restore what `state` returned."""
        self._sums = {name: (float(total), int(count)) for name, (total, count) in state.items()}

    def _add(self, name: str, values: NDArray[Any]) -> None:
        # A policy that gives an action no probability at all would make the mean infinite permanently.
        finite = values[np.isfinite(values)]
        total, count = self._sums[name]
        self._sums[name] = (total + float(finite.sum(dtype=np.float64)), count + len(finite))


def _first_steps(steps: Batch) -> Batch:
    """The first steps of trajectories, as trajectories of one step."""
    return steps.map(lambda column: column[:1])


def _samples(rollout: Sequence[Batch], further: Sequence[str] = ()) -> list[NDArray[Any]]:
    """At most 256 evenly spaced transitions: observations, actions, log probabilities, versions and further columns."""
    valid = sum(int(np.count_nonzero(trajectories.valid)) for trajectories in rollout)
    chosen = np.linspace(0, valid, min(_TRANSITIONS, valid), endpoint=False).astype(np.int64)
    columns = []
    for each in rollout:
        steps, environments = np.nonzero(each.valid)
        mine = chosen[(chosen >= 0) & (chosen < len(steps))]
        at = steps[mine], environments[mine]
        read = (each.observations, each.actions, each.log_probabilities, each.policy_versions)
        columns.append([column[at] for column in (*read, *map(each.columns.__getitem__, further))])
        chosen = chosen - len(steps)
    return [np.concatenate(column) for column in zip(*columns, strict=True)]
