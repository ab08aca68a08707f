"""Algorithms with memory, rollouts for them, and a task that needs memory."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actorq.config.run_config import RunConfig
from actorq.domain.columns import state_column
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from learner_service.algorithms.policy_gradient import PolicyGradient
from learner_service.batch import Batch
from tests.learner_service.algorithms.algorithm_parts import DEVICE, on_device
from tests.learner_service.algorithms.on_policy_parts import CLASSES, OF_THE_RUN, random_trajectories

UNITS = 16
CUE = EnvironmentSpec("Cue-v0", ArraySpec((2,), "float32"), ArraySpec((), "int64"), sizes=(2,))


def make_recurrent(name: str, spec: EnvironmentSpec, memory: dict[str, Any] | str, **changes: Any) -> PolicyGradient:
    """A small algorithm with these settings of the memory; `changes` are to its section, or to the run's settings."""
    memory = {"units": UNITS, **({"kind": memory} if isinstance(memory, str) else memory)}
    run = {key: changes.pop(key) for key in OF_THE_RUN if key in changes}
    section = {"hidden_sizes": (32,), "value_sizes": (32,), "learning_rate": 3e-3, "rollout_size": 10_000, **changes}
    config = RunConfig.model_validate(
        {"environment": "Small-v0", "algorithm": name, name: section, "seed": 1, "memory": memory, **run}
    )
    return CLASSES[name](config, spec, DEVICE)


def state_size(algorithm: PolicyGradient) -> int:
    """Numbers in the state of its policy."""
    return int(algorithm.policy.state_size)


def with_states(algorithm: PolicyGradient, steps: Batch, rng: np.random.Generator) -> Batch:
    """Trajectories with random stored states."""
    size = state_size(algorithm)
    states = rng.uniform(-1, 1, (1, steps.rewards.shape[1], size)).astype(np.float32)
    return steps.with_columns(**{state_column(size): states})


def random_recurrent(algorithm: PolicyGradient, spec: EnvironmentSpec, *lengths: int, seed: int = 0) -> list[Batch]:
    """Random trajectories of these numbers of steps."""
    rng = np.random.default_rng(seed)
    return [with_states(algorithm, random_trajectories(rng, spec, length, 6), rng) for length in lengths]


class Cue:
    """Shows +1 or -1 in the first observation only. The action of the last step must be 1 for +1 and 0 for -1.

    An episode has `delay` + 1 steps. The second number of the last observation is 1. The reward of the right action is
    1, of the wrong one -1, and of all others 0.
    """

    def __init__(self, environments: int, delay: int, rng: np.random.Generator) -> None:
        self._delay, self._rng = delay, rng
        self._ages = np.zeros(environments, np.int64)
        self._cues = rng.choice([-1.0, 1.0], environments)
        self._resets = np.zeros(environments, np.bool_)

    def observations(self) -> NDArray[np.float32]:
        """Observations, float32[N, 2]."""
        first, last = self._ages == 0, self._ages == self._delay
        return np.stack((self._cues * first, last.astype(float)), 1).astype(np.float32)

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Rewards, terminated, valid."""
        valid, last = ~self._resets, self._ages == self._delay
        terminated = last & valid
        right = np.where((actions == 1) == (self._cues > 0), 1.0, -1.0)
        rewards = np.where(terminated, right, 0.0).astype(np.float32)
        self._ages = np.where(self._resets, 0, np.minimum(self._ages + 1, self._delay))
        self._cues = np.where(self._resets, self._rng.choice([-1.0, 1.0], len(actions)), self._cues)
        self._resets = terminated
        return rewards, terminated, valid


class Acting:
    """Acts in a task with the present policy, and keeps its states."""

    def __init__(self, task: Cue, environments: int, rng: np.random.Generator, size: int) -> None:
        self._task, self._rng = task, rng
        self._states = np.zeros((environments, size), np.float32)

    def collect(self, algorithm: PolicyGradient, steps: int) -> Batch:
        """A rollout. Actions are drawn."""
        size, rows, observations = self._states.shape[1], [], [self._task.observations()]
        stored = {state_column(size): self._states[None].copy()} if size else {}
        for _ in range(steps):
            logits = self._logits(algorithm, observations[-1])
            logarithms = torch.log_softmax(logits, 1).cpu().numpy()
            actions = (logarithms + self._rng.gumbel(size=logarithms.shape)).argmax(1)
            told = logarithms[np.arange(len(actions)), actions]
            rewards, terminated, valid = self._task.step(actions)
            self._states[~valid] = 0.0
            rows.append((actions, told, rewards, terminated, valid))
            observations.append(self._task.observations())
        actions, told, rewards, terminated, valid = map(np.stack, zip(*rows, strict=True))
        return Batch(
            observations=np.stack(observations),
            actions=actions,
            rewards=rewards,
            terminated=terminated,
            truncated=np.zeros_like(terminated),
            valid=valid,
            log_probabilities=told,
            policy_versions=np.ones(rewards.shape, np.int64),
            senders=np.zeros(rewards.shape, np.uint64),
            **stored,
        )

    def _logits(self, algorithm: PolicyGradient, observations: NDArray[np.float32]) -> torch.Tensor:
        with torch.no_grad():
            if not self._states.shape[1]:
                logits: torch.Tensor = algorithm.policy(on_device(observations))
                return logits
            logits, states = algorithm.policy(on_device(observations), on_device(self._states))
        self._states[:] = states.cpu().numpy()
        return logits
