"""A walker policy on raw observations: a linear controller found by random search, cloned into the D4PG network.

It does not need ActorQ's continuous algorithms. The benchmark needs a network that acts well on dm_control's raw
observations. These are joint angles, heights and velocities up to about 60, a hard case for quantized activations.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from actorq.domain.signature import signature_of
from actorq.quantization.signatures import signed_graph
from benchmarks.harness import optional_module
from benchmarks.policies import PolicyNetwork, checkpoint_of, d4pg_policy, environment_spec
from benchmarks.policy.trained.task import INSTALL, Act, Progress, TrainedPolicy

TASK = ("walker", "stand")
EPISODE_STEPS = 1000
OBSERVATIONS, ACTIONS = 24, 6

# The search: perturbations per iteration, perturbations used, their size, the step size, and steps of each trial.
_DIRECTIONS, _BEST, _NOISE, _STEP, _SEARCH_STEPS = 16, 8, 0.2, 0.2, 300

Float = NDArray[np.float64]


class WalkerStand:
    """The D4PG network 256x3 on raw observations."""

    name = "walker stand"
    trained_by = "random search for a linear controller, cloned into the D4PG network 256x3 on raw observations"
    spec = environment_spec((OBSERVATIONS,), "float32", ACTIONS, False)
    episodes = 5

    def __init__(self, seed: int = 0, iterations: int = 140, updates: int = 6_000) -> None:
        self._seed, self._iterations, self._updates = seed, iterations, updates

    def train(self, progress: Progress) -> TrainedPolicy:
        """Search, clone, and collect the held-out observations with the clone."""
        controller = search(self._iterations, self._seed, progress)
        observations, returns = _visited(controller, 20, self._seed + 1000, noise=0.2)
        progress(f"{self.name}: the controller's return is {np.mean(returns):.0f} of {EPISODE_STEPS}, with noise")
        network = _clone(controller, observations, self._seed, self._updates)
        rows = np.random.default_rng(self._seed).permutation(len(observations))[:256]
        held_out, _ = _visited(_act(network), 4, self._seed + 2000, noise=0.0)
        graph, checkpoint = checkpoint_of(PolicyNetwork("walker", network, self.spec, observations[rows]))
        inputs, outputs = ([port.name for port in ports] for ports in vars(graph.signature).values())
        spans = (2.0,) * ACTIONS
        graph = signed_graph(onnx.ModelProto.FromString(graph.model), signature_of(inputs, outputs, spans=spans))
        order = np.random.default_rng(self._seed).permutation(len(held_out))
        return TrainedPolicy(graph, replace(checkpoint, graph_digest=graph.digest), held_out[order])

    def returns(self, act: Act) -> list[float]:
        """Returns of episodes without noise."""
        return _visited(act, self.episodes, self._seed + 3000, noise=0.0)[1]


class Walkers:
    """Several walkers that act as one batch."""

    def __init__(self, seeds: list[int]) -> None:
        suite = optional_module("dm_control.suite", INSTALL)
        self._environments = [suite.load(*TASK, task_kwargs={"random": seed}) for seed in seeds]

    def seed(self, seed: int) -> None:
        """Seed the next episodes. Equal seeds give equal episodes."""
        for index, environment in enumerate(self._environments):
            environment.task.random.seed(seed + index)

    def reset(self) -> NDArray[np.float32]:
        """Begin an episode in each walker. Returns observations float32[N, 24]."""
        return np.stack([_flat(environment.reset()) for environment in self._environments])

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Step all walkers. Returns observations, float32[N, 24], and rewards, float64[N]."""
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


def search(iterations: int, seed: int, progress: Progress) -> LinearController:
    """Augmented random search (Mania et al., arXiv 1803.07055, algorithm 2, V2-t) over linear controllers.

    Each iteration tries pairs of opposite perturbations from the same initial pose and steps along the best.
    """
    rng = np.random.default_rng(seed)
    walkers = Walkers([seed])
    weights = np.zeros((ACTIONS, OBSERVATIONS))
    seen = np.zeros((0, OBSERVATIONS))
    mean, std = np.zeros(OBSERVATIONS), np.ones(OBSERVATIONS)
    for iteration in range(1, iterations + 1):
        noises = rng.standard_normal((_DIRECTIONS, *weights.shape))
        returns = np.zeros((_DIRECTIONS, 2))
        pose = int(rng.integers(2**31))
        visited = []
        for index, noise in enumerate(noises):
            for side, sign in enumerate((1.0, -1.0)):
                controller = LinearController(weights + sign * _NOISE * noise, mean, std)
                walkers.seed(pose)
                observations, returns[index, side] = _episode(walkers, controller, _SEARCH_STEPS)
                visited.append(observations[::5])
        order = np.argsort(returns.max(axis=1))[::-1][:_BEST]
        difference = returns[order, 0] - returns[order, 1]
        weights = weights + _STEP * np.einsum("d,dao->ao", difference, noises[order]) / (_BEST * returns[order].std())
        seen = np.concatenate([seen, *visited])[-200_000:]
        mean, std = seen.mean(axis=0), np.maximum(seen.std(axis=0), 1e-2)
        if iteration % 10 == 0:
            progress(
                f"walker: iteration {iteration} of {iterations}, mean return {returns.mean():.0f} in "
                f"{_SEARCH_STEPS} steps"
            )
    return LinearController(weights, mean, std)


def _visited(act: Act, episodes: int, seed: int, noise: float) -> tuple[NDArray[np.float32], list[float]]:
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


def _clone(controller: LinearController, observations: NDArray[np.float32], seed: int, updates: int) -> nn.Module:
    """The D4PG network, trained on raw observations to copy the controller's actions (mean squared error)."""
    torch.manual_seed(seed)
    network = d4pg_policy(256, OBSERVATIONS, ACTIONS)
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


def _act(network: nn.Module) -> Act:
    def act(observations: NDArray[Any]) -> NDArray[Any]:
        with torch.inference_mode():
            actions: NDArray[Any] = network(torch.from_numpy(observations)).numpy()
            return actions

    return act


def _flat(step: Any) -> NDArray[np.float32]:
    parts = [np.atleast_1d(np.asarray(value, np.float32)) for value in step.observation.values()]
    return np.concatenate(parts)
