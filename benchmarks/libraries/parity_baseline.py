"""One run of Stable-Baselines3 for parity.py, in a process of its own: JSON in on stdin, JSON out on stdout.

Actions while learning are its own, evaluations are of the deterministic policy in an environment of their own.
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
    """Learn as stdin says; the keys of the answer are those of a run in parity.py."""
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

    arguments: of the algorithm's class.
    action_noise: standard deviation, in halves of the action range.
    evaluation: `period` steps between evaluations of `episodes`.
    final: `episodes` and `seed` of those that the last policy plays.
    """
    # Neither a dependency nor typed here: who compares with it installs it.
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
            raise SystemExit("nobody waits for the answer any more")
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
