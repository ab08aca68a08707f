"""A CartPole DQN: the best version of a run of `actorq train`, by evaluation."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from actor_service.environments import describe_environment
from actorq.domain.policy import FP32
from benchmarks.policies import as_policy, emit
from benchmarks.policy.trained.task import Act, Progress, TrainedPolicy
from quantizer_service.store.reader import PolicyReader

_ID = "CartPole-v1"
_HELD_OUT_SEED, _RETURNS_SEED = 10_000, 20_000
_HELD_OUT_EPISODES, _EXPLORATION, _HELD_OUT_ROWS = 16, 0.05, 4000


class CartPole:
    """DQN with the default configuration, trained by `actorq train` with int8 actors."""

    trained_by = "actorq train, DQN 64-64, best version by evaluation"
    episodes = 20

    def __init__(self, seed: int) -> None:
        self.name = f"CartPole DQN, seed {seed}"
        self.spec = describe_environment(_ID)
        self._seed = seed

    def train(self, progress: Progress) -> TrainedPolicy:
        """Run the command in a temporary folder. Raises SystemExit when it fails."""
        with tempfile.TemporaryDirectory() as directory:
            run = Path(directory) / "run"
            progress(f"{self.name}: training")
            command = [sys.executable, "-m", "actorq_apps.cli.main", "train", "--environment", _ID]
            command += ["--seed", str(self._seed), "--run-directory", str(run)]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            # 3: the run missed the target return within its steps, which is acceptable here.
            if process.returncode not in (0, 3):
                raise SystemExit(f"actorq train failed with exit code {process.returncode}: {process.stderr.strip()}")
            reader = PolicyReader(run / "policies")
            evaluated = [version for version in reader.versions() if version.mean_return is not None]
            best = max(evaluated, key=lambda version: (version.mean_return or 0.0, version.version))
            checkpoint = reader.checkpoint(best.version)
            graph = reader.graphs[checkpoint.graph_digest]
            progress(f"{self.name}: version {best.version}, evaluated at {best.mean_return:.1f}")
        from actor_service.policies.policy import OnnxPolicy

        fp32 = as_policy(graph, checkpoint, FP32, emit(graph, checkpoint, FP32))
        act = OnnxPolicy(fp32, self.spec.observations, _HELD_OUT_EPISODES)
        observations, _ = _play(act, _HELD_OUT_EPISODES, _HELD_OUT_SEED, _EXPLORATION)
        rows = np.random.default_rng(0).permutation(len(observations))[:_HELD_OUT_ROWS]
        return TrainedPolicy(graph, checkpoint, observations[rows])

    def returns(self, act: Act) -> list[float]:
        """Greedy episodes."""
        return _play(act, self.episodes, _RETURNS_SEED, 0.0)[1]


def _play(act: Act, episodes: int, seed: int, exploration: float) -> tuple[NDArray[np.float32], list[float]]:
    """Observations float32[R, 4] and returns of episodes with some random actions."""
    rng = np.random.default_rng(seed)
    environments: list[gymnasium.Env[Any, Any]] = [gymnasium.make(_ID) for _ in range(episodes)]
    observations = np.stack([environment.reset(seed=seed + i)[0] for i, environment in enumerate(environments)])
    returns, going = np.zeros(episodes), np.ones(episodes, bool)
    rows = []
    while going.any():
        rows.append(observations[going].copy())
        actions = np.asarray(act(observations)).argmax(axis=1)
        explores = rng.random(episodes) < exploration
        actions[explores] = rng.integers(0, 2, episodes)[explores]
        for index in np.flatnonzero(going):
            observations[index], reward, terminated, truncated, _ = environments[index].step(int(actions[index]))
            returns[index] += float(reward)
            going[index] = not (terminated or truncated)
    return np.concatenate(rows), returns.tolist()
