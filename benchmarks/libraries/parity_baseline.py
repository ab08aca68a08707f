"""One run of Stable-Baselines3 for parity.py, in a separate process: JSON in on stdin, JSON out on stdout.

Exploration is the library's own. Evaluations use the deterministic policy in a separate environment.
"""

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

from benchmarks.libraries.parity_episodes import final_returns, returns


def main() -> None:
    """Learn with the settings from stdin. The keys of the answer are those of a run in parity.py."""
    torch.set_num_threads(1)
    print(json.dumps(learn(**json.load(sys.stdin))))


def learn(
    algorithm: str,
    environment: str,
    seed: int,
    steps: int,
    arguments: dict[str, Any],
    action_noise: float | None,
    evaluation: dict[str, int],
    final: dict[str, int],
) -> dict[str, Any]:
    """Learn for `steps` environment steps.

    arguments: for the algorithm's class.
    action_noise: standard deviation, relative to half the action range.
    evaluation: `period` in steps, and number of `episodes`.
    final: number of `episodes` and `seed` for the last policy.
    """
    # Not a dependency, and without types. Only this comparison needs it.
    library = importlib.import_module("stable_baselines3")
    noises = importlib.import_module("stable_baselines3.common.noise")
    learned, evaluated = gymnasium.make(environment), gymnasium.make(environment)
    if action_noise is not None:
        zeros = np.zeros(learned.action_space.shape or ())
        arguments["action_noise"] = noises.NormalActionNoise(zeros, zeros + action_noise)
    model = getattr(library, algorithm.upper())("MlpPolicy", learned, seed=seed, device="cpu", **arguments)
    curve: list[dict[str, float]] = []
    started, parent = time.monotonic(), os.getppid()
    evaluated.reset(seed=10_000 + seed)

    def act(observation: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(model.predict(observation, deterministic=True)[0])

    def after_step(*_: object) -> bool:
        if os.getppid() != parent:
            raise SystemExit("the reader of the answer is gone")
        if model.num_timesteps % evaluation["period"] == 0:
            mean_return = statistics.fmean(returns(act, evaluated, evaluation["episodes"]))
            curve.append(
                {
                    "environment_steps": model.num_timesteps,
                    "mean_return": mean_return,
                    "wall_clock_s": round(time.monotonic() - started, 2),
                }
            )
        return True

    model.learn(steps, callback=after_step)
    wall_clock_s = time.monotonic() - started
    last = final_returns(act, evaluated, final["episodes"], final["seed"])
    return {
        "environment_steps": model.num_timesteps,
        "updates": model._n_updates,
        "wall_clock_s": round(wall_clock_s, 2),
        "evaluations": curve,
        "final": {"mean_return": statistics.fmean(last), "episodes": len(last), "scheme": "fp32"},
    }


if __name__ == "__main__":
    main()
