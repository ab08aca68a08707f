"""One run of Stable-Baselines3's PPO for ppo.py, in a separate process: JSON in on stdin, JSON out on stdout."""

import importlib
import json
import os
import statistics
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.libraries.parity_episodes import final_returns


def main() -> None:
    """Learn with the settings from stdin. The keys of the answer are those of a run in ppo.py."""
    request = json.load(sys.stdin)
    torch.set_num_threads(request.pop("threads"))
    print(json.dumps(learn(**request)))


def learn(
    environment: str,
    environments: int,
    seed: int,
    steps: int,
    arguments: dict[str, Any],
    learning_rate: float,
    anneal: bool,
    clip: float,
    anneal_clip: bool,
    normalize: bool,
    final: dict[str, int],
) -> dict[str, Any]:
    """Learn for `steps` environment steps. See benchmarks.onpolicy.settings for the names.

    final: number of `episodes` and `seed` for the last policy, which acts without noise.
    """
    # Not a dependency, and without types. Only this comparison needs it.
    library = importlib.import_module("stable_baselines3")
    vectors = importlib.import_module("stable_baselines3.common.vec_env")
    learned = importlib.import_module("stable_baselines3.common.env_util").make_vec_env(
        environment, n_envs=environments, seed=seed
    )
    if normalize:
        learned = vectors.VecNormalize(learned, gamma=arguments["gamma"])

    def schedule(first: float, falls: bool) -> Any:
        return (lambda remaining: remaining * first) if falls else first

    model = library.PPO(
        "MlpPolicy",
        learned,
        seed=seed,
        device="cpu",
        learning_rate=schedule(learning_rate, anneal),
        clip_range=schedule(clip, anneal_clip),
        **arguments,
    )
    parent = os.getppid()

    def after_step(*_: object) -> bool:
        if os.getppid() != parent:
            raise SystemExit("the reader of the answer is gone")
        return True

    started = time.monotonic()
    model.learn(steps, callback=after_step)
    seconds = time.monotonic() - started

    def act(observation: NDArray[Any]) -> NDArray[Any]:
        seen = learned.normalize_obs(observation) if normalize else observation
        return np.asarray(model.predict(seen, deterministic=True)[0])

    returns = final_returns(act, gymnasium.make(environment), final["episodes"], final["seed"])
    return {
        "environment_steps": model.num_timesteps,
        "updates": model._n_updates * -(-environments * arguments["n_steps"] // arguments["batch_size"]),
        "seconds": round(seconds, 2),
        "final": {"mean_return": statistics.fmean(returns), "episodes": len(returns), "scheme": "fp32"},
    }


if __name__ == "__main__":
    main()
