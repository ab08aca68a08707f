"""Algorithms with a replay on a task that needs memory: their actors, replays and updates."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actorq.config.run_config import RunConfig
from actorq.domain.columns import state_column
from actorq.domain.spaces import ArraySpec, EnvironmentSpec
from actorq.domain.trajectory import PolicySpan, Segment
from learner_service.algorithms import make_algorithm
from learner_service.batch import Batch
from learner_service.replay import ReplayBuffer, Returns, SegmentSource, SequenceShape, empty_sequences
from learner_service.training.buffers import open_buffer
from tests.learner_service.algorithms.algorithm_parts import on_device
from tests.learner_service.algorithms.recurrent_parts import CUE, Cue

UNITS = 16
CUE_CONTINUOUS = EnvironmentSpec(
    "Cue-v1", ArraySpec((2,), "float32"), ArraySpec((1,), "float32", low=(-1.0,), high=(1.0,))
)
RUN: dict[str, Any] = {
    "seed": 1,
    "actors": 1,
    "environments_per_actor": 8,
    "replay": {"capacity": 20_000, "min_size": 500},
    "rate_limiter": {"samples_per_insert": 1.0, "error_buffer": 1e9},
    "actor": {"segment_length": 16},
}


def run_of(name: str, memory: dict[str, Any] | str, **changes: Any) -> RunConfig:
    """A run of a small algorithm. changes: to the algorithm's section, or `run` to the run's settings."""
    memory = {"units": UNITS, **({"kind": memory} if isinstance(memory, str) else memory)}
    run = changes.pop("run", {})
    section = {"hidden_sizes": (32,), "learning_rate": 3e-3, "batch_size": 128, **changes}
    return RunConfig.model_validate(
        {"environment": "Small-v0", "algorithm": name, name: section, "memory": memory, **RUN, **run}
    )


def random_sequences(config: RunConfig, spec: EnvironmentSpec, n_step: int, windows: bool, size: int) -> Batch:
    """A batch of random sequences with random masks, episodes and windows."""
    memory, rng = config.memory, np.random.default_rng(0)
    shape = SequenceShape(memory.burn_in, memory.sequence_length, n_step - 1, memory.state_size)
    batch = empty_sequences(spec, size, shape, Returns(n_step, 0.9, windows=windows).windows)
    for column in batch.columns.values():
        column[...] = rng.normal(size=column.shape) if column.dtype.kind == "f" else 0
    batch.begins[...] = rng.random(batch.begins.shape) < 0.1
    batch.mask[...] = rng.random(batch.mask.shape) < 0.8
    places = shape.burn_in + np.arange(shape.trained)
    batch.bootstrap_steps[...] = places + rng.integers(1, n_step + 1, batch.mask.shape)
    batch.bootstrap_discounts[...] = np.where(batch.mask, 0.9, 0.0)
    if spec.sizes:
        batch.actions[...] = rng.integers(spec.sizes[0], size=batch.actions.shape)
    else:
        batch.actions[...] = rng.uniform(*spec.actions.bounds(), batch.actions.shape)
    return batch


@dataclass
class Learning:
    """An algorithm that learns the cue task from its replay. With continuous actions, larger ones have more reward.

    explore: chance of a random action.
    """

    name: str
    config: RunConfig
    directory: Path
    delay: int
    explore: float = 0.2
    environments: int = 8

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._spec = CUE if self.name == "dqn" else CUE_CONTINUOUS
        self.algorithm = make_algorithm(self.config, self._spec)
        replay = open_buffer(self.config, self._spec, self.directory, self.algorithm, np.random.default_rng(1), 0)
        assert isinstance(replay, ReplayBuffer)
        self.replay = replay
        self._size = self.config.memory.state_size
        self._task = Cue(self.environments, self.delay, self._rng)
        self._states = np.zeros((self.environments, self._size), np.float32)
        self._ages = np.zeros(self.environments, np.uint8)
        self._sequence = 0
        self.right: list[float] = []

    def collect(self, steps: int = 16) -> None:
        """Insert the next segment."""
        ages, stored, rows = self._ages.copy(), self._states.copy(), []
        observations = [self._task.observations()]
        for _ in range(steps):
            actions = self._actions(observations[-1])
            chosen = actions if self._spec.sizes else (actions[:, 0] > 0).astype(int)
            rewards, terminated, valid = self._task.step(chosen)
            if not self._spec.sizes:
                rewards = rewards * np.abs(actions[:, 0])
            self.right += (rewards[terminated] > 0).tolist()
            self._states[~valid] = 0.0
            self._ages = np.where(valid, self._ages + 1, 0).astype(np.uint8)
            rows.append((actions, rewards, terminated, valid))
            observations.append(self._task.observations())
        actions, rewards, terminated, valid = map(np.stack, zip(*rows, strict=True))
        columns = {
            "observations": np.stack(observations),
            "actions": actions,
            "rewards": rewards,
            "terminated": terminated,
            "truncated": np.zeros_like(terminated),
            "valid": valid,
            "ages": ages,
        }
        if self._size:
            columns[state_column(self._size)] = stored
        self._sequence += 1
        follows = self._sequence > 1
        segment = Segment(self._sequence, columns, (PolicySpan(0, 1, "fp32"),), follows=follows)
        segment.check(self._spec)
        self.replay.limiter.try_reserve(rewards.size)
        self.replay.insert(segment, SegmentSource.from_name("actor", 1, self._sequence), rewards.size)

    def update(self) -> None:
        """Draw a batch and make one update."""
        memory, rows = self.config.memory, self.algorithm.batch_size
        batch, sampled = self.replay.draw(memory.sequences(rows) if memory else rows)
        losses = self.algorithm.update(batch, sampled.weights)
        self.replay.update_priorities(sampled, losses.priorities)

    def share_of_right_answers(self, segments: int, updates: int) -> float:
        """Collect segments with some updates after each. The share of the newest 200 answers."""
        for _ in range(segments):
            self.collect()
            if not self.replay.limiter.missing:
                for _ in range(updates):
                    self.update()
        self.replay.close()
        return float(np.mean(self.right[-200:]))

    def _actions(self, observations: NDArray[np.float32]) -> NDArray[Any]:
        inputs = [on_device(observations), *((on_device(self._states),) if self._size else ())]
        if self.algorithm.takes_noise:
            noise = self._rng.standard_normal((len(observations), 1), np.float32)
            inputs.append(on_device(noise))
        with torch.no_grad():
            outputs = self.algorithm.policy(*inputs)
        if self._size:
            outputs, states = outputs
            self._states[:] = states.cpu().numpy()
        found: NDArray[Any] = outputs.cpu().numpy()
        explores = self._rng.random(len(found)) < self.explore
        if self._spec.sizes:
            return np.where(explores, self._rng.integers(2, size=len(found)), found.argmax(1))
        uniform = self._rng.uniform(-1, 1, found.shape).astype(np.float32)
        return np.where(explores[:, None], uniform, found)
