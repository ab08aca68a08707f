"""A walker policy on raw observations: a linear controller found by random search, cloned into the D4PG network.

The project's continuous algorithms are not needed for it: what matters here is a network that acts well on dm_control's
raw observations (joint angles, heights and velocities up to about 60), the hard case for quantized activations.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.policies import d4pg_policy

TASK = ("walker", "stand")
EPISODE_STEPS = 1000
OBSERVATIONS, ACTIONS = 24, 6

Float = NDArray[np.float64]
Act = Callable[[NDArray[np.float32]], NDArray[Any]]


class Walkers:
    """Several walkers that act as one batch."""

    def __init__(self, seeds: list[int]) -> None:
        from dm_control import suite

        self._environments = [suite.load(*TASK, task_kwargs={"random": seed}) for seed in seeds]

    def reset(self) -> NDArray[np.float32]:
        """Begin an episode everywhere; observations float32[N, 24]."""
        return np.stack([_flat(environment.reset()) for environment in self._environments])

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Observations after these actions, float32[N, 24], and rewards, float64[N]."""
        steps = [
            environment.step(np.clip(action, -1, 1))
            for environment, action in zip(self._environments, actions, strict=True)
        ]
        return np.stack([_flat(step) for step in steps]), np.array([step.reward for step in steps])


@dataclass(frozen=True)
class LinearController:
    """action = tanh(W (observation - mean) / std)."""

    weights: Float
    mean: Float
    std: Float

    def __call__(self, observations: NDArray[Any]) -> Float:
        """Actions float64[N, 6] in [-1, 1]."""
        scaled: Float = np.tanh((observations - self.mean) / self.std @ self.weights.T)
        return scaled


def search(
    iterations: int, seed: int, progress: Callable[[str], None], directions: int = 16, best: int = 8, steps: int = 250
) -> LinearController:
    """Augmented random search (Mania et al., arXiv 1803.07055, algorithm 2, V2-t) over linear controllers.

    Each iteration runs `directions` pairs of opposite perturbations for `steps` environment steps.
    """
    rng = np.random.default_rng(seed)
    walkers = Walkers([seed])
    weights = np.zeros((ACTIONS, OBSERVATIONS))
    seen = np.zeros((0, OBSERVATIONS))
    mean, std = np.zeros(OBSERVATIONS), np.ones(OBSERVATIONS)
    started = time.monotonic()
    for iteration in range(iterations):
        noises = rng.standard_normal((directions, *weights.shape))
        returns = np.zeros((directions, 2))
        visited = []
        for index, noise in enumerate(noises):
            for side, sign in enumerate((1.0, -1.0)):
                controller = LinearController(weights + sign * 0.06 * noise, mean, std)
                observations, returns[index, side] = _episode(walkers, controller, steps)
                visited.append(observations[::5])
        order = np.argsort(returns.max(axis=1))[::-1][:best]
        difference = returns[order, 0] - returns[order, 1]
        step = np.einsum("d,dao->ao", difference, noises[order]) / (best * returns[order].std())
        weights = weights + 0.05 * step
        seen = np.concatenate([seen, *visited])[-200_000:]
        mean, std = seen.mean(axis=0), np.maximum(seen.std(axis=0), 1e-2)
        if iteration % 10 == 9:
            progress(
                f"walker, iteration {iteration + 1} of {iterations}: mean return {returns.mean():.0f} of {steps}, "
                f"{time.monotonic() - started:.0f} s"
            )
    return LinearController(weights, mean, std)


def visited(act: Act, episodes: int, seed: int, noise: float) -> tuple[NDArray[np.float32], list[float]]:
    """Observations float32[T * N, 24] of whole episodes with Gaussian noise on the actions, and the returns."""
    rng = np.random.default_rng(seed)
    walkers = Walkers([seed + index for index in range(episodes)])
    observations, returns, rows = walkers.reset(), np.zeros(episodes), []
    for _ in range(EPISODE_STEPS):
        rows.append(observations)
        actions = np.array(act(observations), np.float64)
        observations, rewards = walkers.step(actions + noise * rng.standard_normal(actions.shape))
        returns += rewards
    return np.concatenate(rows), returns.tolist()


def clone(controller: Act, observations: NDArray[np.float32], seed: int, updates: int, width: int = 256) -> nn.Module:
    """The D4PG network trained to give the controller's actions on these raw observations (mean squared error)."""
    torch.manual_seed(seed)
    network = d4pg_policy(width, OBSERVATIONS, ACTIONS)
    inputs = torch.from_numpy(observations)
    actions = torch.from_numpy(np.asarray(controller(observations), np.float32))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(updates):
        rows = torch.randint(len(inputs), (256,))
        loss = nn.functional.mse_loss(network(inputs[rows]), actions[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return network


def _episode(walkers: Walkers, controller: LinearController, steps: int) -> tuple[Float, float]:
    observations, total, rows = walkers.reset(), 0.0, []
    for _ in range(steps):
        rows.append(observations[0])
        observations, rewards = walkers.step(controller(observations))
        total += float(rewards[0])
    return np.array(rows, np.float64), total


def _flat(step: Any) -> NDArray[np.float32]:
    parts = [np.atleast_1d(np.asarray(value, np.float32)) for value in step.observation.values()]
    return np.concatenate(parts)
