"""One offline run of d3rlpy, in a separate process of its own Python: JSON in on stdin, JSON out as the last line.

Its settings are those of the papers, as ours. The number of torch threads is the caller's.
"""

import importlib
import json
import sys
import time
from typing import Any

import numpy as np


def learn(
    algorithm: str, environment: str, file: str, seed: int, updates: int, batch_size: int, episodes: int
) -> dict[str, Any]:
    """Learn from a file of flat arrays, and return the mean return of greedy episodes and the updates per second."""
    # Not dependencies of this project: the run's environment has them.
    d3rlpy, gymnasium = (importlib.import_module(name) for name in ("d3rlpy", "gymnasium"))
    d3rlpy.seed(seed)
    evaluated = gymnasium.make(environment)
    with np.load(file) as arrays:
        dataset = d3rlpy.dataset.MDPDataset(
            *(arrays[name].astype(np.float32) for name in ("observations", "actions", "rewards")),
            terminals=arrays["terminations"].astype(np.float32),
            timeouts=arrays["truncations"].astype(np.float32),
        )
    space, scalers = evaluated.action_space, d3rlpy.preprocessing
    common = {
        "batch_size": batch_size,
        "actor_learning_rate": 3e-4,
        "critic_learning_rate": 3e-4,
        "action_scaler": scalers.MinMaxActionScaler(minimum=space.low, maximum=space.high),
    }
    if algorithm == "td3bc":
        config = d3rlpy.algos.TD3PlusBCConfig(observation_scaler=scalers.StandardObservationScaler(), **common)
    else:
        config = d3rlpy.algos.IQLConfig(**common)
    model = config.create(device="cpu:0")
    began = time.monotonic()
    adapter = d3rlpy.logging.NoopAdapterFactory()
    model.fit(dataset, updates, n_steps_per_epoch=updates, show_progress=False, logger_adapter=adapter)
    seconds = time.monotonic() - began
    returns = []
    for episode in range(episodes):
        observation, _ = evaluated.reset(seed=10_000 + episode)
        total, over = 0.0, False
        while not over:
            action = model.predict(observation[None].astype(np.float32))[0]
            observation, reward, terminated, truncated, _ = evaluated.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    speed = {"updates": updates, "updates_per_s": round(updates / seconds, 1)}
    return {"returns": {"fp32": float(np.mean(returns))}, **speed, "version": d3rlpy.__version__}


if __name__ == "__main__":
    sys.stdout.write(f"\n{json.dumps(learn(**json.load(sys.stdin)))}\n")
