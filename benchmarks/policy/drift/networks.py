"""Policies with memory for the benchmark: their task, their training, and the checkpoint that a learner would send."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actorq.config.memory import MemoryConfig
from actorq.domain.leaves import OBSERVATIONS
from actorq.domain.limits import MAX_SEQUENCE_STEPS, MAX_SEQUENCES
from actorq.domain.policy import SEQUENCE_LENGTHS, Checkpoint, PolicyGraph
from actorq.domain.signature import Role
from benchmarks.policies import ACTION_SIZE, OBSERVATION_SIZE, environment_spec
from learner_service.networks import DiagonalGaussianPolicy
from learner_service.policy.policy_graph import export_policy_graph, snapshot_parameters

SPEC = environment_spec((OBSERVATION_SIZE,), "float32", ACTION_SIZE, discrete=False)
# Share of an observation that stays for the next step. The process is stationary with variance 1.
_STAYS = 0.9
# Probability of a cue in a step, and the component of the observation that marks it.
_CUE, _MARK = 0.05, 0
# Gain of the features in untrained cells, so that their states use the range of tanh.
_ACTIVE = 3.0
_CALIBRATION = 256


def observations(steps: int, environments: int, seed: int) -> NDArray[np.float32]:
    """An autoregressive process with cues, float32[T, B, observation].

    Component 0 is 1 in steps with a cue, else 0.
    """
    rng = np.random.default_rng(seed)
    found = rng.standard_normal((steps, environments, OBSERVATION_SIZE)).astype(np.float32)
    for step in range(1, steps):
        found[step] = _STAYS * found[step - 1] + math.sqrt(1 - _STAYS**2) * found[step]
    found[..., _MARK] = rng.random((steps, environments)) < _CUE
    found[0, :, _MARK] = 1.0
    return found


def recalled(observed: NDArray[np.float32]) -> NDArray[np.float32]:
    """The actions that the task asks for, [T, B, action]: components of the observation at the last cue, in [-1, 1]."""
    target = np.empty((*observed.shape[:2], ACTION_SIZE), np.float32)
    for step, rows in enumerate(observed):
        now = np.tanh(rows[:, 1 : 1 + ACTION_SIZE])
        before = now if step == 0 else target[step - 1]
        target[step] = np.where(rows[:, _MARK, None] > 0, now, before)
    return target


@dataclass(frozen=True)
class Recurrent:
    """A policy with memory, its graph, and its first version with calibration rows and stored sequences.

    error: mean squared error of its actions on the task; that of a constant action is about 0.4.
    """

    name: str
    policy: DiagonalGaussianPolicy
    graph: PolicyGraph
    checkpoint: Checkpoint
    error: float


def make(kind: Any, units: int, hidden: int, updates: int, seed: int = 0, horizon: int = 0) -> Recurrent:
    """A policy with a hidden layer before its cell.

    updates: of training; 0 for random weights with an active state. horizon: steps over which half of the cell's units
    keep their values at first, as in a new cell of PPO; 0 for the cell of the other algorithms.
    """
    torch.manual_seed(seed)
    policy = DiagonalGaussianPolicy(SPEC, (hidden,), activation="tanh", memory=MemoryConfig(kind=kind, units=units))
    assert policy.memory is not None
    if not updates:
        with torch.no_grad():
            policy.memory.input.weight.mul_(_ACTIVE)
            policy.memory.recurrent.weight.mul_(math.sqrt(3))
    if horizon:
        policy.memory.spread_memory(horizon)
    if updates:
        _train(policy, updates, seed)
    name = f"{kind} {units}, {f'up to {horizon} steps, ' if horizon else ''}{'trained' if updates else 'random'}"
    graph = export_policy_graph(policy, SPEC)
    return Recurrent(name, policy, graph, _checkpoint(policy, graph, seed + 1), _error(policy, seed + 2))


def followed(policy: DiagonalGaussianPolicy, observed: NDArray[np.float32]) -> tuple[Any, Any]:
    """The policy's means float32[T, B, action], and its states before each step and after the last, [T + 1, B, S]."""
    begins = torch.zeros(observed.shape[:2], dtype=torch.bool)
    unrolled = policy.unrolled(torch.from_numpy(observed), torch.zeros(observed.shape[1], policy.state_size), begins)
    return policy.head(unrolled.outputs), unrolled.states


def _train(policy: DiagonalGaussianPolicy, updates: int, seed: int) -> None:
    """Learn the task from sequences of 64 steps, with the mean squared error and Adam."""
    optimizer = torch.optim.Adam(policy.parameters(), 2e-3)
    for update in range(updates):
        observed = observations(MAX_SEQUENCE_STEPS, 32, 1_000 * (seed + 1) + update)
        means, _ = followed(policy, observed)
        loss = (means - torch.from_numpy(recalled(observed))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()


def _error(policy: DiagonalGaussianPolicy, seed: int) -> float:
    observed = observations(256, 32, seed)
    with torch.no_grad():
        means, _ = followed(policy, observed)
    return float(np.square(means.numpy() - recalled(observed)).mean())


def _checkpoint(policy: DiagonalGaussianPolicy, graph: PolicyGraph, seed: int) -> Checkpoint:
    """The first version, with rows and sequences from episodes of 256 steps."""
    observed = observations(256, MAX_SEQUENCES, seed)
    with torch.no_grad():
        _, states = followed(policy, observed)
    rng = np.random.default_rng(seed)
    chosen = rng.integers(256, size=_CALIBRATION), rng.integers(MAX_SEQUENCES, size=_CALIBRATION)
    starts, environments = rng.integers(256 - MAX_SEQUENCE_STEPS, size=MAX_SEQUENCES), np.arange(MAX_SEQUENCES)
    steps = starts + np.arange(MAX_SEQUENCE_STEPS)[:, None]
    return Checkpoint(
        1,
        1,
        graph.digest,
        snapshot_parameters(policy),
        {OBSERVATIONS: observed[chosen], Role.STATE: states.numpy()[chosen]},
        0.0,
        sequences={
            SEQUENCE_LENGTHS: np.full(MAX_SEQUENCES, MAX_SEQUENCE_STEPS, np.int32),
            OBSERVATIONS: observed[steps, environments],
            Role.STATE: states.numpy()[starts, environments],
        },
    )
